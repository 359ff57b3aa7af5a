"""What the command line needs of a run: the seam between it and `diloco_operator.local`, and the reader of its events.

`LocalRun` has the shape of `Run`; tests use a scripted one.
"""

import json
from pathlib import Path
from typing import Protocol

from diloco_api.names import Role
from diloco_operator.local import LocalOutcome, Snapshot


class Run(Protocol):
    """One job on this machine. Everything but `run` answers at once."""

    @property
    def folder(self) -> Path:
        """The work folder."""

    @property
    def observed(self) -> Snapshot | None:
        """The newest look at the job; None before the first."""

    @property
    def outer_file(self) -> Path:
        """Where the final outer parameters are once the job is Complete."""

    def pids(self, role: Role, index: int | None = None) -> list[int]:
        """Processes running now, the newest last."""

    def drain(self) -> None:
        """Ask for the end in good order."""

    def stop_now(self) -> None:
        """Ask for the end at once."""

    async def run(self) -> LocalOutcome:
        """From the first process to the end of the last."""


class EventReader:
    """Follows the file of events of a work folder, from its present end."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "events.jsonl"
        self._position = self._file.stat().st_size if self._file.exists() else 0

    def new(self) -> list[str]:
        """Messages of the events told since the last call."""
        if not self._file.exists():
            return []
        with self._file.open("rb") as file:
            file.seek(self._position)
            lines = file.read()
        whole = lines[: lines.rfind(b"\n") + 1]
        self._position += len(whole)
        return [str(json.loads(line)["message"]) for line in whole.splitlines()]

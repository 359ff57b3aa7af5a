"""A job as real processes on loopback: one Synchronizer, Learners, a folder each; no operator.

Ports are free ones; folders are what the operator would mount. Learners may be started before the Synchronizer serves.
"""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from diloco_api import names
from diloco_api.run_config import RunConfig
from diloco_api.tokens import make_token
from reference.replay import Merge

ROOT = Path(__file__).parents[2]
KEY = bytes(range(32))
PATIENCE_SECONDS = 150.0


class Job:
    """Processes of one job; use it in a `with` block, which leaves none behind."""

    def __init__(self, run: RunConfig, folder: Path) -> None:
        self.run, self.folder = run, folder
        self.state = folder / "state"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("config", "address", "key"):
            (folder / name).mkdir()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        run = run.model_copy(update={"synchronizer_port": port})
        (folder / "config" / names.FILE_RUN_CONFIG).write_text(run.model_dump_json(), encoding="utf-8")
        (folder / "address" / names.FILE_ADDRESSES).write_text(f"127.0.0.1:{port}\n", encoding="utf-8")
        (folder / "key" / names.FILE_KEY).write_bytes(KEY)

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()

    def start_synchronizer(self) -> None:
        self._start(
            "synchronizer",
            names.SYNCHRONIZER_COMMAND,
            {names.ENV_CREDENTIALS_DIR: str(self.folder / "key"), names.ENV_STATE_DIR: str(self.state)},
        )

    def start_learner(self, index: int, incarnation: int = 1) -> None:
        name = f"learner-{index}-{incarnation}"
        for folder in (f"{name}-token", name):
            (self.folder / folder).mkdir()
        token = make_token(KEY, self.run.job_uid, index, incarnation)
        (self.folder / f"{name}-token" / names.FILE_TOKEN).write_text(token, encoding="utf-8")
        self._start(
            name,
            names.LEARNER_COMMAND,
            {
                names.ENV_LEARNER_INDEX: str(index),
                names.ENV_INCARNATION: str(incarnation),
                names.ENV_SITE: names.LOCAL_SITE,
                names.ENV_ADDRESS_DIR: str(self.folder / "address"),
                names.ENV_CREDENTIALS_DIR: str(self.folder / f"{name}-token"),
                names.ENV_SCRATCH_DIR: str(self.folder / name),
            },
        )

    def stop(self, name: str) -> None:
        """SIGTERM, and its orderly end."""
        self.processes[name].terminate()
        self.ended(name)

    def ended(self, name: str) -> None:
        """Wait for a process; it must end well."""
        code = self.processes[name].wait(PATIENCE_SECONDS)
        assert code == 0, f"{name} ended with {code}:\n{self.output(name)}"

    def finish(self) -> None:
        """Wait for all Learners to find the job complete, then for the final parameters, then stop the Synchronizer."""
        for name in self.processes:
            if name != "synchronizer":
                self.ended(name)
        self.until((self.state / names.FILE_OUTER).exists)
        self.stop("synchronizer")

    @contextmanager
    def frozen(self, *frozen: str) -> Iterator[None]:
        """These processes stand still meanwhile."""
        for name in frozen:
            self.processes[name].send_signal(signal.SIGSTOP)
        yield
        for name in frozen:
            self.processes[name].send_signal(signal.SIGCONT)

    def output(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def tape(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name / names.FILE_TAPE
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []

    def until(self, ready: Callable[[], Any]) -> Any:
        """What `ready` returns once that is true; nobody may have failed meanwhile."""
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while not (value := ready()):
            for name, process in self.processes.items():
                assert process.poll() in (None, 0), f"{name} ended with {process.poll()}:\n{self.output(name)}"
            assert time.monotonic() < give_up_at, "nothing came of it in time"
            time.sleep(0.05)
        return value

    def merges(self) -> list[tuple[Merge, str, str]]:
        """(merge, branch, digest) in the order of the log; of a Synchronizer that has stopped."""
        with closing(sqlite3.connect(self.state / "index.sqlite")) as index:
            rows = index.execute("SELECT lsn, fragment, version, branch, digest FROM merges ORDER BY lsn").fetchall()
            settled = index.execute(
                "SELECT lsn, learner, incarnation, fragment, sequence FROM settlements WHERE outcome = 'merged' "
                "ORDER BY lsn, learner, incarnation"
            ).fetchall()
        return [
            (Merge(fragment, version, [tuple(row[1:]) for row in settled if row[0] == lsn]), branch, digest)
            for lsn, fragment, version, branch, digest in rows
        ]

    def environment(self) -> dict[str, str]:
        """Variables of every process."""
        return {
            "OMP_NUM_THREADS": "1",
            names.ENV_CONFIG_DIR: str(self.folder / "config"),
            names.ENV_DEVICE: "cpu",
            names.ENV_THREADS: "1",
        }

    def _start(self, name: str, command: tuple[str, ...], variables: dict[str, str]) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("crds", "operator", "trainer_image")),
            **self.environment(),
            **variables,
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, *command[1:]], env=environment, stdout=log, stderr=log, cwd=self.folder
            )

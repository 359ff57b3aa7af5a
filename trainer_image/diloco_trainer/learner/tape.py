"""The Learner's tape: what it trained on, sent and adopted, as one JSON object a line.

Together with the Synchronizer's log it lets an independent writing of the algorithm replay the run bit for bit. Lines
are kept in memory and written at heartbeats and at the end. Kinds and fields (steps are job steps):

`join` epoch, index, incarnation, versions, step, rejoin; `step` step (after it), lr, ranges [[pass, start, stop]],
loss; `contribution` fragment, sequence, turn, base_version, stage_step, token_clock, c_tokens, c_steps, mean_lr, codec,
checksum; `settlement` fragment, sequence, outcome, version, reason; `adoption` fragment, version, step, how,
stage_step.
"""

import json
import logging
import threading
from pathlib import Path

from diloco_trainer.wire.gen import synchronizer_pb2 as pb

logger = logging.getLogger(__name__)

Value = str | int | float | bool | None | list[int] | list[list[int]]


class Tape:
    """Thread-safe writer; None as path keeps nothing.

    The tape is an aid: when its file cannot be written, that is said once and the rest of it is not kept.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._lines: list[str] = []

    def write(self, kind: str, **fields: Value) -> None:
        if self._path is None:
            return
        line = json.dumps({"kind": kind, **fields}, separators=(",", ":"))
        with self._lock:
            self._lines.append(line)

    def flush(self) -> None:
        """Append what has been written since the last time to the file."""
        with self._lock:
            if self._path is None or not self._lines:
                return
            try:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write("\n".join(self._lines) + "\n")
            except OSError as error:
                logger.warning("%s: %s: the tape ends here, training goes on", self._path, error.strerror)
                self._path = None
            self._lines.clear()

    def contribution(self, header: pb.ContributionHeader) -> None:
        self.write(
            "contribution",
            fragment=header.fragment,
            sequence=header.sequence,
            turn=header.turn,
            base_version=header.base_version,
            stage_step=header.stage_step,
            token_clock=header.token_clock,
            c_tokens=header.c_tokens,
            c_steps=header.c_steps,
            mean_lr=header.mean_lr,
            codec=header.codec,
            checksum=header.checksum.hex(),
        )

    def settlement(self, settlement: pb.Settlement) -> None:
        self.write(
            "settlement",
            fragment=settlement.fragment,
            sequence=settlement.sequence,
            outcome=pb.Outcome.Name(settlement.outcome),
            version=settlement.version,
            reason=settlement.reason,
        )

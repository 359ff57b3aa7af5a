"""What a process of a pod does about signals while it is not yet at work. Imports nothing that takes time."""

import os
import signal
from types import FrameType

from diloco_api.exit_codes import ExitCode


def end_when_told() -> None:
    """From now on the process ends at once when it is asked to: it has nothing to hand over yet.

    The first process of a container is not ended by a signal that it has not asked for. Until torch is imported it
    would stay deaf, and use up the whole grace period of a pod that is deleted soon after it began.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(ExitCode.COMPLETE)  # no exception, which an import in progress might swallow

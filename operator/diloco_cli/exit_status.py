"""How `diloco` ends: its exit codes, documented in docs/local-runs.md, and the one line that says what is wrong."""

import sys
from collections.abc import Sequence
from enum import IntEnum

from diloco_api.states import ConditionType
from diloco_api.status import Condition
from diloco_operator.planning.conditions import is_true


class ExitStatus(IntEnum):
    COMPLETE = 0
    FAILED = 1
    INVALID = 2
    INTERRUPTED = 130


def status_of(conditions: Sequence[Condition]) -> ExitStatus:
    """What a run that is over came to."""
    if is_true(conditions, ConditionType.COMPLETE):
        return ExitStatus.COMPLETE
    return ExitStatus.FAILED if is_true(conditions, ConditionType.FAILED) else ExitStatus.INTERRUPTED


def complain(text: str) -> None:
    """One line on stderr."""
    print(f"error: {' '.join(text.split())}", file=sys.stderr)

"""Exit codes of `diloco run`; documented in docs/local-runs.md."""

from enum import IntEnum


class ExitStatus(IntEnum):
    COMPLETE = 0
    FAILED = 1
    INVALID = 2
    INTERRUPTED = 130

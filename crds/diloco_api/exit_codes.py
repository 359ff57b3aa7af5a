"""Exit codes of Learner and Synchronizer processes: how they tell the operator what became of them.

A process that fails by a user's mistake also prints one line `error: ...` to stderr. What the operator does about a
code is decided in its planning; here is only the meaning.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    COMPLETE = 0
    """The job has ended well, or the process was asked to stop and has handed over its work."""
    BAD_CONFIG = 64
    """Run config, identity variables or credentials are missing or wrong."""
    DATA_ERROR = 65
    """The training text cannot be found or read, or is too short."""
    PORT_IN_USE = 66
    """A port that must be bound is taken."""
    STATE_FOREIGN = 67
    """The Synchronizer's state folder belongs to another job."""
    STATE_CORRUPT = 68
    """Replaying the Synchronizer's log does not give the checksums it recorded."""
    STATE_UNWRITABLE = 69
    """The state folder cannot be written."""
    DEVICE = 70
    """The GPU that was asked for cannot be used here; it may work on another machine."""
    FENCED = 80
    """A newer incarnation of this Learner index, or another Synchronizer, has taken over."""
    JOB_ENDED = 81
    """The Synchronizer refuses Learners because the job is over or deleted."""
    INCOMPATIBLE = 82
    """Protocol, model layout or job differ from the Synchronizer's."""
    ORPHANED = 83
    """The Synchronizer could not be reached for `orphan_timeout_seconds`."""
    TLS = 84
    """Never admitted: the certificates of Learner and Synchronizer do not fit, which waiting does not mend."""
    UNAUTHENTICATED = 85
    """The Synchronizer refuses this Learner's token; the next incarnation gets another one."""

"""Every deadline of a job in one table, so that none is chosen twice or in the wrong order.

All values are seconds. What is not listed here derives from these and from H (`sync_every`).
"""

from pydantic import BaseModel, ConfigDict


class Timeouts(BaseModel):
    """Deadlines of one job, fixed when it is accepted and handed to every process in its run config."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    heartbeat_seconds: float = 5.0
    """Interval between two heartbeats of a Learner."""
    dead_after_seconds: float = 30.0
    """A Learner unheard for this long leaves quorum, medians and expected sets."""
    unheard_synchronizer_seconds: float = 30.0
    """A Learner that waits for a settlement trains on once the Synchronizer has been unheard for this long."""
    stall_timeout_seconds: float = 600.0
    """A Learner unheard for this long is gone: its lease is revoked and its work leased again."""
    scheduling_timeout_seconds: float = 300.0
    """Synchronous presets start with `min` Learners when `replicas` are not admitted by then."""
    orphan_timeout_seconds: float = 6 * 3600.0
    """A Learner that cannot reach the Synchronizer for this long ends itself."""
    round_deadline_floor_seconds: float = 60.0
    """Least deadline of a synchronous round, counted from its first contribution."""
    round_deadline_factor: float = 3.0
    """The deadline is this many median round times, where that is longer than the floor."""
    answer_patience_seconds: float = 1.0
    """A turn without its quorum waits at least this long for answers that are under way."""
    rpc_timeout_seconds: float = 30.0
    """Deadline of one call without payload."""
    heartbeat_timeout_seconds: float = 10.0
    """Deadline of one heartbeat; it is not repeated, the next one says more."""
    call_retry_seconds: float = 60.0
    """A call that may be repeated is, for this long, before its caller learns that nobody answers."""
    transfer_idle_seconds: float = 60.0
    """A Learner gives a transfer up when no chunk has passed for this long, however long the whole takes; the
    Synchronizer waits twice as long."""
    failed_goodbye_seconds: float = 3.0
    """Time a Learner that ends by an error has to say so."""
    grace_period_seconds: float = 30.0
    """Time a process has between SIGTERM and SIGKILL."""
    progress_interval_seconds: float = 30.0
    """Least time between two writes of mere progress to the job's status."""

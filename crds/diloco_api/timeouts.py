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
    """Synchronous presets start with `min` Learners when `replicas` are not admitted by then. A pod no node takes for
    this long goes to another node pool or site, where there is one."""
    config_timeout_seconds: float = 120.0
    """A pod whose image cannot be pulled, or whose container cannot be made, for this long goes to another site."""
    site_lost_after_seconds: float = 120.0
    """A site that could not be reached for this long is lost; its Learners that are unheard too go to other sites."""
    site_cool_down_seconds: float = 60.0
    """No new Learner goes to a site for this long after it refused one, or came back from being lost."""
    deletion_wait_seconds: float = 600.0
    """A deleted job waits this long for sites that cannot be reached, then leaves behind what is there."""
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

"""What the Synchronizer tells about a job: the body of `GET /progress` of its Admin endpoint.

Readers are the operator, the CLI and people; the trainer is the one writer. All totals are of the whole job and
survive restarts of every process. Token totals are weighted by parameters over fragments, so that they compare with
the tokens a Learner has trained.
"""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict

PROGRESS_VERSION = 1


class Phase(StrEnum):
    """What the Synchronizer is doing."""

    WAITING = "Waiting"  # synchronous presets: not enough Learners admitted for version 0
    RUNNING = "Running"
    CLOSING = "Closing"  # budget used up: one closing round of every fragment
    DRAINING = "Draining"  # asked to stop: the same closing round, then Stopped
    STOPPED = "Stopped"  # drained; a new start resumes
    COMPLETE = "Complete"


class LearnerState(StrEnum):
    """Where a Learner's second went; exactly one at a time: those of `GoodputState` a Learner can see of itself."""

    INIT = "init"
    RESTORE = "restore"
    TRAINING = "training"
    SYNC_WAIT = "sync_wait"
    DATA_WAIT = "data_wait"
    DRAIN = "drain"
    STALLED = "stalled"  # its process stood still, or a step hangs


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class TokenTotals(_Model):
    """trained = merged + overlap + sum(discarded) + in_flight, at every instant."""

    trained: float = 0.0
    """Tokens Learners have computed gradients on."""
    merged: float = 0.0
    """Tokens whose progress is in the outer parameters."""
    overlap: float = 0.0
    """Tokens trained between a stage and the adoption that overwrote them."""
    discarded: dict[str, float] = {}
    """Tokens thrown away, by reason."""
    in_flight: float = 0.0
    """Tokens trained and neither merged nor thrown away yet."""
    repeated: float = 0.0
    """Tokens leased a second time although some fragments had merged them (not part of the identity)."""


class LearnerProgress(_Model):
    """One incarnation of one Learner index, as last heard."""

    index: int
    incarnation: int
    site: str
    live: bool
    """Heard within the dead-after deadline, and neither left nor fenced."""
    gone: bool = False
    """Left, fenced or given up; never heard again under this incarnation."""
    heartbeat_age_seconds: float
    """Seconds since it was last heard."""
    state: LearnerState
    step: int
    """Inner steps this incarnation has taken."""
    job_step: int = 0
    """Position in the schedule, steps of the job (synchronous presets: cumulative step)."""
    token_clock: int
    """Tokens this incarnation has trained."""
    loss: float | None = None
    """Mean training loss since the last heartbeat, nats per token."""
    staleness: int = 0
    """Outer versions the Learner's oldest fragment is behind."""
    step_seconds: float | None = None
    """Median time of an inner step."""
    learning_rate: float | None = None
    warmup_left: int = 0
    """Steps left of the ramp of a replacement."""
    metrics_port: int = 0
    state_seconds: dict[LearnerState, float] = {}
    """Cumulative seconds per state, from the Learner's monotonic clock; states it never was in are absent."""
    bytes_up: int = 0
    bytes_down: int = 0
    digest_mismatches: int = 0
    """Anchors that had to be pulled again because their digest was wrong."""


class FragmentDigest(_Model):
    version: int
    digest: str
    """sha256 of (epoch, fragment, version, little-endian fp32 anchor bytes), hex."""


class TurnCounts(_Model):
    announced: int = 0
    skipped: int = 0
    void: int = 0
    """Turns that closed without a merge."""
    interval_seconds: float | None = None
    """Present pace of turns; absent before a step time is known and for synchronous presets."""
    lengthened: bool = False
    """The pace was lengthened because more than 5 % of the turns were skipped."""


class Progress(_Model):
    """The whole answer; `schema_version` changes when a reader would have to."""

    schema_version: int = PROGRESS_VERSION
    job_uid: str
    epoch: int
    phase: Phase
    reason: str | None = None
    """Why it is Complete: TokenBudgetReached, StepBudgetReached, RoundBudgetReached or DataExhausted."""
    served_seconds: float
    """Seconds this process has served without a break."""
    total_served_seconds: float = 0.0
    """Seconds of Running and Closing over all processes of the job."""
    uptime_seconds: float
    """Part of total_served_seconds in which the outer step advanced within its deadline."""
    budget_tokens: int
    percent: float
    """Trained, undiscarded tokens over budget tokens, in percent."""
    eta_seconds: float | None = None
    tokens_per_second: float | None = None
    outer_steps: int
    """Merges of all fragments."""
    outer_rounds: int
    """Lowest fragment version."""
    last_merge_age_seconds: float | None = None
    tokens: TokenTotals
    loss_initial: float | None = None
    """Validation loss of the outer parameters of version 0, nats per token."""
    loss_final: float | None = None
    """Validation loss of the final outer parameters."""
    turns: TurnCounts = TurnCounts()
    fenced_updates: int = 0
    bytes_up: int = 0
    """Payload bytes of contributions, resends included."""
    bytes_down: int = 0
    """Payload bytes of pulls."""
    learners: list[LearnerProgress] = []
    """Every incarnation ever admitted, oldest first."""
    digests: dict[int, FragmentDigest] = {}
    message: str | None = None
    """One line for people when something needs attention."""

"""The kinds of log records: everything about a job that outlives the Synchronizer process.

A record's metadata is the JSON of one dataclass below; only `MergeRecord` has blobs. `control.apply` says what each one
does to the durable state, in live operation and in replay alike. Times named `wall` are seconds since 1970, for people
and for ages over restarts; no decision about rounds uses them.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from diloco_trainer.algorithm.events import GoneReason, RefusalReason


@dataclass(frozen=True, slots=True)
class JobRecord:
    """First record of a job: what the folder belongs to."""

    job_uid: str
    layout_digest: str
    policy_digest: str
    epoch: int
    kind: Literal["job"] = "job"


@dataclass(frozen=True, slots=True)
class OpenRecord:
    """A process took the folder under a fencing number. `resumed`: the job had been drained and goes on."""

    fence: int
    wall: float
    resumed: bool
    kind: Literal["open"] = "open"


@dataclass(frozen=True, slots=True)
class AdmitRecord:
    index: int
    incarnation: int
    site: str
    wall: float
    kind: Literal["admit"] = "admit"


@dataclass(frozen=True, slots=True)
class StartRecord:
    """Version 0 is handed out."""

    wall: float
    kind: Literal["start"] = "start"


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """Work granted. What was asked is kept, since the same question has the same answer in replay."""

    index: int
    incarnation: int
    request_number: int
    remaining_sequences: int
    batch_sequences: int
    want_sequences: int
    num_live: int
    max_ahead_sequences: int
    start_clock_tokens: int
    ranges: tuple[tuple[int, int, int], ...]
    """(pass, start, stop) in the order of the pass."""
    exhausted: bool
    kind: Literal["lease"] = "lease"


@dataclass(frozen=True, slots=True)
class ShareRecord:
    """Fixed pool: the units left of an index that nobody holds go to these indices."""

    index: int
    live: tuple[int, ...]
    kind: Literal["share"] = "share"


@dataclass(frozen=True, slots=True)
class Contributor:
    """One body of a merge: its header and what it weighed. `norm` was taken before rebasing."""

    index: int
    incarnation: int
    sequence: int
    turn: int
    base_version: int
    stage_step: int
    token_clock: int
    c_tokens: int
    c_steps: int
    mean_lr: float
    weight: float
    norm: float


@dataclass(frozen=True, slots=True)
class MergeRecord:
    """One outer step of one fragment. Blobs: the encoded bodies in order, or the merged fp32 delta."""

    fragment: int
    turn: int
    version: int
    reason: str
    contributors: tuple[Contributor, ...]
    branch: str
    payload: Literal["bodies", "delta"]
    theta_crc: int
    momentum_crc: int
    digest: str
    """Digest of the anchor (what Learners hold) of this version."""
    stamp: float
    tokens_per_second: float
    stage_step: int
    seconds: float
    """Time of merge and outer step, without the sync of this record."""
    wall: float
    kind: Literal["merge"] = "merge"


@dataclass(frozen=True, slots=True)
class RefuseRecord:
    """A contribution settled without being merged."""

    index: int
    incarnation: int
    fragment: int
    sequence: int
    reason: RefusalReason
    message: str
    newest_version: int
    token_clock: int
    c_tokens: int
    wall: float
    kind: Literal["refuse"] = "refuse"


@dataclass(frozen=True, slots=True)
class NothingRecord:
    """An answer without a body: all the incarnation trained of the fragment up to this token clock is accounted for."""

    index: int
    incarnation: int
    fragment: int
    token_clock: int
    kind: Literal["nothing"] = "nothing"


@dataclass(frozen=True, slots=True)
class DepartRecord:
    """An incarnation has said goodbye; it is gone once its bodies have settled, or at once after a restart."""

    index: int
    incarnation: int
    kind: Literal["depart"] = "depart"


@dataclass(frozen=True, slots=True)
class GoneRecord:
    """An incarnation is given up; what it had leased beyond its frontier is leased again."""

    index: int
    incarnation: int
    reason: GoneReason
    token_clock: int
    """Tokens it had trained when last heard."""
    wall: float
    kind: Literal["gone"] = "gone"


@dataclass(frozen=True, slots=True)
class FinishRecord:
    """All closing rounds are over. `reason` None: drained, may be resumed."""

    reason: str | None
    wall: float
    kind: Literal["finish"] = "finish"


@dataclass(frozen=True, slots=True)
class LossRecord:
    """Validation loss of the outer parameters, nats per token."""

    when: Literal["initial", "final"]
    loss: float
    kind: Literal["loss"] = "loss"


@dataclass(frozen=True, slots=True)
class LearnerTotals:
    """What an incarnation last said of itself; all counters are cumulative over its life."""

    index: int
    incarnation: int
    state: str = "init"
    step: int = 0
    job_step: int = 0
    token_clock: int = 0
    loss: float | None = None
    learning_rate: float | None = None
    step_seconds: float | None = None
    warmup_left: int = 0
    staleness: int = 0
    metrics_port: int = 0
    state_seconds: dict[str, float] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    digest_mismatches: int = 0


@dataclass(frozen=True, slots=True)
class JobTotals:
    """Counters of the job that no other record carries; cumulative over all its processes."""

    served_seconds: float = 0.0
    uptime_seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    fenced_updates: int = 0
    turns_announced: int = 0
    turns_skipped: int = 0
    turns_void: int = 0


@dataclass(frozen=True, slots=True)
class TotalsRecord:
    """Written every few seconds, so that totals survive; only Learners heard since the last one are listed."""

    job: JobTotals
    learners: tuple[LearnerTotals, ...]
    kind: Literal["totals"] = "totals"


Record = (
    JobRecord
    | OpenRecord
    | AdmitRecord
    | StartRecord
    | LeaseRecord
    | ShareRecord
    | MergeRecord
    | RefuseRecord
    | NothingRecord
    | DepartRecord
    | GoneRecord
    | FinishRecord
    | LossRecord
    | TotalsRecord
)

_RECORD: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])


def dump_record(record: Record) -> bytes:
    """Metadata of a log record as JSON."""
    return _RECORD.dump_json(record)


def parse_record(meta: bytes) -> Record:
    """The reverse of `dump_record`; raises pydantic's ValidationError (a ValueError) for anything else."""
    return _RECORD.validate_json(meta)

"""What `sync_round.step` is told (events) and what it wants done (effects). Values only; torch-free.

Times are seconds of one monotonic clock and are arguments of `step`, never fields. A `Key` names one contribution for
ever: the same key always means the same bytes.
"""

from dataclasses import dataclass
from enum import StrEnum


class RefusalReason(StrEnum):
    """Why a contribution was settled without being merged."""

    NON_FINITE = "NonFinite"  # guard: a NaN or an infinity
    NORM_OUTLIER = "NormOutlier"  # guard: norm far above the fragment's running median
    DROPPED = "Dropped"  # came after its round, policy Drop
    BASE_TOO_OLD = "BaseTooOld"  # the deltas needed to rebase it are no longer retained
    JOINING = "Joining"  # a joiner's first body came after the close of a round it was not expected in
    BEYOND_LEASE = "BeyondLease"  # of more tokens than its Learner was leased
    GONE = "Gone"  # its Learner was given up before the round closed


class GoneReason(StrEnum):
    LEFT = "Left"
    FENCED = "Fenced"
    UNHEARD = "Unheard"


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Identity of a contribution; tuple order is the order of merging (index, then incarnation)."""

    index: int
    incarnation: int
    fragment: int
    sequence: int


# --- events -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Joined:
    """An incarnation asks to be admitted (or says Join again)."""

    index: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Heard:
    """A heartbeat. `step_seconds` is None until the Learner has timed a step."""

    index: int
    incarnation: int
    step_seconds: float | None
    drained: bool


@dataclass(frozen=True, slots=True)
class Listening:
    """Its stream of notices has been opened: from now on it learns of turns."""

    index: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Left:
    index: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Contributed:
    """A whole body that passed the guard is staged in memory. Resends must not be reported twice."""

    key: Key
    turn: int
    base_version: int


@dataclass(frozen=True, slots=True)
class AnsweredNothing:
    """An answer to a turn without a body: no step since the adoption, or the body was refused by the guard."""

    index: int
    incarnation: int
    fragment: int
    turn: int


@dataclass(frozen=True, slots=True)
class MergeDone:
    """The merge asked for by `Merge` is durable and published.

    `merged` are the keys of `Merge.contributions`; `seconds` is the cost, durability included.
    """

    fragment: int
    version: int
    merged: tuple[Key, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class PoolChanged:
    """Whether unleased work is left."""

    has_work: bool
    exhausted_reason: str


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """Stop the job after one closing round of every fragment; it can be resumed."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = (
    Joined | Heard | Listening | Left | Contributed | AnsweredNothing | MergeDone | PoolChanged | DrainRequested | Tick
)

# --- effects ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Admit:
    """Record the admission, then answer Join. Not emitted for an incarnation already admitted."""

    index: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class RejectJoin:
    """The incarnation is older than one already admitted."""

    index: int
    incarnation: int
    newest: int


@dataclass(frozen=True, slots=True)
class Start:
    """Version 0 is handed out from now on (record it)."""


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell all live Learners about a turn."""

    turn: int
    fragment: int
    closing: bool
    interval_seconds: float


@dataclass(frozen=True, slots=True)
class SkipTurn:
    turn: int
    fragment: int
    reason: str


@dataclass(frozen=True, slots=True)
class Merge:
    """Reduce exactly these contributions in this order, take the outer step, publish `version`."""

    fragment: int
    turn: int
    version: int
    contributions: tuple[Key, ...]
    reason: str  # why the round closed now


@dataclass(frozen=True, slots=True)
class Void:
    """The round closed with nothing to merge; the version stays."""

    fragment: int
    turn: int
    reason: str


@dataclass(frozen=True, slots=True)
class Hold:
    """The body came after its round: tell its Learner, keep it for the fragment's next round."""

    key: Key


@dataclass(frozen=True, slots=True)
class Refuse:
    """Settle without merging (record it), drop the body, tell the Learner to adopt the newest version."""

    key: Key
    reason: RefusalReason


@dataclass(frozen=True, slots=True)
class MarkDead:
    """Unheard: out of quorum, medians and Expected. It may be heard again."""

    index: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class MarkAlive:
    """A dead one was heard again."""

    index: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class MarkGone:
    """Record it; its unsettled work is leased again from its frontier. Emitted after its accepted bodies settled."""

    index: int
    incarnation: int
    reason: GoneReason


@dataclass(frozen=True, slots=True)
class Finish:
    """All closing rounds are over. `reason` is None when the job was drained, else why it is Complete."""

    reason: str | None


Effect = (
    Admit
    | RejectJoin
    | Start
    | Announce
    | SkipTurn
    | Merge
    | Void
    | Hold
    | Refuse
    | MarkDead
    | MarkAlive
    | MarkGone
    | Finish
)

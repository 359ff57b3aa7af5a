"""What the two threads of a Learner tell each other. Values only; each direction is one queue."""

from dataclasses import dataclass, field

from torch import Tensor

from diloco_trainer.learner.core import Adoption, Stage
from diloco_trainer.learner.work import Range

# --- exchange thread -> training thread ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Restored:
    """Joined: take these published values over and go on from `job_step`."""

    versions: list[int]
    anchors: list[Tensor] = field(repr=False)
    job_step: int
    rejoin: bool
    stamp: float
    tokens_per_second: float


@dataclass(frozen=True)
class Voided:
    """The Synchronizer had given this incarnation up: its lease and stretch are void; wait for `Restored`."""


@dataclass(frozen=True)
class Granted:
    """Work, perhaps none; `exhausted`: there is nothing left for now."""

    ranges: list[Range]
    exhausted: bool


@dataclass(frozen=True)
class TurnSeen:
    """A turn was announced; `needs_stage`: it could not be answered yet."""

    number: int
    fragment: int
    interval_seconds: float
    needs_stage: bool


@dataclass(frozen=True)
class Answered:
    """The stage of this fragment was used: no other can be until its adoption."""

    fragment: int


@dataclass(frozen=True)
class HeldBack:
    """The contribution came after its round and waits for the next one: do not wait for it."""

    fragment: int


@dataclass(frozen=True)
class PhaseIs:
    """What the job is doing."""

    phase: int  # a Phase of the protocol


@dataclass(frozen=True)
class Woken:
    """Something outside the queue changed: look again."""


@dataclass(frozen=True)
class Ended:
    """The exchange thread is over; `line` says why when that was no success."""

    code: int
    line: str


ToTraining = Restored | Voided | Adoption | Granted | TurnSeen | Answered | HeldBack | PhaseIs | Woken | Ended

# --- training thread -> exchange thread ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Staged:
    """A stage; with a turn it is sent at once, without one it waits to be asked for."""

    stage: Stage
    turn: int | None


@dataclass(frozen=True)
class AdoptionDone:
    fragment: int


@dataclass(frozen=True)
class Installed:
    """The values of `Restored` are in the model, and nothing of an earlier life is under way."""

    generation: int


@dataclass(frozen=True)
class LeaseWanted:
    """Work will run out soon."""


@dataclass(frozen=True)
class Drained:
    """Whether the training thread has nothing left to train on, as far as it has seen grants."""

    drained: bool
    num_grants: int
    """Grants with work it has seen since it was restored."""


@dataclass(frozen=True)
class FirstStep:
    """A step time is known: say so at once, turns wait for it."""


@dataclass(frozen=True)
class Depart:
    """Deliver what is open, leave, end."""

    reason: str
    within_seconds: float


ToExchange = Staged | AdoptionDone | Installed | LeaseWanted | Drained | FirstStep | Depart

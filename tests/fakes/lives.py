"""Lives of Learners as tables of what truly happened, and what operator and Synchronizer would know of it at a time.

A life is a list of (what, seconds). `train`, `wait` and `cut` are at work: `wait` in sync_wait, `cut` training unheard.
`frozen` is a process that stands still and says so afterwards, `asleep` one whose clock stood still, too. `dead`
ends an incarnation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from diloco_api.progress import LearnerProgress, LearnerState, Phase, Progress, TokenTotals
from diloco_api.states import LearnerPhase
from diloco_api.status import LearnerStatus
from diloco_operator.planning.types import OperatorPolicy

TIMEOUTS = OperatorPolicy(image="x").timeouts
HEARTBEAT, DEAD_AFTER = TIMEOUTS.heartbeat_seconds, TIMEOUTS.dead_after_seconds
STEP_SECONDS = 0.5
STEP_TOKENS = 10
_COUNTS = {
    "starting": LearnerState.INIT,
    "train": LearnerState.TRAINING,
    "cut": LearnerState.TRAINING,
    "wait": LearnerState.SYNC_WAIT,
    "frozen": LearnerState.STALLED,
}
"""What a Learner counts of itself."""
_SILENT = frozenset({"cut", "frozen", "asleep"})


@dataclass(frozen=True)
class Stretch:
    """Part of a life."""

    what: str
    begin: float
    end: float
    incarnation: int


class Life:
    """Of one index, from second 0 on."""

    def __init__(self, index: int, parts: Sequence[tuple[str, float]], site: str = "here") -> None:
        self.index = index
        self.site = site
        self.stretches: list[Stretch] = []
        at, incarnation = 0.0, 1
        for what, seconds in parts:
            if self.stretches and self.stretches[-1].what == "dead" and what != "dead":
                incarnation += 1
            self.stretches.append(Stretch(what, at, at + seconds, incarnation))
            at += seconds
        self.end = at

    def truth(self, *what: str, until: float) -> float:
        """Seconds truly spent so."""
        return sum(max(0.0, min(part.end, until) - part.begin) for part in self.stretches if part.what in what)

    def now(self, at: float) -> Stretch:
        return next((part for part in self.stretches if part.begin <= at < part.end), self.stretches[-1])

    def last_heartbeat(self, incarnation: int, at: float, away: Sequence[tuple[float, float]]) -> float | None:
        """When it was last heard; `away`: when the Synchronizer was not there."""
        mine = [part for part in self.stretches if part.incarnation == incarnation and part.what not in ("pending",)]
        at_work = [part for part in mine if part.what not in ("starting", "dead", *_SILENT)]
        for part in reversed(at_work):  # the first word after a silence comes at once
            beat = part.begin + HEARTBEAT * ((min(at, part.end - 1e-9) - part.begin) // HEARTBEAT)
            while beat >= part.begin:
                if not any(begin <= beat < end for begin, end in away):
                    return beat
                beat -= HEARTBEAT
        return None

    def counted(self, incarnation: int, until: float) -> dict[LearnerState, float]:
        """What an incarnation has counted of itself."""
        found: dict[LearnerState, float] = {}
        for part in self.stretches:
            if part.incarnation == incarnation and part.what in _COUNTS:
                seconds = max(0.0, min(part.end, until) - part.begin)
                found[_COUNTS[part.what]] = found.get(_COUNTS[part.what], 0.0) + seconds
        return found

    def row(self, at: float, away: Sequence[tuple[float, float]] = ()) -> LearnerStatus:
        """As a pass would leave it."""
        part = self.now(at)
        state, reason = LearnerPhase.RUNNING, ""
        if part.what in ("pending", "starting"):
            state = LearnerPhase.PENDING if part.what == "pending" else LearnerPhase.STARTING
        elif part.what == "dead":
            state, reason = LearnerPhase.BACK_OFF, "AppError"
        else:
            heard = self.last_heartbeat(part.incarnation, at, away)
            if heard is None:
                state = LearnerPhase.STARTING
            elif at - heard >= DEAD_AFTER and not any(begin <= at < end for begin, end in away):
                state, reason = LearnerPhase.STALLED, "Unheard"
        return LearnerStatus(
            index=self.index, site=self.site, incarnation=part.incarnation, pod_name="p", state=state.value,
            reason=reason,
        )  # fmt: skip

    def progress(self, at: float, away: Sequence[tuple[float, float]] = ()) -> list[LearnerProgress]:
        """Its incarnations as the Synchronizer tells of them."""
        found = []
        for incarnation in sorted({part.incarnation for part in self.stretches}):
            heard = self.last_heartbeat(incarnation, at, away)
            if heard is None:
                continue
            counted = self.counted(incarnation, heard)
            steps = int(counted.get(LearnerState.TRAINING, 0.0) / STEP_SECONDS)
            over = incarnation < self.now(at).incarnation
            found.append(
                LearnerProgress(
                    index=self.index, incarnation=incarnation, site=self.site,
                    live=at - heard < DEAD_AFTER and not over, gone=over, heartbeat_age_seconds=at - heard,
                    state=_COUNTS.get(self.now(heard).what, LearnerState.TRAINING), step=steps,
                    token_clock=steps * STEP_TOKENS, step_seconds=STEP_SECONDS, state_seconds=counted,
                )
            )  # fmt: skip
        return found


def progress_of(
    lives: Sequence[Life], at: float, away: Sequence[tuple[float, float]] = (), **fields: object
) -> Progress:
    """Of a job whose merged tokens are all that was trained unless `tokens` says otherwise."""
    learners = [each for life in lives for each in life.progress(at, away)]
    trained = float(sum(learner.step * STEP_TOKENS for learner in learners))
    base = Progress(
        job_uid="u", epoch=0, phase=Phase.RUNNING, served_seconds=max(0.0, at - 1), uptime_seconds=max(0.0, at - 1),
        total_served_seconds=max(0.0, at - 1),
        budget_tokens=1, percent=0, outer_steps=1, outer_rounds=1,
        tokens=TokenTotals(trained=trained, merged=trained), learners=learners,
    )  # fmt: skip
    return base.model_copy(update=fields)

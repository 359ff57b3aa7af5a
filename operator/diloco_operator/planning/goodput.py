"""Goodput as the operator sees it: training time, accepted work and uptime, as shares of what was wanted.

Learners account for their own seconds; what they cannot see (not yet started, lost, not replaced) is the rest of the
wanted Learner-seconds. Wanted time is counted up in the status, so that the shares survive restarts of the operator.
"""

from dataclasses import dataclass
from statistics import median

from diloco_api.progress import LearnerState, Progress
from diloco_api.status import GoodputStatus
from diloco_operator.planning.clock import to_seconds, to_text

_MAD_FACTOR = 3.0


@dataclass(frozen=True)
class Shares:
    """Each from 0 to 1, None while unknown; `absent_seconds`: wanted Learner-seconds no Learner lived through."""

    capacity: float | None
    accepted: float | None
    uptime: float | None
    absent_seconds: float


def wanted_time(before: GoodputStatus, replicas: int, now: float, running: bool) -> tuple[float, float]:
    """(window seconds, wanted Learner-seconds) until now. `running`: the time since the last count counts."""
    window, wanted = float(before.window_seconds or 0), float(before.wanted_seconds or 0)
    if before.accounted_time is None or not running:
        return window, wanted
    passed = max(0.0, int(now) - to_seconds(before.accounted_time))  # whole seconds, as that time is written
    return window + passed, wanted + passed * replicas


def ideal_rate(rates: list[float]) -> float | None:
    """Tokens per second of an undisturbed Learner: mean of the rates within 3 median absolute deviations."""
    if not rates:
        return None
    middle = median(rates)
    spread = median(abs(rate - middle) for rate in rates)
    near = [rate for rate in rates if abs(rate - middle) <= _MAD_FACTOR * spread] or [middle]
    return sum(near) / len(near)


def shares(progress: Progress, window: float, wanted: float) -> Shares:
    """The shares of the job so far. A Learner's rate is what it trained over the time it spent training."""
    seconds = [learner.state_seconds for learner in progress.learners]
    training = sum(states.get(LearnerState.TRAINING, 0.0) for states in seconds)
    lived = sum(sum(states.values()) for states in seconds)
    rates = [
        learner.token_clock / learner.state_seconds[LearnerState.TRAINING]
        for learner in progress.learners
        if learner.state_seconds.get(LearnerState.TRAINING, 0.0) > 0
    ]
    ideal = ideal_rate(rates)
    possible = ideal * wanted if ideal else 0.0
    return Shares(
        capacity=_share(training, wanted),
        accepted=_share(progress.tokens.merged, possible),
        uptime=_share(progress.uptime_seconds, window),
        absent_seconds=max(0.0, wanted - lived),
    )


def goodput_status(
    before: GoodputStatus, progress: Progress | None, replicas: int, now: float, running: bool
) -> GoodputStatus:
    """The new figures; without news from the Synchronizer the shares stay as they were."""
    window, wanted = wanted_time(before, replicas, now, running)
    counted = {
        "window_seconds": f"{window:.3f}",
        "wanted_seconds": f"{wanted:.3f}",
        "accounted_time": to_text(now),
    }
    if progress is None:
        return before.model_copy(update=counted)
    found = shares(progress, window, wanted)
    return GoodputStatus(
        capacity=_text(found.capacity), accepted=_text(found.accepted), uptime=_text(found.uptime), **counted
    )


def _share(part: float, whole: float) -> float | None:
    return min(1.0, part / whole) if whole > 0 else None


def _text(share: float | None) -> str:
    return "" if share is None else f"{share:.4f}"

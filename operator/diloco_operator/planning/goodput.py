"""Goodput as the operator sees it: training time, accepted work and uptime, as shares of what was wanted.

Learners account for their own seconds; what they cannot see (not yet started, lost, not replaced) is the rest of the
wanted Learner-seconds. Wanted time is counted up in the status, so that the shares survive restarts of the operator;
what a killed operator has not written is made up for by what Synchronizer and Learners have counted themselves. So
accepted <= capacity <= 1 holds by construction: nothing is cut off.
"""

from dataclasses import dataclass
from statistics import median

from diloco_api.progress import LearnerProgress, LearnerState, Progress
from diloco_api.status import GoodputStatus
from diloco_operator.planning.clock import to_seconds, to_text

_MAD_FACTOR = 3.0
LEAST_TRAINING_SECONDS = 5.0
"""A rate taken over less than this says little."""


@dataclass(frozen=True)
class Shares:
    """Each from 0 to 1, None while unknown."""

    capacity: float | None
    accepted: float | None
    uptime: float | None


def wanted_time(
    before: GoodputStatus, served_seconds: float, replicas: int, now: float, running: bool
) -> tuple[float, float]:
    """(window seconds, wanted Learner-seconds) until now. `running`: the time since the last count counts.

    The window is at least as long as the job was served (seconds).
    """
    window, wanted = float(before.window_seconds or 0), float(before.wanted_seconds or 0)
    passed = 0.0
    if before.accounted_time is not None and running:
        passed = max(0.0, int(now) - to_seconds(before.accounted_time))  # whole seconds, as that time is written
    passed = max(passed, served_seconds - window)
    return window + passed, wanted + passed * replicas


def ideal_rate(rates: list[float]) -> float | None:
    """Tokens per second of an undisturbed Learner: mean of the rates but those slower than the median by 3 MAD."""
    if not rates:
        return None
    middle = median(rates)
    spread = median(abs(rate - middle) for rate in rates)
    near = [rate for rate in rates if rate >= middle - _MAD_FACTOR * spread]
    return sum(near) / len(near)


def shares(progress: Progress, step_tokens: int, window: float, wanted: float) -> Shares:
    """The shares of the job so far; `step_tokens`: tokens of one inner step.

    A Learner's rate is what it trained over the time it spent training, both as of its last heartbeat. The ideal rate
    is never below that of all of them together: what is merged was trained in the time that was spent training.
    """
    training = sum(_training(learner) for learner in progress.learners)
    trained = float(sum(learner.step for learner in progress.learners) * step_tokens)
    rates = [
        learner.step * step_tokens / _training(learner)
        for learner in progress.learners
        if _training(learner) >= LEAST_TRAINING_SECONDS
    ]
    wanted = max(wanted, training)
    together = max(trained, progress.tokens.merged) / training if training > 0 else 0.0
    ideal = max(ideal_rate(rates) or 0.0, together)
    return Shares(
        capacity=_share(training, wanted),
        accepted=_share(progress.tokens.merged, ideal * wanted),
        uptime=_share(progress.uptime_seconds, window),
    )


def _training(learner: LearnerProgress) -> float:
    return learner.state_seconds.get(LearnerState.TRAINING, 0.0)


def goodput_status(
    before: GoodputStatus, progress: Progress | None, step_tokens: int, replicas: int, now: float, running: bool
) -> GoodputStatus:
    """The new figures; without news from the Synchronizer the shares stay as they were."""
    served = max(progress.total_served_seconds, progress.uptime_seconds) if progress is not None else 0.0
    window, wanted = wanted_time(before, served, replicas, now, running)
    counted = {
        "window_seconds": f"{window:.3f}",
        "wanted_seconds": f"{wanted:.3f}",
        "accounted_time": to_text(now),
    }
    if progress is None:
        return before.model_copy(update=counted)
    found = shares(progress, step_tokens, window, wanted)
    return GoodputStatus(
        capacity=_text(found.capacity), accepted=_text(found.accepted), uptime=_text(found.uptime), **counted
    )


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _text(share: float | None) -> str:
    return "" if share is None else f"{share:.4f}"

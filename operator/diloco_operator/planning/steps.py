"""Since when a Learner that is heard has taken no step: what is remembered from one look to the next.

In memory only: an operator that was restarted begins to count anew, so that nothing is written while all goes well.
Seconds count only while the job runs, the Synchronizer is heard, and the Learner says that it should be stepping.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from diloco_api.progress import LearnerProgress, LearnerState, Phase, Progress

_NO_STEPS_EXPECTED = frozenset({LearnerState.INIT, LearnerState.RESTORE, LearnerState.DRAIN})
STEPS_OF_PATIENCE = 20
"""A Learner is given at least this many step times for one step."""

Incarnation = tuple[int, int]
"""(index, incarnation)."""


@dataclass(frozen=True)
class LastStep:
    """The newest step of an incarnation."""

    step: int
    seen_at: float
    """When it was first seen, unix seconds."""


Steps = Mapping[Incarnation, LastStep]


def watch_steps(before: Steps, progress: Progress | None, now: float) -> Steps:
    """What is to be remembered after this look."""
    if progress is None or progress.phase is not Phase.RUNNING:
        return {}
    found = {}
    for learner in progress.learners:
        key = (learner.index, learner.incarnation)
        if learner.live and learner.state not in _NO_STEPS_EXPECTED:
            known = before.get(key)
            same = known is not None and known.step == learner.step
            found[key] = known if known is not None and same else LastStep(learner.step, now)
    return found


def step_patience(learner: LearnerProgress, progress: Progress, stall_timeout_seconds: float) -> float:
    """Seconds without a step after which a Learner is stuck."""
    times = [each.step_seconds for each in progress.learners if each.live and each.step_seconds is not None]
    slow = max(median(times) if times else 0.0, learner.step_seconds or 0.0)
    return max(stall_timeout_seconds, STEPS_OF_PATIENCE * slow)

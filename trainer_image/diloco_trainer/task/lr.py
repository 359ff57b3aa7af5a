"""Learning rate over the progress of the job, 0 to 1: linear warm-up, then cosine to a final fraction of the peak.

Two kinds of progress. Synchronous policies: cumulative step over the job's steps (arXiv 2311.08105, section 2: the
schedule is not restarted at an outer step). Decoupled policies: the stamp of the newest adopted version plus own steps
since, at the job's pace. Warm-up counts steps of the job. Clocks are read elsewhere: step times are arguments.
"""

import math
from dataclasses import dataclass

from diloco_api.train import TrainSpec


@dataclass(frozen=True)
class LearningRate:
    """Rate as a function of progress."""

    peak: float
    warmup_fraction: float
    final_fraction: float

    def at(self, progress: float) -> float:
        """Rate of a step that ends at `progress`; values beyond 1 count as 1."""
        progress = min(max(progress, 0.0), 1.0)
        if progress < self.warmup_fraction:
            return self.peak * progress / self.warmup_fraction
        span = 1.0 - self.warmup_fraction
        done = (progress - self.warmup_fraction) / span if span > 0 else 0.0
        cosine = 0.5 * (1.0 + math.cos(math.pi * done))
        return self.peak * (self.final_fraction + (1.0 - self.final_fraction) * cosine)


def step_tokens(train: TrainSpec) -> int:
    """Tokens of one inner step of one Learner."""
    return train.batch.sequences * train.data.sequence_length


def make_learning_rate(train: TrainSpec, replicas: int, budget_tokens: int) -> LearningRate:
    """The schedule of a job; `replicas` is the number wanted, never the live count."""
    warmup_tokens = train.schedule.warmup_steps * replicas * step_tokens(train)
    return LearningRate(
        peak=train.optimizer.learning_rate,
        warmup_fraction=min(1.0, warmup_tokens / budget_tokens),
        final_fraction=train.schedule.final_fraction,
    )


def budget_steps(train: TrainSpec, replicas: int, budget_tokens: int) -> int:
    """Steps of a synchronous job: every Learner takes this many."""
    sequences = math.ceil(budget_tokens / train.data.sequence_length)
    return max(1, math.ceil(sequences / (replicas * train.batch.sequences)))


class StampedProgress:
    """Progress of a Decoupled job as one Learner sees it: monotone, never above 1.

    Until the job's tokens per second and the own step time are known, every Learner is taken to step at this one's
    pace: one own step is worth `replicas` batches.
    """

    def __init__(self, nominal_step: float) -> None:
        """`nominal_step`: share of the budget of one step of all `replicas` Learners."""
        self._nominal_step = nominal_step
        self._stamp = 0.0
        self._tokens_per_second = 0.0
        self._steps_since = 0
        self._reached = 0.0

    def adopted(self, stamp: float, tokens_per_second: float) -> None:
        """A version was adopted; only a stamp newer than the last one counts."""
        if stamp > self._stamp:
            self._stamp = stamp
            self._tokens_per_second = tokens_per_second
            self._steps_since = 0

    def next_step(self, step_seconds: float | None, budget_tokens: int) -> float:
        """Progress at the end of the step about to be taken."""
        self._steps_since += 1
        share = self._nominal_step
        if step_seconds is not None and self._tokens_per_second > 0:
            share = self._tokens_per_second * step_seconds / budget_tokens
        self._reached = min(1.0, max(self._reached, self._stamp + self._steps_since * share))
        return self._reached


def ramp(steps_taken: int, ramp_steps: int) -> float:
    """Factor on the rate of a replacement's next step: linear from 1/ramp_steps to 1."""
    return 1.0 if ramp_steps <= 0 else min(1.0, (steps_taken + 1) / ramp_steps)

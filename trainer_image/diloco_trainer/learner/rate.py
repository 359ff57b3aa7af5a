"""Which learning rate the next step gets: the job's schedule, and the ramp of a replacement. No clock of its own."""

from diloco_api.run_config import RunConfig
from diloco_trainer.task.lr import StampedProgress, budget_steps, make_learning_rate, ramp, step_tokens


class Rate:
    """Learning rate of one Learner; remembers progress, so it never goes back."""

    def __init__(self, run: RunConfig) -> None:
        self._rate = make_learning_rate(run.train, run.replicas, run.budget_tokens)
        self._budget_tokens = run.budget_tokens
        self._budget_steps = budget_steps(run.train, run.replicas, run.budget_tokens)
        self._synchronous = run.policy.synchronous
        self._ramp_steps = 0
        self._rejoin_warmup_steps = run.policy.rejoin_warmup_steps
        self._steps = 0
        self._stamped = StampedProgress(run.replicas * step_tokens(run.train) / run.budget_tokens)

    def joined(self, rejoin: bool) -> None:
        """A fresh optimizer enters a job; one that has merged before makes it ramp up."""
        self._ramp_steps = self._rejoin_warmup_steps if rejoin else 0
        self._steps = 0

    def adopted(self, stamp: float, tokens_per_second: float) -> None:
        """A version with this stamp was adopted."""
        self._stamped.adopted(stamp, tokens_per_second)

    def next(self, job_step: int, step_seconds: float | None) -> float:
        """Rate of the step that follows job step `job_step`."""
        factor = ramp(self._steps, self._ramp_steps)
        self._steps += 1
        if self._synchronous:
            return factor * self._rate.at((job_step + 1) / self._budget_steps)
        return factor * self._rate.at(self._stamped.next_step(step_seconds, self._budget_tokens))

    @property
    def warmup_left(self) -> int:
        """Steps left of the ramp."""
        return max(0, self._ramp_steps - self._steps)

"""Where a Learner's seconds went.

Every second of a process is in exactly one state; times come from the caller's one monotonic clock.
"""

from diloco_api.progress import LearnerState


class StateClock:
    """Cumulative seconds per state from `now` (seconds) on; starts in `init`."""

    def __init__(self, now: float, state: LearnerState = LearnerState.INIT) -> None:
        self._state = state
        self._since = now
        self._totals = dict.fromkeys(LearnerState, 0.0)

    @property
    def state(self) -> LearnerState:
        return self._state

    def enter(self, state: LearnerState, now: float) -> None:
        """From `now` on the process is in `state`. Raises ValueError when the clock went back."""
        if now < self._since:
            raise ValueError(f"the clock went back from {self._since} to {now}")
        self._totals[self._state] += now - self._since
        self._state = state
        self._since = now

    def totals(self, now: float) -> dict[LearnerState, float]:
        """Seconds per state up to `now`, every state named; they add up to the age of the process."""
        if now < self._since:
            raise ValueError(f"the clock went back from {self._since} to {now}")
        return {**self._totals, self._state: self._totals[self._state] + (now - self._since)}

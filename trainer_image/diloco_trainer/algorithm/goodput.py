"""Where a Learner's seconds went.

Every second of a process is in exactly one state; times come from the caller's one monotonic clock. What a process
does not live through is nobody's work: seconds between two signs of life that are too far apart are `stalled`.
"""

from diloco_api.progress import LearnerState

PULSE_SECONDS = 1.0
"""A process that is not stopped gives a sign of life about this often."""
STILL_SECONDS = 5.0
"""Two signs of life further apart than this: it stood still in between. A busy machine delays one by less."""


class StateClock:
    """Cumulative seconds per state from `now` (seconds) on; starts in `init`."""

    def __init__(self, now: float, state: LearnerState = LearnerState.INIT) -> None:
        self._state = state
        self._since = now
        self._seen: float | None = None
        """The last sign of life; None: none are given."""
        self._totals = dict.fromkeys(LearnerState, 0.0)

    @property
    def state(self) -> LearnerState:
        return self._state

    def enter(self, state: LearnerState, now: float) -> None:
        """From `now` on the process is in `state`. Raises ValueError when the clock went back."""
        self._catch_up(now)
        self._advance(now)
        self._state = state

    def pulse(self, now: float) -> None:
        """A sign of life. From the first one on they come at every pulse, unless the process stands still."""
        if self._seen is not None and now - self._seen > STILL_SECONDS:
            self._advance(max(self._since, self._seen + PULSE_SECONDS))
            self._totals[LearnerState.STALLED] += now - self._since
            self._since = now
        self._seen = now

    def totals(self, now: float) -> dict[LearnerState, float]:
        """Seconds per state up to `now`, every state named; they add up to the age of the process."""
        if now < self._since:
            raise ValueError(f"the clock went back from {self._since} to {now}")
        self._catch_up(now)
        return {**self._totals, self._state: self._totals[self._state] + (now - self._since)}

    def _catch_up(self, now: float) -> None:
        """Whoever asks may be the first to wake after a standstill."""
        if self._seen is not None:
            self.pulse(now)

    def _advance(self, now: float) -> None:
        if now < self._since:
            raise ValueError(f"the clock went back from {self._since} to {now}")
        self._totals[self._state] += now - self._since
        self._since = now

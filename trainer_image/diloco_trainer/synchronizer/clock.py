"""Time as the engine is given it. Nothing else in this package reads a clock."""

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks: one for decisions, one for people and for ages over restarts."""

    def monotonic(self) -> float:
        """Seconds; never goes back."""

    def wall(self) -> float:
        """Seconds since 1970; may jump."""


class SystemClock:
    """The machine's."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

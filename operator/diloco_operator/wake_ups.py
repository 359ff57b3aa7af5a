"""What wakes the loop of one job, and how long the oldest wake-up has been waiting to be served."""

import asyncio
import time
from collections.abc import Callable

COALESCE_SECONDS = 0.02
"""Events come in bursts; one look serves them all."""


class WakeUps:
    """Many may wake, one serves."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._woken = asyncio.Event()
        self._since: float | None = None
        self._serving: float | None = None

    def wake(self) -> None:
        """Look again now."""
        if self._since is None:
            self._since = self._now()
        self._woken.set()

    def begin(self) -> None:
        """A look begins: it serves all that came before."""
        self._woken.clear()
        self._serving, self._since = self._since or self._now(), None

    def end(self) -> None:
        """The look is over."""
        self._serving = None

    @property
    def unserved_seconds(self) -> float:
        """Age of the oldest wake-up whose look is not over; 0 when there is none."""
        waiting = [since for since in (self._serving, self._since) if since is not None]
        return self._now() - min(waiting) if waiting else 0.0

    async def sleep(self, seconds: float) -> None:
        """Until somebody wakes, at most `seconds`."""
        try:
            await asyncio.wait_for(self._woken.wait(), seconds)
            await asyncio.sleep(COALESCE_SECONDS)
        except TimeoutError:
            pass

"""How long a Learner puts up with a Synchronizer that does not answer, and how it waits meanwhile."""

import asyncio
import random
from collections.abc import Callable

from diloco_trainer.wire.backoff import backoff_seconds
from diloco_trainer.wire.errors import Reason, Refused, WireError


class Orphaned(Exception):
    """The Synchronizer has been unheard for longer than a Learner may go on alone."""


class JoinAgain(Exception):
    """The Synchronizer no longer knows this incarnation, or has begun a new epoch: its stretch is void."""


class Patience:
    """Remembers when the Synchronizer was last heard. Reading it from another thread is fine."""

    def __init__(self, clock: Callable[[], float], rng: random.Random, orphan_seconds: float) -> None:
        self._clock = clock
        self._rng = rng
        self._orphan_seconds = orphan_seconds
        self._heard_at = clock()
        self._why = ""
        self.answered = True
        """Whether the last attempt to reach it succeeded."""

    def heard(self) -> None:
        self._heard_at = self._clock()
        self.answered = True

    @property
    def unheard_seconds(self) -> float:
        return self._clock() - self._heard_at

    async def pause(self, attempt: int, why: str = "") -> None:
        """Wait after failed attempt number `attempt` (from 0); raises Orphaned when it has been too long.

        `why` it failed is said then, by the last one that knows.
        """
        self._why = why or self._why
        self.answered = False
        if self.unheard_seconds > self._orphan_seconds:
            last = f": {self._why}" if self._why else ""
            raise Orphaned(f"the Synchronizer has not been heard for {self.unheard_seconds:.0f} s{last}")
        await asyncio.sleep(backoff_seconds(attempt, self._rng))

    def refused(self, error: WireError) -> None:
        """A refusal: join again where that helps, else the error itself is raised."""
        self.heard()
        if isinstance(error, Refused) and error.reason in (Reason.NOT_ADMITTED, Reason.EPOCH_MISMATCH):
            raise JoinAgain(error.message) from error
        raise error

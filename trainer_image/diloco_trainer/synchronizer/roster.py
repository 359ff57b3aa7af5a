"""What admitted Learners last said of themselves, and how fast they train. Not durable but for the totals record.

Rates come from token clocks over the last minute; before two clocks are known, from the Learner's own step time.
Whether a Learner is dead or gone is `sync_round`'s decision.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from diloco_trainer.synchronizer.records import LearnerTotals

Who = tuple[int, int]
RATE_WINDOW_SECONDS = 60.0


@dataclass(slots=True)
class Seen:
    """One incarnation since this process started."""

    totals: LearnerTotals
    heard_at: float
    clocks: deque[tuple[float, int]] = field(default_factory=deque)
    """(time, token clock) of the last minute, oldest first."""
    unsaved: bool = False


class Roster:
    """Belongs to the engine's thread."""

    def __init__(self, batch_tokens: int) -> None:
        """`batch_tokens`: tokens of one inner step of one Learner."""
        self._batch_tokens = batch_tokens
        self._seen: dict[Who, Seen] = {}

    def admit(self, totals: LearnerTotals, now: float) -> None:
        """An incarnation is a member (again)."""
        who = (totals.index, totals.incarnation)
        self._seen[who] = Seen(totals, now, deque([(now, totals.token_clock)]))

    def restore(self, totals: LearnerTotals, now: float) -> None:
        """A member of an earlier process: its saved token clock is older than `now` and says nothing of its rate."""
        self._seen[totals.index, totals.incarnation] = Seen(totals, now)

    def hear(self, totals: LearnerTotals, now: float) -> None:
        """A heartbeat; an incarnation that is no member is ignored."""
        seen = self._seen.get((totals.index, totals.incarnation))
        if seen is None:
            return
        seen.totals, seen.heard_at, seen.unsaved = totals, now, True
        seen.clocks.append((now, totals.token_clock))
        while len(seen.clocks) > 2 and seen.clocks[1][0] <= now - RATE_WINDOW_SECONDS:
            seen.clocks.popleft()

    def find(self, who: Who) -> Seen | None:
        return self._seen.get(who)

    def remove(self, who: Who) -> None:
        self._seen.pop(who, None)

    def take_unsaved(self) -> tuple[LearnerTotals, ...]:
        """Totals heard since the last call, in order of identity."""
        changed = [self._seen[who] for who in sorted(self._seen) if self._seen[who].unsaved]
        for seen in changed:
            seen.unsaved = False
        return tuple(seen.totals for seen in changed)

    def tokens_per_second(self, live: Iterable[Who]) -> float:
        """Of these Learners together; 0 while nothing is known."""
        return sum(self._rate(self._seen[who]) for who in live if who in self._seen)

    def _rate(self, seen: Seen) -> float:
        if len(seen.clocks) > 1:
            (first_at, first), (last_at, last) = seen.clocks[0], seen.clocks[-1]
            if last > first and last_at > first_at:
                return (last - first) / (last_at - first_at)
        return self._batch_tokens / seen.totals.step_seconds if seen.totals.step_seconds else 0.0

"""Global uptime: the part of the served time in which the outer step advanced within its deadline.

Time counts as up while the last merge, or the start of this process, is younger than the deadline of a round (the job's
timeouts), with the median time between merges for the usual time. Pure; `now` is monotonic seconds of this process.
"""

from collections import deque
from statistics import median

from diloco_api.timeouts import Timeouts

MEMORY = 64


class UptimeClock:
    """Continues totals of earlier processes. Time counts only while the job runs."""

    def __init__(self, now: float, served_seconds: float, uptime_seconds: float, timeouts: Timeouts) -> None:
        self._floor_seconds = timeouts.round_deadline_floor_seconds
        self._factor = timeouts.round_deadline_factor
        self._served = served_seconds
        self._up = uptime_seconds
        self._counted_to = now
        self._running = False
        self._advanced_at = now
        self._last_merge: float | None = None
        self._intervals: deque[float] = deque(maxlen=MEMORY)

    def running(self, running: bool, now: float) -> None:
        """From `now` on the job runs (Running or Closing), or not."""
        self._count(now)
        if running and not self._running:
            self._advanced_at = now
        self._running = running

    def merged(self, now: float) -> None:
        """A version has been published."""
        self._count(now)
        if self._last_merge is not None:
            self._intervals.append(now - self._last_merge)
        self._last_merge = self._advanced_at = now

    def totals(self, now: float) -> tuple[float, float]:
        """(served, up) seconds over all processes of the job."""
        self._count(now)
        return self._served, self._up

    @property
    def deadline_seconds(self) -> float:
        """Age of the last merge up to which the job is up."""
        usual = median(self._intervals) if self._intervals else 0.0
        return max(self._floor_seconds, self._factor * usual)

    def last_merge_age(self, now: float) -> float | None:
        """Seconds since the last merge of this process."""
        return None if self._last_merge is None else now - self._last_merge

    def _count(self, now: float) -> None:
        if self._running:
            self._served += now - self._counted_to
            good_until = min(now, self._advanced_at + self.deadline_seconds)
            self._up += max(0.0, good_until - self._counted_to)
        self._counted_to = now

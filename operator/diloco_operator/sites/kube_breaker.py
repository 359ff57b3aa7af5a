"""When a site is not even asked: after failures in a row, and for as long as it asked to be left alone. Pure.

Calls then fail at once with the reason kept. Whether the site is back is found out beside them (see `KubeClient`), so
that no caller ever waits for a site that is known to be gone.
"""

from dataclasses import dataclass

from diloco_operator.sites.site import SiteBusy, SiteError, SiteUnreachable


@dataclass(frozen=True)
class Pauses:
    """Between two looks whether a site is back; seconds."""

    failures_in_a_row: int = 3
    first_seconds: float = 1.0
    longest_seconds: float = 30.0

    def after(self, looks: int) -> float:
        """1, 2, 4 ... 30 s."""
        return min(self.longest_seconds, self.first_seconds * 2.0 ** min(looks, 16))


class Breaker:
    """Of one site."""

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses
        self._failures = 0
        self._kept: SiteUnreachable | None = None
        self._busy: SiteBusy | None = None
        self._busy_until = 0.0

    @property
    def open(self) -> bool:
        """The site is known not to answer."""
        return self._failures >= self._pauses.failures_in_a_row

    def refusal(self, now: float) -> SiteError | None:
        """Why a call is not made; a fresh error each time. None: make it."""
        if self.open and self._kept is not None:
            return type(self._kept)(str(self._kept))
        if self._busy is not None and now < self._busy_until:
            return SiteBusy(str(self._busy), self._busy_until - now)
        return None

    def failed(self, error: SiteUnreachable) -> None:
        """A call came to nothing."""
        self._failures += 1
        self._kept = error

    def answered(self) -> None:
        """A call was answered, with whatever."""
        self._failures = 0
        self._kept = None

    def told_to_wait(self, error: SiteBusy, now: float) -> None:
        self._busy = error
        self._busy_until = now + error.retry_after

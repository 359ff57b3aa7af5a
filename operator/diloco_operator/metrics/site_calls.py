"""Requests to the API servers of sites, by the name of the site; gone when nothing is connected to it any more."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from diloco_api.names import HUB_SITE
from diloco_operator.metrics.families import family, histogram
from diloco_operator.sites.kube import KubeSite

NO_ANSWER = "none"
_VERBS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})


class SiteCalls(Collector):
    """Counts from zero in every process, and anew when a site was disconnected."""

    def __init__(self, registry: CollectorRegistry, connected: Callable[[], Iterable[str]]) -> None:
        """`connected`: names of the connections there are."""
        self._connected = connected
        self._counts: dict[tuple[str, str, str], float] = {}
        registry.register(self)  # before the histogram: they are asked in this order, and this one tidies
        self._seconds = histogram("diloco_site_api_request_seconds", registry)

    def connect(self, name: str, *given: Any, **options: Any) -> KubeSite:
        """A site whose calls are counted."""
        site = site_of(name)
        return KubeSite(name, *given, **options, on_call=lambda *call: self.called(site, *call))

    def called(self, site: str, verb: str, status: int | None, seconds: float) -> None:
        """One request was answered with a status, or with none."""
        assert verb in _VERBS, "the client makes no other requests"
        code = NO_ANSWER if status is None else str(status)
        self._counts[site, verb, code] = self._counts.get((site, verb, code), 0.0) + 1.0
        self._seconds.labels(site, verb).observe(seconds)

    def _tidy(self) -> None:
        """Forget sites nothing is connected to; at every scrape, as calls may end after their connection."""
        here = {site_of(name) for name in self._connected()}
        for site, verb in {(site, verb) for site, verb, _ in self._counts if site not in here}:
            self._seconds.remove(site, verb)
        self._counts = {key: count for key, count in self._counts.items() if key[0] in here}

    def collect(self) -> Iterator[Metric]:
        self._tidy()
        yield family("diloco_site_api_requests_total", list(self._counts.items()))


def site_of(connection: str) -> str:
    """The hub is connected to once for every namespace."""
    return HUB_SITE if connection.startswith(f"{HUB_SITE}/") else connection

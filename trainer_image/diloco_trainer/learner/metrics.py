"""A Learner's own Prometheus endpoint, read from its account when scraped: what this incarnation counts itself."""

import errno
import math
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from diloco_trainer.learner.account import Account
from diloco_trainer.wire.errors import PortInUse
from diloco_trainer.wire.families import family

LOOPBACK = "127.0.0.1"
"""On one machine nothing else is bound; as the Synchronizer does."""


@dataclass(frozen=True)
class Place:
    """Which Learner it is."""

    job_name: str
    job_namespace: str
    site: str
    index: int


class LearnerCollector(Collector):
    """Series of one Learner process."""

    def __init__(self, account: Account, place: Place) -> None:
        self._account = account
        self._labels = (place.job_name, place.job_namespace, place.site, str(place.index))

    def collect(self) -> Iterator[Metric]:
        report = self._account.report()
        values: dict[str, float | None] = {
            "steps_total": report.step,
            "tokens_total": report.token_clock,
            "digest_mismatches_total": report.digest_mismatches,
            "job_step": report.job_step,
            "learning_rate": report.learning_rate,
            "staleness_steps": report.staleness,
            "warmup_left_steps": report.warmup_left,
            "loss": report.loss if math.isfinite(report.loss) else None,
            "step_seconds": report.step_seconds,
        }
        for name, value in values.items():
            if value is not None:
                yield family(f"diloco_incarnation_{name}", [(self._labels, value)])
        sent = (("up", report.bytes_up), ("down", report.bytes_down))
        yield family("diloco_incarnation_sync_bytes_total", [((*self._labels, way), count) for way, count in sent])
        states = report.state_seconds.items()
        yield family("diloco_incarnation_state_seconds_total", [((*self._labels, state), sec) for state, sec in states])


def serve_metrics(account: Account, place: Place, port: int, host: str = LOOPBACK) -> int:
    """Serve `/metrics` in the clear from a daemon thread; port 0 takes any free one. Returns the port.

    Raises PortInUse, one line, whatever keeps the address from being bound.
    """
    registry = CollectorRegistry()
    registry.register(LearnerCollector(account, place))
    try:
        server, _ = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be bound: {error.strerror}"
        raise PortInUse(f"metrics port {port} {why}") from error
    return int(server.server_port)

"""A Learner's own Prometheus endpoint, read from its account when scraped. Names have one home: here."""

import errno
import math
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from diloco_trainer.learner.account import Account
from diloco_trainer.wire.errors import PortInUse

LOOPBACK = "127.0.0.1"
"""On one machine nothing else is bound; as the Synchronizer does."""


class LearnerCollector(Collector):
    """Series of one Learner process."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def collect(self) -> Iterator[Metric]:
        report = self._account.report()
        yield CounterMetricFamily("diloco_learner_steps", "Inner steps of this incarnation.", value=report.step)
        yield CounterMetricFamily("diloco_learner_tokens", "Tokens this incarnation trained.", value=report.token_clock)
        yield CounterMetricFamily("diloco_learner_sent_bytes", "Payload bytes contributed.", value=report.bytes_up)
        yield CounterMetricFamily("diloco_learner_received_bytes", "Payload bytes pulled.", value=report.bytes_down)
        yield CounterMetricFamily(
            "diloco_learner_digest_mismatches", "Anchors pulled again: wrong digest.", value=report.digest_mismatches
        )
        yield GaugeMetricFamily("diloco_learner_job_step", "Position in the job's schedule.", value=report.job_step)
        yield GaugeMetricFamily("diloco_learner_learning_rate", "Rate of the last step.", value=report.learning_rate)
        yield GaugeMetricFamily("diloco_learner_staleness", "Versions the oldest fragment is behind.", report.staleness)
        yield GaugeMetricFamily("diloco_learner_warmup_left", "Steps left of a replacement's ramp.", report.warmup_left)
        if math.isfinite(report.loss):
            yield GaugeMetricFamily("diloco_learner_loss", "Mean training loss, nats per token.", value=report.loss)
        if report.step_seconds is not None:
            yield GaugeMetricFamily("diloco_learner_step_seconds", "Median inner step.", value=report.step_seconds)
        states = CounterMetricFamily("diloco_learner_state_seconds", "Seconds spent in a state.", labels=["state"])
        for state, seconds in report.state_seconds.items():
            states.add_metric([state.value], seconds)
        yield states


def serve_metrics(account: Account, port: int, host: str = LOOPBACK) -> int:
    """Serve `/metrics` in the clear from a daemon thread; port 0 takes any free one. Returns the port.

    Raises PortInUse, one line, whatever keeps the address from being bound.
    """
    registry = CollectorRegistry()
    registry.register(LearnerCollector(account))
    try:
        server, _ = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be bound: {error.strerror}"
        raise PortInUse(f"metrics port {port} {why}") from error
    return int(server.server_port)

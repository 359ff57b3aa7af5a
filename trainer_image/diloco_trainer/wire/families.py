"""Rows of `diloco_api.metrics` as what prometheus_client makes of them, for both processes of the trainer."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from diloco_api.metrics import SERIES, Kind

Labels = tuple[str, ...]
"""In the order of the table."""

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter that nobody reads


def family(name: str, samples: Iterable[tuple[Labels, float]]) -> Metric:
    """All samples of one series that is made anew at every scrape."""
    series = SERIES[name]
    made: CounterMetricFamily | GaugeMetricFamily
    if series.kind is Kind.COUNTER:
        made = CounterMetricFamily(name.removesuffix("_total"), series.help, labels=series.labels)
    else:
        made = GaugeMetricFamily(name, series.help, labels=series.labels)
    for labels, value in samples:
        made.add_metric(labels, value)
    return made


def counter(name: str, registry: CollectorRegistry) -> Counter:
    """A counter of this process."""
    series = SERIES[name]
    return Counter(name.removesuffix("_total"), series.help, series.labels, registry=registry)


def histogram(name: str, registry: CollectorRegistry) -> Histogram:
    """A histogram of this process."""
    series = SERIES[name]
    return Histogram(name, series.help, series.labels, buckets=series.buckets, registry=registry)

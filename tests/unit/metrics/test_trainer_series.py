"""What Synchronizer and Learner expose is the table, both ways; and the table itself is sound."""

from prometheus_client import CollectorRegistry

from diloco_api.metrics import JOB, LABELS, SERIES, Exposer, Kind
from diloco_trainer.learner.account import Account
from diloco_trainer.learner.metrics import LearnerCollector, Place
from diloco_trainer.synchronizer.measures import Measures
from diloco_trainer.synchronizer.metrics import Pace, ProgressCollector
from fakes.cli_sample import progress
from fakes.clock import ManualClock
from fakes.exposed import breaches, values


def synchronizer_registry() -> CollectorRegistry:
    measures = Measures("toy", "default")
    measures.outer_step(0.2, 3)
    measures.merged("north", 1)
    measures.transferred("north", "up", 0.3)
    measures.fenced("south")
    measures.registry.register(ProgressCollector("toy", "default", progress, lambda: Pace(60.0, 1.7e9)))
    return measures.registry


def test_the_synchronizer_exposes_the_table() -> None:
    assert breaches(synchronizer_registry(), Exposer.SYNCHRONIZER) == []


def test_a_learner_exposes_the_table() -> None:
    account, registry = Account(ManualClock().monotonic), CollectorRegistry()
    account.stepped(step=3, job_step=13, token_clock=96, seconds=0.5, loss=2.5, rate=1e-3, warmup_left=2)
    registry.register(LearnerCollector(account, Place("toy", "default", "north", 3)))
    assert breaches(registry, Exposer.LEARNER) == []


def test_traffic_and_fences_are_told_by_site() -> None:
    registry = synchronizer_registry()
    assert values(registry, "diloco_fenced_updates_total") == {("toy", "default", "south"): 1.0}
    sent = values(registry, "diloco_sync_bytes_total")
    assert set(sent) == {("toy", "default", "local", "up"), ("toy", "default", "local", "down")}


def test_the_table_names_series_as_prometheus_wants_them() -> None:
    for name, series in SERIES.items():
        assert name.startswith("diloco_")
        assert name.endswith("_total") == (series.kind is Kind.COUNTER), name
        assert (series.kind is Kind.HISTOGRAM) == bool(series.buckets), name
        assert list(series.buckets) == sorted(series.buckets)
        assert set(series.labels) <= LABELS.keys()
        assert not set(series.labels) & {"job", "instance"}, "Prometheus adds them itself"
        assert series.help.endswith(".")
        if {"uid", "pod", "namespace"} & set(series.labels):
            assert name.endswith("_info")
        of_jobs = name.startswith(("diloco_job_", "diloco_learner_", "diloco_tokens_", "diloco_outer_"))
        assert not of_jobs or series.labels[:2] == JOB, name

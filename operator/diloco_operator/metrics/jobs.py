"""The series of all jobs, as of the last pass of each; they are gone with the job.

Counters never go back: what the status tells is carried over restarts, and after one they appear only when the
Synchronizer was heard, as what was exposed last may not have been written. What happened to Learners between passes
(`Plan.losses`, moves) is counted from zero in every process.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from diloco_api.metrics import SERIES, Kind
from diloco_api.progress import LearnerState
from diloco_api.states import LearnerPhase
from diloco_api.status import LearnerStatus
from diloco_operator.api import JobRef
from diloco_operator.metrics.families import Labels, Samples, family, histogram
from diloco_operator.metrics.views import Figures, figures
from diloco_operator.metrics.words import LOSSES, one_of
from diloco_operator.planning.conditions import is_final
from diloco_operator.planning.rows import heard
from diloco_operator.reconciler import Pass

_REPLACEMENT = "diloco_learner_replacement_seconds"
_RESTARTS, _RELOCATIONS = "diloco_learner_restarts_total", "diloco_learner_relocations_total"
_HELD_BACK = frozenset(
    {
        "diloco_learner_state_seconds_total",
        "diloco_job_wanted_seconds_total",
        "diloco_job_uptime_seconds_total",
        "diloco_job_accepted_tokens_total",
    }
)
"""Told by the Synchronizer, in part."""
_NOT_REPLACED = frozenset({LearnerPhase.STOPPED.value, LearnerPhase.SUCCEEDED.value})
"""Rows of which no successor is wanted; one that comes later for another reason replaces nobody."""


@dataclass
class _Job:
    """What is kept of one job."""

    pair: Labels
    figures: Figures = field(default_factory=dict)
    happened: dict[str, dict[Labels, float]] = field(default_factory=dict)
    rows: dict[int, LearnerStatus] = field(default_factory=dict)
    lost: dict[int, tuple[float, str]] = field(default_factory=dict)
    """Index -> when its loss was seen, and why, until its successor trains or none is wanted."""
    reasons: set[str] = field(default_factory=set)
    """With which a replacement was observed."""
    was_heard: bool = False


class JobMetrics(Collector):
    """Register it in the process's registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._jobs: dict[JobRef, _Job] = {}
        self._replacements = histogram(_REPLACEMENT, registry)
        registry.register(self)

    def keep(self, ref: JobRef, done: Pass, expiries: dict[str, float] | None = None) -> None:
        """A pass was done."""
        job = self._jobs.setdefault(ref, _Job((done.job.metadata.name, done.job.metadata.namespace)))
        status = done.plan.live
        untold = not any(row.incarnation for row in status.goodput.heard_times)
        job.was_heard |= done.observed.progress is not None or untold or is_final(status.conditions)
        fresh = figures(done, expiries or {})
        job.figures = {
            name: _not_back(job.figures.get(name, {}), samples) if SERIES[name].kind is Kind.COUNTER else samples
            for name, samples in fresh.items()
            if job.was_heard or name not in _HELD_BACK
        }
        self._count(job, done)
        job.rows = {row.index: row for row in status.learner_statuses}

    def forget(self, ref: JobRef) -> None:
        """The job is gone."""
        job = self._jobs.pop(ref, None)
        if job is not None:
            for reason in job.reasons:
                self._replacements.remove(*job.pair, reason)

    def collect(self) -> Iterator[Metric]:
        found: dict[str, list[tuple[Labels, float]]] = {}
        for job in list(self._jobs.values()):
            for part in (job.figures, job.happened):
                for name, samples in part.items():
                    found.setdefault(name, []).extend(samples.items())
        for name, listed in found.items():
            yield family(name, listed)

    def _count(self, job: _Job, done: Pass) -> None:
        for loss in done.plan.losses:
            reason = one_of(loss.reason, LOSSES)
            self._one_more(job, _RESTARTS, (*job.pair, loss.site, reason, str(loss.counted).lower()))
            job.lost.setdefault(loss.index, (done.at, reason))
        why = {loss.index: loss.reason for loss in done.plan.losses}
        for row in done.plan.live.learner_statuses:
            before = job.rows.get(row.index)
            if before is not None and row.incarnation > before.incarnation and row.site != before.site:
                reason = one_of(why.get(row.index, before.reason), LOSSES)
                self._one_more(job, _RELOCATIONS, (*job.pair, before.site, row.site, reason))
            if row.state in _NOT_REPLACED:
                job.lost.pop(row.index, None)
            known = heard(row, done.observed.progress)
            if row.index in job.lost and known is not None and known.live and known.state is LearnerState.TRAINING:
                at, reason = job.lost.pop(row.index)
                job.reasons.add(reason)
                self._replacements.labels(*job.pair, reason).observe(done.at - at)

    def _one_more(self, job: _Job, name: str, labels: Labels) -> None:
        here = job.happened.setdefault(name, {})
        here[labels] = here.get(labels, 0.0) + 1.0


def _not_back(before: Samples, now: Samples) -> Samples:
    """Also what is not told just now stays."""
    return {labels: max(before.get(labels, 0.0), now.get(labels, 0.0)) for labels in {**before, **now}}

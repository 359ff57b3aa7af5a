"""The series of one job as of one pass: labels and values, read from what the pass saw and committed. Pure."""

from collections.abc import Iterator, Mapping

from diloco_api.names import Role
from diloco_api.states import ConditionType, GoodputState, Reason
from diloco_api.status import JobStatus, LearnerStatus
from diloco_operator.metrics.families import Labels, Samples
from diloco_operator.metrics.words import PHASES, one_of, pod_reason
from diloco_operator.planning.accounting import present_state
from diloco_operator.planning.clock import to_seconds
from diloco_operator.planning.conditions import find, is_final
from diloco_operator.planning.place import wanted_indices
from diloco_operator.planning.rows import heard
from diloco_operator.planning.sites import site_refs
from diloco_operator.planning.weights import weight
from diloco_operator.reconciler import Pass

STATUSES = ("True", "False", "Unknown")
Figures = Mapping[str, Samples]
"""By the name of the series."""


def figures(done: Pass, expiries: Mapping[str, float]) -> Figures:
    """All series of a job but those that count what happens between passes. `expiries`: of credentials, by site."""
    status = done.plan.live
    pair = (done.job.metadata.name, done.job.metadata.namespace)
    rows = _wanted(status)
    found: dict[str, dict[Labels, float]] = {}
    for name, labels, value in (
        *_of_job(done, status),
        *_of_learners(done, rows),
        *_of_goodput(done, status),
        *_of_pods(done),
        *_of_sites(done, status),
        *(("diloco_credentials_expiry_timestamp_seconds", (site,), at) for site, at in expiries.items()),
    ):
        here = found.setdefault(name, {})
        here[*pair, *labels] = here.get((*pair, *labels), 0.0) + value if name == "diloco_job_learners" else value
    return found


_Sample = tuple[str, Labels, float]


def _wanted(status: JobStatus) -> dict[int, LearnerStatus | None]:
    """Wanted indices with their rows; none of a job that is over or stopped."""
    progressing = find(status.conditions, ConditionType.PROGRESSING)
    over = progressing is not None and progressing.reason in (Reason.STOPPED, Reason.FINISHED)
    if is_final(status.conditions) or over or status.resolved is None:
        return {}
    rows = {row.index: row for row in status.learner_statuses}
    wanted = wanted_indices(rows.values(), status.learners.desired, status.resolved.policy.synchronous)
    return {index: rows.get(index) for index in sorted(wanted)}


def _of_job(done: Pass, status: JobStatus) -> Iterator[_Sample]:
    job = done.job
    yield "diloco_job_info", (job.metadata.uid, job.spec.algorithm.preset), 1.0
    for condition in status.conditions:
        for value in STATUSES:
            yield "diloco_job_condition", (condition.type, value), float(condition.status == value)
    learners = job.spec.learners
    yield "diloco_job_learners_desired", (), float(len(_wanted(status)))
    yield "diloco_job_learners_min", (), float(learners.min)
    if learners.max is not None:
        yield "diloco_job_learners_max", (), float(learners.max)


def _of_learners(done: Pass, rows: Mapping[int, LearnerStatus | None]) -> Iterator[_Sample]:
    for index, row in rows.items():
        known = heard(row, done.observed.progress) if row is not None else None
        site = row.site if row is not None else ""
        yield "diloco_job_learners", (site, present_state(row, known).value), 1.0
        counts = weight(done.job, row, on_clusters=True)
        yield "diloco_learner_weight", (str(index), counts.device), float(counts.devices)


def _of_goodput(done: Pass, status: JobStatus) -> Iterator[_Sample]:
    """Wanted seconds as far as it is known what went into them: in any window states are parts of these, never more."""
    goodput = status.goodput
    for row in goodput.learner_times:
        for state in GoodputState:  # also at zero: `rate` does not see what a series has when it appears
            milliseconds = row.milliseconds.get(state.value, 0)
            yield "diloco_learner_state_seconds_total", (row.site, str(row.index), state.value), milliseconds / 1000
    if goodput.wanted_seconds:
        rows = {row.index: row for row in status.learner_statuses}
        still_open = sum(
            row.open_milliseconds * weight(done.job, rows.get(row.index), on_clusters=True).devices / 1000
            for row in goodput.heard_times
        )
        yield "diloco_job_wanted_seconds_total", (), float(goodput.wanted_seconds) - still_open
    for name, text in (
        ("diloco_job_window_seconds_total", goodput.window_seconds),
        ("diloco_job_uptime_seconds_total", goodput.uptime_seconds),
        ("diloco_job_ideal_tokens_per_second", goodput.ideal_tokens_per_second),
    ):
        if text:
            yield name, (), float(text)
    if status.progress is not None:
        yield "diloco_job_accepted_tokens_total", (), float(status.progress.tokens)


def _of_pods(done: Pass) -> Iterator[_Sample]:
    """The newest incarnation of every index, and the Synchronizer."""
    namespaces = {ref.name: ref.namespace for ref in site_refs(done.job)}
    newest = {row.index: row.incarnation for row in done.plan.live.learner_statuses}
    for site in done.observed.sites:
        for pod in site.pods:
            learner = pod.role == Role.LEARNER.value
            if learner and pod.incarnation != newest.get(pod.index, pod.incarnation):
                continue
            index = str(pod.index) if learner else ""
            yield "diloco_pod_status", (site.name, pod.role, index, one_of(pod.phase, PHASES), pod_reason(pod)), 1.0
            if learner:
                namespace = namespaces.get(site.name, "")
                yield "diloco_learner_pod_info", (site.name, index, pod.name, namespace), 1.0


def _of_sites(done: Pass, status: JobStatus) -> Iterator[_Sample]:
    """Of a job that has ended there is nothing at a site that anybody would miss."""
    if is_final(status.conditions):
        return
    known = {row.name: row.last_contact_time for row in status.sites}
    for site in done.observed.sites:
        yield "diloco_site_reachable", (site.name,), float(not site.unreachable)
        written = known.get(site.name)
        contact = site.last_contact or (to_seconds(written) if written else None)
        if contact is not None:
            yield "diloco_site_last_contact_timestamp_seconds", (site.name,), contact

"""The end of a deleted job: nothing is wanted any more, the Synchronizer goes last, then the finalizer.

Sites that cannot be reached are waited for, but not for ever: what is left behind there is told. One that was never
reached holds nothing. The status is not written any more. A job whose namespace is being deleted is as good as deleted,
and what it has at the hub goes without us.
"""

from diloco_api import names
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.planning.clean_up import is_empty, teardown
from diloco_operator.planning.clock import to_seconds
from diloco_operator.planning.types import Event, Observed, OperatorPolicy, Plan

POLL_SECONDS = 0.5
"""Interval between two looks while something is left that can be reached."""


def deletion(job: DiLoCoJob, policy: OperatorPolicy, observed: Observed, now: float) -> Plan:
    """What shall be done about a job whose end was asked for; `finished` when it may go."""
    if names.FINALIZER not in job.metadata.finalizers:
        return Plan(job.status, job.status, finished=True)
    sites = observed.sites[1:] if observed.namespace_ends else observed.sites
    actions = tuple(teardown(sites, spare_learners=False))
    left = [site for site in sites if not site.unreachable and not is_empty(site)]
    away = [site.name for site in sites if site.unreachable and was_used(job, site.name)]
    if left:
        return Plan(job.status, job.status, actions, requeue_after=POLL_SECONDS)
    asked_at = to_seconds(job.metadata.deletion_timestamp) if job.metadata.deletion_timestamp else now
    deadline = asked_at + policy.timeouts.deletion_wait_seconds
    if away and now < deadline:
        wait = min(policy.poll_seconds, max(POLL_SECONDS, deadline - now))
        return Plan(job.status, job.status, actions, requeue_after=wait)
    text = f"was not reached within {policy.timeouts.deletion_wait_seconds:.0f} s: what the job has there stays"
    label = f"{names.LABEL_JOB_UID}={job.metadata.uid}"
    events = tuple(Event("Warning", "SiteLeftBehind", f"site {name} {text} (label {label})") for name in away)
    return Plan(job.status, job.status, actions, events, finished=True, finalizer="remove")


def was_used(job: DiLoCoJob, site: str) -> bool:
    """The site was in contact once, so that something may be there."""
    return any(row.name == site and row.cluster_uid for row in job.status.sites) or any(
        row.site == site for row in job.status.learner_statuses
    )

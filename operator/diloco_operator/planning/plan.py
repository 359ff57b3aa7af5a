"""The plan for one job: a pure, level-triggered function of the job, the operator's policy, what was observed, and now.

Reads top-down: a deleted or ended job is only cleaned up; acceptance; the sites; the Synchronizer; every Learner row;
endings; starts; conditions and figures; the difference between desired and existing objects. Planning twice on one
observation gives the same plan, and carrying a plan out twice does no harm. Nothing is done before its status is
written, nor, on clusters, before the finalizer is seen.
"""

from dataclasses import replace
from typing import Literal

from diloco_api import names
from diloco_api.progress import Phase
from diloco_api.states import ConditionType, Reason
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.planning import conditions as conditions_of
from diloco_operator.planning.acceptance import refusal, resolve_status
from diloco_operator.planning.addresses import pending_words
from diloco_operator.planning.clean_up import is_clean, is_empty, teardown, without_outlived
from diloco_operator.planning.clock import to_text
from diloco_operator.planning.connections import with_connections
from diloco_operator.planning.deletion import deletion, was_used
from diloco_operator.planning.desired import object_actions, pod_actions
from diloco_operator.planning.draft import Draft
from diloco_operator.planning.endings import Ending, completing, failing, stopping
from diloco_operator.planning.learners import Surroundings, settle_row
from diloco_operator.planning.losses import given_up, losses
from diloco_operator.planning.manifests.common import selector
from diloco_operator.planning.place import wanted_indices
from diloco_operator.planning.rows import resumed_row, silent_sites, stopped_row
from diloco_operator.planning.site_pass import openings, waits_for_address, with_marks, with_sites
from diloco_operator.planning.sites import places
from diloco_operator.planning.starts import may_start, start_due
from diloco_operator.planning.summary import described, finished
from diloco_operator.planning.synchronizer import synchronizer_state
from diloco_operator.planning.trust import of_origin, origin_of, trusted
from diloco_operator.planning.types import Event, Observed, OperatorPolicy, Plan, Stop

ENDING_POLL_SECONDS = 0.5
"""Interval between two looks while the rest of an ended job is removed."""


def plan(job: DiLoCoJob, policy: OperatorPolicy, observed: Observed, now: float) -> Plan:
    """What shall be done about a job now. See the module's docstring."""
    refs = places(job, policy, observed)
    observed = trusted(of_origin(observed, origin_of(job, policy)), refs, job.status.sites)
    rest = without_outlived(observed, now - policy.kill_margin_seconds)
    if job.metadata.deletion_timestamp is not None or observed.namespace_ends:
        return deletion(job, policy, rest, now)
    if conditions_of.is_final(job.status.conditions):
        return _after_end(job, policy, rest)
    by_name = {ref.name: ref for ref in refs}
    draft = Draft(job, policy, observed, now, job.status, tuple(job.status.conditions), by_name)
    if observed.crd_problem:
        return _outdated(draft)
    return _guarded(job, policy, _decided(_accepted(draft)))


def _decided(draft: Draft) -> Plan:
    """The plan of a job that has not ended."""
    observed, resolved = draft.observed, draft.status.resolved
    if resolved is None:
        return finished(draft)
    draft = with_sites(_begun(draft))
    if observed.fresh_start and observed.stop is Stop.NO:
        draft = _resumed(draft)
    pending = pending_words(draft.job) if waits_for_address(draft) else ""
    status = draft.status.model_copy(update={"conditions": list(draft.conditions)})
    state = synchronizer_state(status, observed, draft.now, pending)
    draft = draft.condition(ConditionType.SYNCHRONIZER_READY, (state.ready, state.reason, state.message))
    if state.fatal is not None:
        return _ended(draft, failing(draft.moment, state.fatal, f"Synchronizer: {state.message}"))
    if observed.progress is not None and observed.progress.phase is Phase.COMPLETE:
        reason = Reason(observed.progress.reason or resolved.budget_reason)
        return _ended(draft, completing(draft.moment, reason))
    draft, fatal = _settled(draft)
    if fatal:
        return _ended(draft, failing(draft.moment, Reason.FATAL_EXIT_CODE, fatal))
    if observed.stop is not Stop.NO:
        return _ended(draft, stopping(draft.moment))
    return _running(draft)


def _guarded(job: DiLoCoJob, policy: OperatorPolicy, planned: Plan) -> Plan:
    """On clusters nothing is made before the job is kept from vanishing without a trace."""
    if not policy.tls or planned.status.resolved is None or names.FINALIZER in job.metadata.finalizers:
        return planned
    return replace(planned, actions=(), finalizer="add")


def _after_end(job: DiLoCoJob, policy: OperatorPolicy, observed: Observed) -> Plan:
    """Final: the status is never written again, everything but data is removed, and then nothing holds the job."""
    sites = [site for site in observed.sites if not site.unreachable or was_used(job, site.name)]
    actions = teardown(sites, spare_learners=False)
    done = is_clean(sites)
    finalizer: Literal["keep", "remove"] = "remove" if done and names.FINALIZER in job.metadata.finalizers else "keep"
    near = any(not site.unreachable and not is_empty(site) for site in sites)
    requeue = ENDING_POLL_SECONDS if near else None  # a site that is away wakes the job when it is back
    return Plan(job.status, job.status, tuple(actions), requeue_after=requeue, finished=done, finalizer=finalizer)


def _outdated(draft: Draft) -> Plan:
    """A CRD that forgets what is written to it: act on nothing."""
    text = f"the installed CRD is older than the operator: {draft.observed.crd_problem}"
    told = draft.condition(ConditionType.ACCEPTED, (False, Reason.CRD_OUTDATED, text))
    status = draft.status.model_copy(update={"conditions": list(told.conditions)})
    known = conditions_of.find(draft.conditions, ConditionType.ACCEPTED)
    new = known is None or known.reason != Reason.CRD_OUTDATED
    events = (Event("Warning", "CRDOutdated", text),) if new else ()
    return Plan(status, status, events=events, requeue_after=draft.policy.poll_seconds)


def _accepted(draft: Draft) -> Draft:
    """Accepted, and the job's resolved form, worked out once."""
    job, policy = draft.job, draft.policy
    problem = refusal(job, draft.observed, policy.tls)
    if problem is not None:
        return draft.condition(ConditionType.ACCEPTED, (False, *problem))
    draft = draft.condition(ConditionType.ACCEPTED, (True, Reason.VALID, ""))
    if job.status.resolved is not None:
        return draft
    resolved = resolve_status(job, policy.ports, policy.image, policy.origin)
    update = {"resolved": resolved, "start_time": to_text(draft.now), "selector": selector(job)}
    event = Event("Normal", "Accepted", "the job is accepted")
    return replace(draft, status=job.status.model_copy(update=update)).told(event)


def _begun(draft: Draft) -> Draft:
    rows = {row.index: row for row in draft.status.learner_statuses}
    return replace(draft, rows=rows, attempt=max(1, draft.status.execution_attempt))


def _resumed(draft: Draft) -> Draft:
    """A new run in which nothing of earlier ones lives: a new attempt, every unfinished index due at once."""
    rows = {index: resumed_row(row) for index, row in draft.rows.items()}
    attempt = draft.status.execution_attempt + 1
    draft = replace(draft, rows=rows, attempt=attempt)
    draft = draft.condition(ConditionType.SYNCHRONIZER_READY, (False, Reason.PENDING, ""))
    draft = draft.condition(ConditionType.QUORUM_MET, (False, Reason.TOO_FEW_LEARNERS, ""))
    draft = draft.condition(ConditionType.PROGRESSING, (False, Reason.WAITING_FOR_QUORUM, ""))
    return draft.told(Event("Normal", "Started", f"execution attempt {attempt} starts"))


def _settled(draft: Draft) -> tuple[Draft, str]:
    """Every row brought up to what is seen; the second value is why the job must fail, if it must."""
    observed = draft.observed
    silent = silent_sites(list(draft.rows.values()), observed.progress, draft.policy)
    around = Surroundings(
        draft.job, draft.policy, draft.now, observed.progress, silent, observed.stepless_seconds, draft.states
    )
    sites = {site.name: site for site in observed.sites}
    rows, events, marks, fatal = {}, list(draft.events), [], ""
    for index, row in sorted(draft.rows.items()):
        outcome = settle_row(row, sites.get(row.site), around)
        rows[index] = outcome.row
        events += outcome.events
        marks += [outcome.mark] if outcome.mark is not None else []
        if outcome.fatal and not fatal:
            fatal = f"Learner {index}: {outcome.fatal}"
    draft = replace(draft, losses=losses(draft.rows, rows))
    draft = with_marks(replace(draft, rows=rows, events=tuple(events)), marks)
    return with_connections(draft, silent), fatal


def _running(draft: Draft) -> Plan:
    """Neither ended nor ending: keep the wanted Learners going."""
    learners = draft.learners
    policy = draft.status.resolved.policy if draft.status.resolved else None
    highest_first = policy is not None and policy.synchronous
    wanted = wanted_indices(draft.rows.values(), learners.replicas, highest_first)
    rows = {i: row if i in wanted else stopped_row(row, "ScaledDown") for i, row in draft.rows.items()}
    draft = replace(draft, rows=rows)
    parked = sum(row.state == "Parked" for index, row in rows.items() if index in wanted)
    if learners.replicas - parked < learners.min:
        message = f"fewer than learners.min ({learners.min}) Learners have restarts left"
        return _ended(draft, failing(draft.moment, Reason.RESTART_BUDGET_EXHAUSTED, message))
    if may_start(draft.conditions, draft.observed, rows):
        starts = start_due(draft.job, draft.observed, rows, wanted, openings(draft), draft.now)
        lost = (*draft.losses, *given_up(draft.rows, starts.rows))
        draft = replace(draft, rows=starts.rows, losses=lost).told(*starts.events)
    draft = described(draft)
    actions = (*draft.actions, *object_actions(draft.wanted), *pod_actions(draft.wanted))
    return finished(replace(draft, actions=actions))


def _ended(draft: Draft, ending: Ending) -> Plan:
    """An ending, complete or on its way."""
    was_final = ending.ended
    draft = replace(draft, conditions=ending.conditions, rows=ending.rows)
    objects = object_actions(draft.wanted) if ending.keep_objects else []
    draft = replace(draft, actions=(*objects, *ending.actions)).told(*ending.events)
    status = draft.status
    if conditions_of.is_final(ending.conditions):
        final = next(c for c in ending.conditions if c.type in ("Complete", "Failed") and c.status == "True")
        kind: Literal["Normal", "Warning"] = "Normal" if final.type == "Complete" else "Warning"
        text = f"the job is {final.type}" + (f": {final.message}" if final.message else "")
        draft = draft.told(Event(kind, final.reason, text))
        status = status.model_copy(update={"completion_time": to_text(draft.now)})
    stopped = was_final and draft.observed.stop is not Stop.NO and not conditions_of.is_final(ending.conditions)
    done = stopped and is_clean(draft.observed.sites) and not draft.actions
    built = finished(replace(draft, status=status))
    return replace(built, finished=done, requeue_after=None if done else ENDING_POLL_SECONDS)

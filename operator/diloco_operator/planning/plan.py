"""The plan for one job: a pure, level-triggered function of the job, the operator's policy, what was observed, and now.

Reads top-down: an ended job is only cleaned up; acceptance; the Synchronizer; every Learner row; endings; starts;
conditions and figures; the difference between desired and existing objects. Planning twice on one observation gives the
same plan, and carrying a plan out twice does no harm. Nothing is done before its status is written.
"""

from dataclasses import dataclass, field, replace

from diloco_api.names import ConditionType, Reason
from diloco_api.progress import Phase
from diloco_api.status import JobStatus, LearnerStatus
from diloco_api.v1alpha1 import DiLoCoJob, LearnersSpec
from diloco_operator.planning import conditions as conditions_of
from diloco_operator.planning.acceptance import broken_rule, learners_in_force, resolve_status
from diloco_operator.planning.clean_up import is_clean, teardown
from diloco_operator.planning.clock import to_seconds, to_text
from diloco_operator.planning.conditions import Conditions, with_condition
from diloco_operator.planning.desired import object_actions, pod_actions
from diloco_operator.planning.endings import Ending, Moment, completing, failing, stopping
from diloco_operator.planning.goodput import goodput_status
from diloco_operator.planning.learners import Surroundings, resumed_row, settle_row, silent_sites, stopped_row
from diloco_operator.planning.manifests.common import selector
from diloco_operator.planning.place import wanted_indices
from diloco_operator.planning.starts import Rows, may_start, start_due
from diloco_operator.planning.status import counts, progress_status, site_statuses, summary_phase, worth_writing
from diloco_operator.planning.synchronizer import synchronizer_state
from diloco_operator.planning.types import Action, Event, Observed, OperatorPolicy, Plan, Stop

ENDING_POLL_SECONDS = 0.5
"""Interval between two looks while the rest of an ended job is removed."""


@dataclass(frozen=True)
class _Draft:
    """A plan in the making."""

    job: DiLoCoJob
    policy: OperatorPolicy
    observed: Observed
    now: float
    status: JobStatus
    conditions: Conditions
    rows: Rows = field(default_factory=dict)
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    attempt: int = 1

    def condition(self, kind: ConditionType, found: tuple[bool, Reason, str]) -> "_Draft":
        value, reason, message = found
        conditions = with_condition(
            self.conditions,
            kind,
            value,
            reason,
            now=self.now,
            generation=self.job.metadata.generation,
            message=message,
        )
        return replace(self, conditions=conditions)

    @property
    def learners(self) -> LearnersSpec:
        return learners_in_force(self.job, self.status.resolved)

    @property
    def moment(self) -> Moment:
        generation = self.job.metadata.generation
        return Moment(self.conditions, self.rows, self.observed, self.policy, generation, self.now)


def plan(job: DiLoCoJob, policy: OperatorPolicy, observed: Observed, now: float) -> Plan:
    """What shall be done about a job now. See the module's docstring."""
    if conditions_of.is_final(job.status.conditions):
        return _after_end(job, observed)
    draft = _accept(job, policy, observed, now)
    resolved = draft.status.resolved
    if resolved is None:
        return _finish(draft)
    draft = _begin(draft)
    if observed.fresh_start and observed.stop is Stop.NO:
        draft = _resume(draft)
    state = synchronizer_state(draft.status.model_copy(update={"conditions": list(draft.conditions)}), observed, now)
    draft = draft.condition(ConditionType.SYNCHRONIZER_READY, (state.ready, state.reason, state.message))
    if state.fatal is not None:
        return _end(draft, failing(draft.moment, state.fatal, f"Synchronizer: {state.message}"))
    if observed.progress is not None and observed.progress.phase is Phase.COMPLETE:
        reason = Reason(observed.progress.reason or resolved.budget_reason)
        return _end(draft, completing(draft.moment, reason))
    draft, fatal = _settle_rows(draft)
    if fatal:
        return _end(draft, failing(draft.moment, Reason.FATAL_EXIT_CODE, fatal))
    if observed.stop is not Stop.NO:
        return _end(draft, stopping(draft.moment))
    return _run(draft)


def _after_end(job: DiLoCoJob, observed: Observed) -> Plan:
    """Final: no write ever again, and everything but data is removed."""
    actions = teardown(observed.sites, spare_learners=False)
    done = is_clean(observed.sites)
    requeue = None if done else ENDING_POLL_SECONDS
    return Plan(job.status, job.status, tuple(actions), requeue_after=requeue, finished=done)


def _accept(job: DiLoCoJob, policy: OperatorPolicy, observed: Observed, now: float) -> _Draft:
    """Accepted, and the job's resolved form, worked out once."""
    draft = _Draft(job, policy, observed, now, job.status, tuple(job.status.conditions))
    problem = broken_rule(job)
    if problem is not None:
        return draft.condition(ConditionType.ACCEPTED, (False, Reason.INVALID_SPEC, str(problem)))
    draft = draft.condition(ConditionType.ACCEPTED, (True, Reason.VALID, ""))
    if job.status.resolved is not None:
        return draft
    resolved = resolve_status(job, policy.ports)
    update = {"resolved": resolved, "start_time": to_text(now), "selector": selector(job)}
    event = Event("Normal", "Accepted", "the job is accepted")
    return replace(draft, status=job.status.model_copy(update=update), events=(event,))


def _begin(draft: _Draft) -> _Draft:
    rows = {row.index: row for row in draft.status.learner_statuses}
    return replace(draft, rows=rows, attempt=max(1, draft.status.execution_attempt))


def _resume(draft: _Draft) -> _Draft:
    """A new run in which nothing of earlier ones lives: a new attempt, every unfinished index due at once."""
    rows = {index: resumed_row(row) for index, row in draft.rows.items()}
    attempt = draft.status.execution_attempt + 1
    draft = replace(draft, rows=rows, attempt=attempt)
    draft = draft.condition(ConditionType.SYNCHRONIZER_READY, (False, Reason.PENDING, ""))
    draft = draft.condition(ConditionType.QUORUM_MET, (False, Reason.TOO_FEW_LEARNERS, ""))
    draft = draft.condition(ConditionType.PROGRESSING, (False, Reason.WAITING_FOR_QUORUM, ""))
    text = f"execution attempt {attempt} starts"
    return replace(draft, events=(*draft.events, Event("Normal", "Started", text)))


def _settle_rows(draft: _Draft) -> tuple[_Draft, str]:
    """Every row brought up to what is seen; the second value is why the job must fail, if it must."""
    silent = silent_sites(list(draft.rows.values()), draft.observed.progress, draft.policy)
    around = Surroundings(
        draft.job, draft.policy, draft.now, draft.observed.progress, silent, draft.observed.stepless_seconds
    )
    sites = {site.name: site for site in draft.observed.sites}
    rows, events, fatal = {}, list(draft.events), ""
    for index, row in sorted(draft.rows.items()):
        outcome = settle_row(row, sites.get(row.site), around)
        rows[index] = outcome.row
        events += outcome.events
        if outcome.fatal and not fatal:
            fatal = f"Learner {index}: {outcome.fatal}"
    return replace(draft, rows=rows, events=tuple(events)), fatal


def _run(draft: _Draft) -> Plan:
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
        return _end(draft, failing(draft.moment, Reason.RESTART_BUDGET_EXHAUSTED, message))
    if may_start(draft.conditions, draft.observed, rows):
        starts = start_due(draft.job, draft.observed, rows, wanted, draft.now)
        draft = replace(draft, rows=starts.rows, events=(*draft.events, *starts.events))
    draft = _describe(draft)
    actions = [*_objects(draft), *_pods(draft)]
    return _finish(replace(draft, actions=tuple(actions)))


def _describe(draft: _Draft) -> _Draft:
    """The conditions of a running job. Unheard, a Synchronizer says nothing: they stay."""
    progress = draft.observed.progress
    if progress is not None:
        quorum = conditions_of.quorum(progress, draft.learners.min)
        draft = draft.condition(ConditionType.QUORUM_MET, quorum)
        draft = draft.condition(ConditionType.PROGRESSING, conditions_of.progressing(progress, draft.policy))
    for kind, reason in (
        (ConditionType.QUORUM_MET, Reason.TOO_FEW_LEARNERS),
        (ConditionType.PROGRESSING, Reason.WAITING_FOR_QUORUM),
    ):
        if conditions_of.find(draft.conditions, kind) is None:
            draft = draft.condition(kind, (False, reason, ""))
    started = conditions_of.is_true(draft.conditions, ConditionType.QUORUM_MET)
    return draft.condition(ConditionType.DEGRADED, conditions_of.degraded(list(draft.rows.values()), started))


def _end(draft: _Draft, ending: Ending) -> Plan:
    """An ending, complete or on its way."""
    was_final = ending.ended
    draft = replace(draft, conditions=ending.conditions, rows=ending.rows)
    objects = _objects(draft) if ending.keep_objects else []
    draft = replace(draft, actions=(*objects, *ending.actions), events=(*draft.events, *ending.events))
    status = draft.status
    if conditions_of.is_final(ending.conditions):
        final = next(c for c in ending.conditions if c.type in ("Complete", "Failed") and c.status == "True")
        kind = "Normal" if final.type == "Complete" else "Warning"
        text = f"the job is {final.type}" + (f": {final.message}" if final.message else "")
        draft = replace(draft, events=(*draft.events, Event(kind, final.reason, text)))  # type: ignore[arg-type]
        status = status.model_copy(update={"completion_time": to_text(draft.now)})
    stopped = was_final and draft.observed.stop is not Stop.NO and not conditions_of.is_final(ending.conditions)
    finished = stopped and is_clean(draft.observed.sites) and not draft.actions
    built = _finish(replace(draft, status=status))
    return replace(built, finished=finished, requeue_after=None if finished else ENDING_POLL_SECONDS)


def _objects(draft: _Draft) -> list[Action]:
    return object_actions(
        draft.job, draft.status, draft.policy, draft.observed, list(draft.rows.values()), draft.attempt
    )


def _pods(draft: _Draft) -> list[Action]:
    return pod_actions(draft.job, draft.policy, draft.observed, draft.rows, draft.attempt)


def _was_running(draft: _Draft) -> bool:
    """The time until now was the job's: it neither waited for acceptance, nor had ended, nor was there no operator."""
    before = draft.job.status
    progressing = conditions_of.find(before.conditions, ConditionType.PROGRESSING)
    over = progressing is not None and progressing.reason in (Reason.STOPPED, Reason.FINISHED)
    return before.resolved is not None and not over and not draft.observed.fresh_start


def _finish(draft: _Draft) -> Plan:
    """Figures, counts, the one-word summary; then whether all this is worth a write."""
    job, observed, now = draft.job, draft.observed, draft.now
    rows: list[LearnerStatus] = [row for _, row in sorted(draft.rows.items())]
    progress, before = observed.progress, draft.status
    desired = draft.learners.replicas if before.resolved else 0
    goodput = goodput_status(
        before.goodput, progress, job.spec.train.step_tokens, draft.learners.replicas, now, _was_running(draft)
    )
    merged = progress.last_merge_age_seconds if progress else None
    live = before.model_copy(
        update={
            "observed_generation": job.metadata.generation,
            "conditions": list(draft.conditions),
            "phase": summary_phase(draft.conditions).value,
            "execution_attempt": draft.attempt if before.resolved else before.execution_attempt,
            "learner_statuses": rows,
            "learners": counts(rows, desired),
            "sites": site_statuses(observed.sites, rows, before),
            "site_summary": f"{sum(not site.unreachable for site in observed.sites)}/{len(observed.sites)}",
            "progress": progress_status(progress, now) if progress else before.progress,
            "last_progress_time": before.last_progress_time if merged is None else to_text(now - merged),
            "goodput": goodput,
        }
    )
    status = worth_writing(job.status, live, now, draft.policy.timeouts.progress_interval_seconds)
    return Plan(status, live, draft.actions, draft.events, _next_look(rows, draft.policy, now))


def _next_look(rows: list[LearnerStatus], policy: OperatorPolicy, now: float) -> float:
    """The end of the nearest wait, or the poll interval."""
    waits = [to_seconds(row.not_before) - now for row in rows if row.not_before is not None]
    return max(0.05, min([policy.poll_seconds, *(wait for wait in waits if wait > 0)]))

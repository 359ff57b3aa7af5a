"""From a pass's decisions to its plan: conditions of a running job, figures, counts; whether all this is written."""

from diloco_api.progress import Progress
from diloco_api.states import ConditionType, Reason
from diloco_api.status import LearnerStatus
from diloco_operator.planning import conditions as conditions_of
from diloco_operator.planning.clock import to_seconds, to_text
from diloco_operator.planning.draft import Draft
from diloco_operator.planning.goodput import Period, goodput_status
from diloco_operator.planning.newcomers import newcomers
from diloco_operator.planning.place import wanted_indices
from diloco_operator.planning.site_pass import reachable_places, site_summary
from diloco_operator.planning.status import counts, progress_status, site_statuses, summary_phase, worth_writing
from diloco_operator.planning.troubles import troubles
from diloco_operator.planning.types import OperatorPolicy, Plan
from diloco_operator.planning.weights import weight

VERDICT_SECONDS = 0.1
"""The Synchronizer is given this long to find that a Learner is dead."""


def described(draft: Draft) -> Draft:
    """The conditions of a running job. Unheard, a Synchronizer says nothing: they stay."""
    progress = draft.observed.progress
    if progress is not None:
        quorum = conditions_of.quorum(progress, draft.learners.min, reachable_places(draft.states))
        draft = draft.condition(ConditionType.QUORUM_MET, quorum)
        draft = draft.condition(ConditionType.PROGRESSING, conditions_of.progressing(progress, draft.policy))
    for kind, reason in (
        (ConditionType.QUORUM_MET, Reason.TOO_FEW_LEARNERS),
        (ConditionType.PROGRESSING, Reason.WAITING_FOR_QUORUM),
    ):
        if conditions_of.find(draft.conditions, kind) is None:
            draft = draft.condition(kind, (False, reason, ""))
    rows = list(draft.rows.values())
    found = troubles(draft.states.values(), rows)
    return draft.condition(ConditionType.DEGRADED, conditions_of.degraded(rows, _newcomers(draft), found))


def finished(draft: Draft) -> Plan:
    """Figures, counts, the one-word summary; then whether all this is worth a write."""
    job, observed, now = draft.job, draft.observed, draft.now
    rows: list[LearnerStatus] = [row for _, row in sorted(draft.rows.items())]
    progress, before = observed.progress, draft.status
    desired = draft.learners.replicas if before.resolved else 0
    goodput = goodput_status(before.goodput, progress, job.spec.train.step_tokens, _period(draft))
    merged = progress.last_merge_age_seconds if progress else None
    live = before.model_copy(
        update={
            "observed_generation": job.metadata.generation,
            "conditions": list(draft.conditions),
            "phase": summary_phase(draft.conditions, starting=_is_starting(draft)).value,
            "execution_attempt": draft.attempt if before.resolved else before.execution_attempt,
            "learner_statuses": rows,
            "learners": counts(rows, desired),
            "sites": site_statuses(observed.sites, draft.states, rows, before),
            "site_summary": site_summary(draft),
            "progress": progress_status(progress, now) if progress else before.progress,
            "last_progress_time": before.last_progress_time if merged is None else to_text(now - merged),
            "goodput": goodput,
        }
    )
    status = worth_writing(job.status, live, now, draft.policy.timeouts.progress_interval_seconds)
    next_look = _next_look(rows, progress, draft.policy, now)
    return Plan(status, live, draft.actions, draft.events, next_look, draft.losses)


def _period(draft: Draft) -> Period:
    """Since the last write. It was the job's time unless it waited for acceptance, had ended, or nobody ran it."""
    job, status = draft.job, draft.job.status
    progressing = conditions_of.find(status.conditions, ConditionType.PROGRESSING)
    reason = progressing.reason if progressing is not None else ""
    stopped = reason == Reason.STOPPED or draft.observed.fresh_start
    rows = {row.index: row for row in status.learner_statuses}
    highest_first = status.resolved is not None and status.resolved.policy.synchronous
    wanted = wanted_indices(rows.values(), status.learners.desired, highest_first)
    known = {**draft.rows, **rows}
    return Period(
        now=draft.now,
        running=status.resolved is not None and not stopped and reason != Reason.FINISHED,
        excluded=stopped,
        before=rows,
        after=draft.rows,
        wanted=wanted,
        weights={index: weight(job, known.get(index), draft.policy.tls) for index in {*wanted, *known}},
        heartbeat_seconds=draft.policy.timeouts.heartbeat_seconds,
        final=conditions_of.is_final(draft.conditions),
    )


def _newcomers(draft: Draft) -> frozenset[int]:
    pods = [pod for site in draft.observed.sites for pod in site.pods]
    return newcomers(draft.rows.values(), pods, draft.policy.timeouts.scheduling_timeout_seconds, draft.now)


def _is_starting(draft: Draft) -> bool:
    """Not whole yet, and not for long; a job that grows later is running."""
    begun = draft.status.start_time
    young = begun is not None and draft.now - to_seconds(begun) < draft.policy.timeouts.scheduling_timeout_seconds
    return young and bool(_newcomers(draft))


def _next_look(rows: list[LearnerStatus], progress: Progress | None, policy: OperatorPolicy, now: float) -> float:
    """The end of the nearest wait, when a Learner that is silent would be dead, or the poll interval."""
    waits = [to_seconds(row.not_before) - now for row in rows if row.not_before is not None]
    live = [learner for learner in progress.learners if learner.live] if progress else []
    dead_after = policy.timeouts.dead_after_seconds + VERDICT_SECONDS
    waits += [max(VERDICT_SECONDS, dead_after - learner.heartbeat_age_seconds) for learner in live]
    return max(0.05, min([policy.poll_seconds, *(wait for wait in waits if wait > 0)]))

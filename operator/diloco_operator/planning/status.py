"""Putting a status together, and deciding whether it is worth a write.

Transitions are written at once; mere progress at most every half minute, and only when there is some.
"""

from collections.abc import Iterable, Mapping, Sequence

from diloco_api.progress import Progress
from diloco_api.states import ConditionType, JobPhase, LearnerPhase, Reason, SiteConditionType
from diloco_api.status import Condition, JobStatus, LearnerCounts, LearnerStatus, ProgressStatus, SiteStatus
from diloco_operator.planning.clock import to_seconds, to_text
from diloco_operator.planning.conditions import find, is_true
from diloco_operator.planning.site_state import SiteState
from diloco_operator.planning.types import SiteView

_VOLATILE = ("progress", "goodput", "last_progress_time")


def counts(rows: Iterable[LearnerStatus], desired: int) -> LearnerCounts:
    """Learners by what their newest incarnation is doing."""
    states = [row.state for row in rows]
    ready = states.count(LearnerPhase.RUNNING.value)
    return LearnerCounts(
        desired=desired,
        ready=ready,
        active=ready + sum(states.count(state.value) for state in _AT_WORK),
        succeeded=states.count(LearnerPhase.SUCCEEDED.value),
        failed=states.count(LearnerPhase.BACK_OFF.value) + states.count(LearnerPhase.PARKED.value),
        pending=states.count(LearnerPhase.PENDING.value),
        summary=f"{ready}/{desired}",
    )


_AT_WORK = (LearnerPhase.STARTING, LearnerPhase.STALLED, LearnerPhase.UNKNOWN)
_FAILED = (LearnerPhase.BACK_OFF.value, LearnerPhase.PARKED.value)


def site_statuses(
    sites: Iterable[SiteView], states: Mapping[str, SiteState], rows: Sequence[LearnerStatus], before: JobStatus
) -> list[SiteStatus]:
    """One row a site; one that is not reachable keeps its last counts. `states`: of a cluster run."""
    known = {site.name: site for site in before.sites}
    found = []
    for site in sites:
        here = [row.state for row in rows if row.site == site.name and row.state != LearnerPhase.STOPPED.value]
        counted = {
            "desired": len(here),
            "ready": here.count(LearnerPhase.RUNNING.value),
            "failed": sum(state in _FAILED for state in here),
        }
        state = states.get(site.name)
        base = state.row if state is not None else known.get(site.name, SiteStatus(name=site.name))
        fresh = base.model_copy(update={**counted, "reason": _site_reason(site, state)})
        if site.unreachable and site.name in known:
            last = known[site.name]
            kept = {"desired": last.desired, "ready": last.ready, "failed": last.failed}
            fresh = fresh.model_copy(update=kept)
        found.append(fresh)
    return found


def _site_reason(site: SiteView, state: SiteState | None) -> str:
    if state is None:
        return site.unreachable
    away = find(state.row.conditions, SiteConditionType.REACHABLE)
    if away is not None and away.status != "True":
        return away.reason
    eligible = state.eligible
    return eligible.reason if eligible is not None and eligible.status == "False" else ""


def progress_status(progress: Progress, now: float) -> ProgressStatus:
    return ProgressStatus(
        percent=max(0, min(100, int(progress.percent))),
        tokens=max(0, int(progress.tokens.merged)),
        outer_steps=progress.outer_steps,
        outer_rounds=progress.outer_rounds,
        eta_seconds=None if progress.eta_seconds is None else max(0, int(progress.eta_seconds)),
        last_updated_time=to_text(now),
    )


def summary_phase(conditions: Sequence[Condition], *, starting: bool) -> JobPhase:
    """The conditions in one word, for people. `starting`: some Learners have not begun yet."""
    if is_true(conditions, ConditionType.COMPLETE):
        return JobPhase.COMPLETE
    if is_true(conditions, ConditionType.FAILED):
        return JobPhase.FAILED
    progressing = find(conditions, ConditionType.PROGRESSING)
    if not is_true(conditions, ConditionType.ACCEPTED) and progressing is None:
        return JobPhase.REJECTED
    if progressing is not None and progressing.reason == Reason.STOPPED:
        return JobPhase.STOPPED
    if progressing is not None and progressing.reason == Reason.FINISHED:
        return JobPhase.RUNNING  # all is merged, Learners are leaving
    if is_true(conditions, ConditionType.DEGRADED):
        return JobPhase.DEGRADED
    if starting:
        return JobPhase.STARTING
    if is_true(conditions, ConditionType.QUORUM_MET) or is_true(conditions, ConditionType.PROGRESSING):
        return JobPhase.RUNNING
    return JobPhase.STARTING


def worth_writing(old: JobStatus, new: JobStatus, now: float, interval_seconds: float) -> JobStatus:
    """`new` where something happened or it is time for progress, else `old`."""
    if old == new:
        return old
    if _without_progress(old) != _without_progress(new):
        return new
    if new.progress is None or (old.progress and _told(old.progress) == _told(new.progress)):
        return old
    if old.progress and now - to_seconds(old.progress.last_updated_time) < interval_seconds:
        return old
    return new


def _without_progress(status: JobStatus) -> JobStatus:
    empty = JobStatus()
    sites = [site.model_copy(update={"last_contact_time": None}) for site in status.sites]
    return status.model_copy(update={"sites": sites, **{name: getattr(empty, name) for name in _VOLATILE}})


def _told(progress: ProgressStatus) -> ProgressStatus:
    return progress.model_copy(update={"last_updated_time": "", "eta_seconds": None})

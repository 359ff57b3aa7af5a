"""What is wrong at the sites of a job, in the words of its condition Degraded, the worst first.

The text names site, Learner and what the cluster said, and stays the same while the trouble does.
"""

from collections.abc import Iterable, Sequence

from diloco_api.states import LearnerPhase, Reason, SiteConditionType
from diloco_api.status import Condition, LearnerStatus
from diloco_operator.planning.conditions import NOT_AT_WORK, find
from diloco_operator.planning.site_state import SiteState
from diloco_operator.planning.waiting import CONFIG, IMAGE, NOT_CREATED, UNSCHEDULABLE

Trouble = tuple[Reason, str]
_WAITING = {
    UNSCHEDULABLE: Reason.REPLACEMENT_UNSCHEDULABLE,
    IMAGE: Reason.IMAGE_PULL_FAILED,
    CONFIG: Reason.SITE_REFUSES,
    NOT_CREATED: Reason.SITE_REFUSES,
}
_DEGRADES = {
    Reason.NO_QUOTA: Reason.QUOTA_EXCEEDED,
    Reason.IMAGE_PULL_FAILED: Reason.IMAGE_PULL_FAILED,
    Reason.NO_FIT: Reason.REPLACEMENT_UNSCHEDULABLE,
    Reason.NAMESPACE_MISSING: Reason.SITE_REFUSES,
    Reason.POD_SECURITY_DENIED: Reason.SITE_REFUSES,
    Reason.FORBIDDEN: Reason.SITE_REFUSES,
    Reason.CONFIG_ERROR: Reason.SITE_REFUSES,
}
_WORST_FIRST = (
    Reason.SITE_UNREACHABLE,
    Reason.SITE_REFUSES,
    Reason.IMAGE_PULL_FAILED,
    Reason.QUOTA_EXCEEDED,
    Reason.REPLACEMENT_UNSCHEDULABLE,
    Reason.LEARNERS_MISSING,
)


def troubles(states: Iterable[SiteState], rows: Sequence[LearnerStatus]) -> list[Trouble]:
    """Of sites, and of Learners that wait there for what may not come."""
    found: list[Trouble] = []
    for state in states:
        mine = [trouble for trouble in (_of_site(state), _of_objects(state)) if trouble is not None]
        told = {reason for reason, _ in mine}
        here = [row for row in rows if row.site == state.ref.name]
        pending = [row for row in here if row.state == LearnerPhase.PENDING]
        found += mine + [trouble for trouble in _of_rows(state.ref.name, pending) if trouble[0] not in told]
        found += _of_connection(state, here)
    return sorted(found, key=lambda trouble: _WORST_FIRST.index(trouble[0]))


def _of_site(state: SiteState) -> Trouble | None:
    conditions = state.row.conditions
    reachable, eligible = (
        find(conditions, SiteConditionType.REACHABLE),
        find(conditions, SiteConditionType.ELIGIBLE),
    )
    if reachable is not None and reachable.status == "False":
        return Reason.SITE_UNREACHABLE, _told(state.ref.name, reachable)
    if eligible is not None and eligible.status == "False" and eligible.reason in _DEGRADES:
        return _DEGRADES[Reason(eligible.reason)], _told(state.ref.name, eligible)
    return None


def _of_connection(state: SiteState, here: Sequence[LearnerStatus]) -> Iterable[Trouble]:
    """Learners there are on their own; where none is any more, what was found last says nothing."""
    found = find(state.row.conditions, SiteConditionType.SYNCHRONIZER_REACHABLE)
    if found is not None and found.status == "False" and any(row.state in NOT_AT_WORK for row in here):
        yield Reason.LEARNERS_MISSING, _told(state.ref.name, found)


def _of_objects(state: SiteState) -> Trouble | None:
    for (kind, name), refusal in sorted(state.view.object_refusals.items()):
        return Reason.SITE_REFUSES, f"{state.ref.name}: {kind} {name}: {refusal.reason}: {refusal.message}"
    return None


def _of_rows(site: str, rows: Sequence[LearnerStatus]) -> Iterable[Trouble]:
    for word, reason in _WAITING.items():
        waiting = [row for row in rows if row.reason == word]
        for pool in dict.fromkeys(row.pool for row in waiting):
            here = [row for row in waiting if row.pool == pool]
            indices = ", ".join(str(row.index) for row in here[:4])
            yield reason, f"{site}: Learner {indices} in pool {pool}: {word}: {here[0].message}"


def _told(name: str, condition: Condition) -> str:
    return f"{name}: {condition.reason}" + (f": {condition.message}" if condition.message else "")

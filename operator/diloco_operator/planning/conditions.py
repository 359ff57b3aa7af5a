"""Conditions of a job: setting one, reading one, and the three that describe a running job.

Positive polarity; a condition never disappears; its time changes only when its status flips; Complete and Failed are
final and exclude each other. Messages carry no times and counters, as a changed message is a write.
"""

from collections.abc import Sequence
from typing import Literal

from diloco_api.progress import Phase, Progress
from diloco_api.states import (
    CONDITION_REASONS,
    SITE_CONDITION_REASONS,
    ConditionType,
    LearnerPhase,
    Reason,
    SiteConditionType,
)
from diloco_api.status import MAX_MESSAGE, Condition, LearnerStatus
from diloco_operator.planning.clock import to_text
from diloco_operator.planning.types import OperatorPolicy

MAX_PROBLEMS = 4
"""Of sites, told in one message."""
Conditions = tuple[Condition, ...]
_ORDER, _SITE_ORDER = list(ConditionType), list(SiteConditionType)
NOT_AT_WORK = frozenset(
    {
        LearnerPhase.PENDING.value,
        LearnerPhase.UNKNOWN.value,
        LearnerPhase.STARTING.value,
        LearnerPhase.BACK_OFF.value,
        LearnerPhase.STALLED.value,
    }
)


def find(conditions: Sequence[Condition], kind: ConditionType | SiteConditionType) -> Condition | None:
    return next((condition for condition in conditions if condition.type == kind), None)


def is_true(conditions: Sequence[Condition], kind: ConditionType | SiteConditionType) -> bool:
    condition = find(conditions, kind)
    return condition is not None and condition.status == "True"


def is_final(conditions: Sequence[Condition]) -> bool:
    """The job has ended, for ever."""
    return is_true(conditions, ConditionType.COMPLETE) or is_true(conditions, ConditionType.FAILED)


def with_condition(
    conditions: Sequence[Condition],
    kind: ConditionType,
    value: bool,
    reason: Reason,
    *,
    now: float,
    generation: int,
    message: str = "",
) -> Conditions:
    """The conditions with one set. ValueError when the reason does not belong to it."""
    if reason not in CONDITION_REASONS[kind][0 if value else 1]:
        raise ValueError(f"{reason} is no reason for {kind}={value}")
    condition = _changed(find(conditions, kind), kind, str(value), reason, message, now, generation)
    others = [other for other in conditions if other.type != kind]
    return tuple(sorted([*others, condition], key=lambda each: _ORDER.index(ConditionType(each.type))))


def with_site_condition(
    conditions: Sequence[Condition],
    kind: SiteConditionType,
    status: Literal["True", "False", "Unknown"],
    reason: Reason,
    *,
    now: float,
    generation: int,
    message: str = "",
) -> Conditions:
    """The same for a site."""
    if reason not in SITE_CONDITION_REASONS[kind][0 if status == "True" else 1]:
        raise ValueError(f"{reason} is no reason for {kind}={status}")
    condition = _changed(find(conditions, kind), kind, status, reason, message, now, generation)
    others = [other for other in conditions if other.type != kind]
    return tuple(sorted([*others, condition], key=lambda each: _SITE_ORDER.index(SiteConditionType(each.type))))


def _changed(
    before: Condition | None, kind: str, status: str, reason: Reason, message: str, now: float, generation: int
) -> Condition:
    same = before is not None and before.status == status
    return Condition(
        type=str(kind),
        status=status,
        reason=reason.value,
        message=message[:MAX_MESSAGE],
        last_transition_time=before.last_transition_time if before and same else to_text(now),
        observed_generation=generation,
    )


def quorum(progress: Progress, wanted: int, reachable: bool) -> tuple[bool, Reason, str]:
    """QuorumMet. `reachable`: some site for Learners is."""
    live = sum(learner.live for learner in progress.learners)
    if live >= wanted:
        return True, Reason.ENOUGH_LEARNERS, ""
    reason = Reason.TOO_FEW_LEARNERS if reachable else Reason.ALL_SITES_UNREACHABLE
    return False, reason, f"fewer than {wanted} Learners are heard"


def progressing(progress: Progress, policy: OperatorPolicy) -> tuple[bool, Reason, str]:
    """Progressing; the deadline of an outer step is the stall timeout."""
    age = progress.last_merge_age_seconds
    if progress.phase is Phase.WAITING or age is None:
        return False, Reason.WAITING_FOR_QUORUM, "no outer step yet"
    if age > policy.timeouts.stall_timeout_seconds:
        return False, Reason.NO_OUTER_STEP_SINCE, "no outer step within the stall timeout"
    return True, Reason.OUTER_STEP_ADVANCING, ""


def degraded(
    rows: Sequence[LearnerStatus], on_their_way: frozenset[int], problems: Sequence[tuple[Reason, str]] = ()
) -> tuple[bool, Reason, str]:
    """Degraded. `on_their_way`: who is not missing yet; `problems`: what is wrong at sites, the worst first."""
    parked = sorted(row.index for row in rows if row.state == LearnerPhase.PARKED.value)
    if parked:
        return True, Reason.LEARNER_PARKED, f"restart budget spent: Learner {_list(parked)}"
    if problems:
        return True, problems[0][0], "; ".join(dict.fromkeys(text for _, text in problems[:MAX_PROBLEMS]))
    missing = sorted(row.index for row in rows if row.state in NOT_AT_WORK and row.index not in on_their_way)
    if missing:
        return True, Reason.LEARNERS_MISSING, f"not at work: Learner {_list(missing)}"
    return False, Reason.AS_DESIRED, ""


def _list(indices: Sequence[int]) -> str:
    shown = ", ".join(str(index) for index in indices[:8])
    return shown if len(indices) <= 8 else f"{shown} and {len(indices) - 8} more"

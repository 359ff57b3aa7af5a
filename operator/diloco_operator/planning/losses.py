"""Which incarnations a pass found lost or failed. Why, and whether it counts, is in the row already."""

from collections.abc import Mapping

from diloco_api.states import LearnerPhase
from diloco_api.status import LearnerStatus
from diloco_operator.planning.incarnations import CREATING
from diloco_operator.planning.loss import Loss
from diloco_operator.planning.rows import ACTIVE
from diloco_operator.planning.site_state import NEVER_MADE
from diloco_operator.planning.waiting import NOT_CREATED

_OVER = frozenset({LearnerPhase.BACK_OFF.value, LearnerPhase.PARKED.value})


def losses(before: Mapping[int, LearnerStatus], settled: Mapping[int, LearnerStatus]) -> tuple[Loss, ...]:
    """`settled`: before any of them is started anew."""
    return tuple(
        Loss(index, row.site, row.reason, row.restarts_counted > before[index].restarts_counted)
        for index, row in sorted(settled.items())
        if before[index].state in ACTIVE and row.state in _OVER and not _never_was(before[index], row)
    )


def given_up(before: Mapping[int, LearnerStatus], after: Mapping[int, LearnerStatus]) -> tuple[Loss, ...]:
    """Those whose site was lost with them, once somebody takes their place: they might have come back until then."""
    return tuple(
        Loss(index, row.site, row.reason, counted=False)
        for index, row in sorted(before.items())
        if row.state == LearnerPhase.UNKNOWN and after[index].incarnation > row.incarnation
    )


def _never_was(before: LearnerStatus, row: LearnerStatus) -> bool:
    return before.reason in (CREATING, NOT_CREATED) and row.reason in NEVER_MADE

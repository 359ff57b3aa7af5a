"""Which incarnations a pass found lost or failed. Why, and whether it counts, is in the row already."""

from collections.abc import Mapping

from diloco_api.states import LearnerPhase
from diloco_api.status import LearnerStatus
from diloco_operator.planning.loss import Loss
from diloco_operator.planning.rows import ACTIVE

_OVER = frozenset({LearnerPhase.BACK_OFF.value, LearnerPhase.PARKED.value})


def losses(before: Mapping[int, LearnerStatus], settled: Mapping[int, LearnerStatus]) -> tuple[Loss, ...]:
    """`settled`: before any of them is started anew."""
    return tuple(
        Loss(index, row.site, row.reason, row.restarts_counted > before[index].restarts_counted)
        for index, row in sorted(settled.items())
        if before[index].state in ACTIVE and row.state in _OVER
    )

"""Learners that have not begun yet, which nobody would call missing so soon."""

from collections.abc import Iterable

from diloco_api.states import LearnerPhase
from diloco_api.status import LearnerStatus
from diloco_operator.planning.types import PodView

_BEGINNING = frozenset({LearnerPhase.PENDING.value, LearnerPhase.STARTING.value})


def newcomers(
    rows: Iterable[LearnerStatus], pods: Iterable[PodView], patience_seconds: float, now: float
) -> frozenset[int]:
    """Indices whose first incarnation is on its way: its pod is still to come, or not older than `patience_seconds`."""
    overdue = {pod.name for pod in pods if now - pod.created_at >= patience_seconds}
    return frozenset(
        row.index
        for row in rows
        if row.state in _BEGINNING and row.restarts == 0 and not row.running_since and row.pod_name not in overdue
    )

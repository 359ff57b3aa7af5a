"""Which incarnations start now: indices wanted, waits over, the Synchronizer heard once, and never more pods than
allowed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from diloco_api.names import Role
from diloco_api.progress import Phase
from diloco_api.states import ConditionType, LearnerPhase, Reason
from diloco_api.status import Condition, LearnerStatus
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.planning.conditions import find
from diloco_operator.planning.incarnations import begin, newest_known
from diloco_operator.planning.place import Room, Spot, choose
from diloco_operator.planning.rows import ACTIVE, is_due
from diloco_operator.planning.site_state import NEVER_MADE
from diloco_operator.planning.types import Event, Observed, PodView

Rows = dict[int, LearnerStatus]
STARTED, MOVED = "LearnerStarted", "LearnerMoved"
"""Reasons of the events that tell of a new incarnation: index, incarnation, site, and why there is one."""


@dataclass(frozen=True)
class Starts:
    rows: Rows
    events: tuple[Event, ...] = ()


HEARD = frozenset({Reason.READY, Reason.RESTORING_STATE, Reason.ADDRESS_PENDING})
"""Reasons of SynchronizerReady that say it has been heard since this start."""


def heard_once(conditions: tuple[Condition, ...]) -> bool:
    """The Synchronizer has served since this start. Before that no Learner starts: it might never be able to."""
    condition = find(conditions, ConditionType.SYNCHRONIZER_READY)
    return condition is not None and condition.reason in HEARD


def may_start(conditions: tuple[Condition, ...], observed: Observed, rows: Mapping[int, LearnerStatus]) -> bool:
    """Whether there is, or may be, work for a new incarnation."""
    progressing = find(conditions, ConditionType.PROGRESSING)
    if progressing is not None and progressing.reason == Reason.FINISHED:
        return False
    phase = observed.progress.phase if observed.progress else None
    if phase is Phase.CLOSING:
        return not any(row.state in ACTIVE for row in rows.values())
    return phase in (None, Phase.WAITING, Phase.RUNNING) and heard_once(conditions)


@dataclass(frozen=True)
class Openings:
    """Where new incarnations may go, and which Learners would rather be elsewhere."""

    rooms: tuple[Room, ...]
    stuck: frozenset[int] = frozenset()
    """Indices whose incarnation cannot run where it is: they move as soon as another place takes them."""


def start_due(
    job: DiLoCoJob, observed: Observed, rows: Rows, wanted: frozenset[int], openings: Openings, now: float
) -> Starts:
    """Give every wanted index whose wait is over its next incarnation, up to the cap on pods."""
    started, events = dict(rows), []
    pods = [pod for site in observed.sites for pod in site.pods if pod.role == Role.LEARNER]
    room = pod_cap(len(wanted)) - sum(_occupies(pod, now) for pod in pods) - _unseen(rows, pods)
    for index in sorted(wanted):
        row = started.get(index)
        adopted = _adoptable(index, row, pods)
        if adopted is not None:
            site = next(site.name for site in observed.sites if adopted in site.pods)
            started[index] = begin(job, index, adopted.incarnation, (site, row.pool if row else ""), row)
            continue
        moving = row is not None and index in openings.stuck
        if room <= 0 or not (row is None or moving or is_due(row, now)):
            continue
        spot = _spot(openings, started, row, moving)
        if spot is None:
            continue
        room -= 1
        newest = newest_known(index, row, pods, observed.progress)
        again = row is not None and _was_never_made(row) and (row.site, row.incarnation) == (spot[0], newest)
        incarnation = newest if again else newest + 1
        started[index] = begin(job, index, incarnation, spot, row)
        events += [] if again else [_told(index, incarnation, spot[0], row)]
    return Starts(started, tuple(events))


def _was_never_made(row: LearnerStatus) -> bool:
    """There never was a pod of this incarnation: trying again costs nobody a word, and no number."""
    return row.state == LearnerPhase.BACK_OFF and row.reason in NEVER_MADE and not row.running_since


def _spot(openings: Openings, rows: Rows, row: LearnerStatus | None, moving: bool) -> Spot | None:
    """Of the others; a site that is tried again has no second Learner on its way."""
    others = {index: other for index, other in rows.items() if row is None or index != row.index}
    busy = {other.site for other in others.values() if other.state in (LearnerPhase.PENDING, LearnerPhase.STARTING)}
    rooms = [room for room in openings.rooms if not (room.probing and room.name in busy)]
    if row is None or not moving:
        return choose(rooms, _load(others), row.site if row else None)
    return choose(rooms, _load(others), leave=(row.site, row.pool))


def _told(index: int, incarnation: int, site: str, row: LearnerStatus | None) -> Event:
    why = f": {row.reason}" if row is not None and row.reason else ""
    if row is None or row.site == site:
        text = f"Learner {index} starts as incarnation {incarnation} at site {site}{why}"
        return Event("Normal", STARTED, text)
    text = f"Learner {index} moves from site {row.site} to {site} as incarnation {incarnation}{why}"
    return Event("Normal", MOVED, text)


def pod_cap(replicas: int) -> int:
    """Pods a job may have at once: each index one at work and one on its way out."""
    return 2 * replicas


def _adoptable(index: int, row: LearnerStatus | None, pods: list[PodView]) -> PodView | None:
    """A live pod newer than status knows: status was lost, the pod is ours."""
    newer = [p for p in pods if p.index == index and p.live and p.incarnation > (row.incarnation if row else 0)]
    return max(newer, key=lambda pod: pod.incarnation, default=None)


def _occupies(pod: PodView, now: float) -> bool:
    """Finished pods and those that outlived their grace period (their node is gone) take no room."""
    return not pod.finished and (pod.delete_by is None or now <= pod.delete_by)


def _unseen(rows: Rows, pods: list[PodView]) -> int:
    """Incarnations that are committed and have no pod yet."""
    seen = {(pod.index, pod.incarnation) for pod in pods}
    pending = [row for row in rows.values() if row.state == LearnerPhase.PENDING]
    return sum((row.index, row.incarnation) not in seen for row in pending)


def _load(rows: Rows) -> dict[Spot, int]:
    load: dict[Spot, int] = {}
    for row in rows.values():
        if row.state in ACTIVE:
            load[row.site, row.pool] = load.get((row.site, row.pool), 0) + 1
    return load

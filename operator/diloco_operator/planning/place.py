"""Which indices a job shall have, and at which site and node pool the next incarnation of an index goes.

Sticky: a Learner stays where it was while that place takes it. Says nothing about when an incarnation starts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from diloco_api.states import LearnerPhase
from diloco_api.status import LearnerStatus

_NOT_WANTED = frozenset({LearnerPhase.STOPPED.value})


def wanted_indices(rows: Iterable[LearnerStatus], replicas: int, highest_first: bool) -> frozenset[int]:
    """Fill the lowest free index; give up those that do not run first, then the highest.

    `highest_first`: always the highest, because work belongs to indices below `replicas` (synchronous policies).
    """
    present = [row for row in rows if row.state not in _NOT_WANTED]
    running = {row.index for row in present if row.state in (LearnerPhase.RUNNING.value, LearnerPhase.STALLED.value)}
    indices = {row.index for row in present}
    if highest_first:
        return frozenset(range(replicas))
    while len(indices) > replicas:
        indices.discard(max(indices - running or indices))
    free = (index for index in range(replicas + len(indices)) if index not in indices)
    while len(indices) < replicas:
        indices.add(next(free))
    return frozenset(indices)


@dataclass(frozen=True)
class Room:
    """A site as a place for new Learners."""

    name: str
    order: int = 0
    """Place in the order of preference."""
    least: int = 0
    most: int | None = None
    weight: int = 1
    pools: tuple[str, ...] = ("",)
    full: frozenset[str] = frozenset()
    """Node pools without room."""
    probing: bool = False
    """It has refused a Learner, and may be tried again with one at a time."""


Load = Mapping[tuple[str, str], int]
"""Learners by (site, node pool)."""
Spot = tuple[str, str]
"""(site, node pool)."""


def choose(rooms: Sequence[Room], load: Load, stay: str | None = None, leave: Spot | None = None) -> Spot | None:
    """Where a new incarnation goes; None: nowhere now.

    To the site it was at (`stay`); else to sites below their minimum, in their order; else where there is least load
    for the weight; else to sites of weight 0. There, to the node pool with fewest. Never to what it has to `leave`.
    """
    spots = {room.name: _pool(room, load, leave) for room in rooms}
    candidates = [room for room in rooms if spots[room.name] is not None and not _is_full(room, load)]
    if not candidates:
        return None
    chosen = next((room for room in candidates if room.name == stay), None)
    if chosen is None:
        chosen = min(candidates, key=lambda room: _rank(room, _at(room, load)))
    pool = spots[chosen.name]
    assert pool is not None, "it is a candidate"
    return chosen.name, pool


def _rank(room: Room, load: int) -> tuple[int, float, int]:
    if load < room.least:
        return 0, 0.0, room.order
    if room.weight > 0:
        return 1, (load + 1) / room.weight, room.order
    return 2, float(load), room.order


def _at(room: Room, load: Load) -> int:
    return sum(count for (site, _), count in load.items() if site == room.name)


def _is_full(room: Room, load: Load) -> bool:
    return room.most is not None and _at(room, load) >= room.most


def _pool(room: Room, load: Load, leave: Spot | None) -> str | None:
    free = [pool for pool in room.pools if room.probing or pool not in room.full]
    free = [pool for pool in free if (room.name, pool) != leave]
    return min(free, key=lambda pool: load.get((room.name, pool), 0), default=None)

"""Which indices a job shall have, and at which site the next incarnation of an index goes.

Load and order decide between sites. Says nothing about when an incarnation starts.
"""

from collections.abc import Iterable, Mapping, Sequence

from diloco_api.names import LearnerPhase
from diloco_api.status import LearnerStatus
from diloco_operator.planning.types import SiteView

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


def choose_site(sites: Sequence[SiteView], load: Mapping[str, int], stay: str | None) -> str:
    """A reachable site for a new incarnation: where the index was before, else the one with least load.

    No reachable site: the first one, where it waits.
    """
    reachable = [site.name for site in sites if not site.unreachable]
    if stay in reachable:
        return str(stay)
    order = {name: position for position, name in enumerate(reachable)}
    ranked = sorted(reachable, key=lambda name: (load.get(name, 0), order[name]))
    return ranked[0] if ranked else sites[0].name

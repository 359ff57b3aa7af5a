"""What a pass thinks of all sites: their states before and after Learners were looked at, and the openings they are.

The policies for one site are in `site_state`, the choice between sites in `place`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from diloco_api import names
from diloco_api.states import LearnerPhase
from diloco_operator.planning.addresses import addresses
from diloco_operator.planning.draft import Draft
from diloco_operator.planning.place import Room
from diloco_operator.planning.site_state import SiteState, overdue_there, site_state
from diloco_operator.planning.starts import Openings
from diloco_operator.planning.waiting import Mark, overdue


def with_sites(draft: Draft) -> Draft:
    """The states of all sites as they were just seen; none on one machine."""
    if not draft.policy.tls:
        return draft
    before = {site.name: site for site in draft.status.sites}
    views = {view.name: view for view in draft.observed.sites}
    states = {
        name: site_state(ref, views[name], before.get(name), draft.site_moment)
        for name, ref in draft.refs.items()
        if name in views
    }
    events = [event for state in states.values() for event in state.events]
    return replace(draft, states=states, events=(*draft.events, *events))


def with_marks(draft: Draft, marks: Iterable[Mark]) -> Draft:
    """What Learners have met with is held against their sites."""
    states, events = dict(draft.states), list(draft.events)
    for mark in marks:
        if mark.site in states:
            before = states[mark.site]
            states[mark.site] = overdue_there(before, mark, draft.site_moment)
            events += states[mark.site].events[len(before.events) :]
    return replace(draft, states=states, events=tuple(events))


def openings(draft: Draft) -> Openings:
    """Where new incarnations may go now, and who should move there."""
    if not draft.policy.tls:
        reachable = [(number, view) for number, view in enumerate(draft.observed.sites) if not view.unreachable]
        return Openings(tuple(Room(view.name, number) for number, view in reachable))
    rooms = [_room(state) for state in draft.states.values() if state.open and _has_address(draft, state)]
    return Openings(tuple(rooms), frozenset(_stuck(draft)))


def reachable_places(states: Mapping[str, SiteState]) -> bool:
    """Some site that takes Learners answers; true on one machine."""
    takers = [state for state in states.values() if state.ref.takes_learners]
    return not takers or any(state.reachable for state in takers)


def site_summary(draft: Draft) -> str:
    """`reachable/all` sites."""
    if draft.states:
        return f"{sum(state.reachable for state in draft.states.values())}/{len(draft.states)}"
    views = draft.observed.sites
    return f"{sum(not view.unreachable for view in views)}/{len(views)}"


def waits_for_address(draft: Draft) -> bool:
    """Learners of some site do not know yet where the Synchronizer is."""
    takers = [state for state in draft.states.values() if state.ref.takes_learners]
    return any(not _has_address(draft, state) for state in takers if not state.view.unreachable)


def _room(state: SiteState) -> Room:
    ref = state.ref
    return Room(
        ref.name,
        ref.order,
        least=ref.learners.min,
        most=ref.learners.max,
        weight=ref.learners.weight,
        pools=tuple(pool.name for pool in ref.pools),
        full=frozenset(state.row.full_pools),
        probing=state.probing,
    )


def _has_address(draft: Draft, state: SiteState) -> bool:
    """One that was written there once stays until there is a new one."""
    assert draft.status.resolved is not None, "only an accepted job has Learners"
    key = ("ConfigMap", names.address_name(draft.job.metadata.name, draft.job.metadata.uid))
    port = draft.status.resolved.ports.synchronizer
    known = addresses(draft.job, state.ref, port, draft.policy, draft.observed)
    return known is not None or key in state.view.objects


def _stuck(draft: Draft) -> list[int]:
    """Learners whose site is lost with them, and pods that have waited for too long."""
    return [
        row.index
        for row in draft.rows.values()
        if row.state == LearnerPhase.UNKNOWN or overdue(row, draft.policy.timeouts, draft.now) is not None
    ]

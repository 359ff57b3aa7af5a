"""Whether the Learners of each site reach the Synchronizer, and why not, in their own words.

A Learner that gave up has said why; one that still tries says so in its log. The end of a log is looked at only at a
site none of whose Learners is heard, one Learner's at a time and seldom; where logs may not be read, only the silence
is known. Nothing else is decided by what a log says.
"""

from collections.abc import Mapping
from dataclasses import replace

from diloco_api.names import Role
from diloco_api.reach import last_said
from diloco_api.states import Reason, SiteConditionType
from diloco_api.status import LearnerStatus
from diloco_operator.planning.classify import FailureClass
from diloco_operator.planning.conditions import find
from diloco_operator.planning.draft import Draft
from diloco_operator.planning.redact import redacted
from diloco_operator.planning.rows import ACTIVE, heard
from diloco_operator.planning.site_state import SiteState, with_synchronizer_reachable
from diloco_operator.planning.types import LogTail, PodView, ReadLog

READ_AGAIN_SECONDS = 30.0
"""Between two looks at logs of one site."""
BELIEVED_SECONDS = 3 * READ_AGAIN_SECONDS
"""What a log said is not held to be so for longer, should it not be to be had again."""
UNHEARD_SECONDS = 10.0
"""A Learner that is not heard this long after its start may have something to say."""
_GAVE_UP: Mapping[str, Reason] = {
    FailureClass.TLS.value: Reason.TLS_FAILURE,
    FailureClass.UNAUTHENTICATED.value: Reason.AUTH_FAILURE,
}
_Found = tuple[Reason, str]


def with_connections(draft: Draft, silent: frozenset[str]) -> Draft:
    """The sites' conditions, and what is to be read for them."""
    states: dict[str, SiteState] = {}
    reads: list[ReadLog] = []
    for name, state in draft.states.items():
        rows = [row for row in draft.rows.values() if row.site == name]
        unheard = _unheard(draft, state, rows)
        states[name] = _judged(draft, state, rows, unheard, name in silent)
        due = _next_to_read(draft, state, unheard)
        reads += [ReadLog(name, due.name, Role.LEARNER.value)] if due is not None else []
    return replace(draft, states=states, actions=(*draft.actions, *reads))


def _judged(
    draft: Draft, state: SiteState, rows: list[LearnerStatus], unheard: list[PodView], silent: bool
) -> SiteState:
    asked = state.view.log_tail if _is_of_now(draft, state, unheard) else None
    found = (Reason.CONNECTED, "") if _any_live(draft, rows) and not silent else _why(rows, asked)
    if found is None and (silent or _never_heard(draft, unheard, asked)):
        found = _silence(state, asked)
    return with_synchronizer_reachable(state, *found, draft.site_moment) if found is not None else state


def _never_heard(draft: Draft, unheard: list[PodView], asked: LogTail | None) -> bool:
    """Nobody was ever heard for half of the time Learners are given for that, and what they say cannot be read."""
    patience = draft.policy.timeouts.stall_timeout_seconds / 2
    long = bool(unheard) and min(pod.age_seconds for pod in unheard) >= patience
    return long and asked is not None and bool(asked.problem)


def _any_live(draft: Draft, rows: list[LearnerStatus]) -> bool:
    known = [heard(row, draft.observed.progress) for row in rows if row.state in ACTIVE]
    return any(learner is not None and learner.live for learner in known)


def _is_of_now(draft: Draft, state: SiteState, unheard: list[PodView]) -> bool:
    """What was read last is of a Learner that still is not heard."""
    tail = state.view.log_tail
    return tail is not None and draft.now - tail.read_at <= BELIEVED_SECONDS and tail.pod in {p.name for p in unheard}


def _why(rows: list[LearnerStatus], asked: LogTail | None) -> _Found | None:
    """What a Learner of the site says it is that it does not reach the Synchronizer."""
    for row in rows:
        if row.reason in _GAVE_UP:
            reason = _GAVE_UP[row.reason]
            return reason, row.message.removeprefix(f"{reason.value}: ")
    said = last_said(asked.text) if asked is not None else None
    return (Reason(said.failure.value), redacted(said.message)) if said is not None else None


def _silence(state: SiteState, asked: LogTail | None) -> _Found:
    """Nobody says why. What was said before holds until somebody has been asked again."""
    known = find(state.row.conditions, SiteConditionType.SYNCHRONIZER_REACHABLE)
    if asked is None and known is not None and known.status == "False":
        return Reason(known.reason), known.message
    if asked is None or not asked.problem:
        return Reason.HEARTBEATS_STALE, ""
    if asked.problem == Reason.FORBIDDEN:
        hint = "the site's account may not get pods/log (rbac.podLogs of the chart diloco-site)"
        return Reason.HEARTBEATS_STALE, f"why is not known: {hint}"
    return Reason.HEARTBEATS_STALE, f"why is not known: logs there cannot be read: {asked.problem}"


def _unheard(draft: Draft, state: SiteState, rows: list[LearnerStatus]) -> list[PodView]:
    """Pods that run and should be heard, at a site where nobody is; by their index."""
    if state.view.unreachable or draft.observed.progress is None or _any_live(draft, rows):
        return []
    names = {row.pod_name for row in rows if row.state in ACTIVE}
    pods = [pod for pod in state.view.pods if pod.name in names and pod.live and pod.phase == "Running"]
    return sorted((pod for pod in pods if pod.age_seconds >= UNHEARD_SECONDS), key=lambda pod: pod.index)


def _next_to_read(draft: Draft, state: SiteState, unheard: list[PodView]) -> PodView | None:
    """The same one while it has something to say, else the next in turn."""
    tail = state.view.log_tail
    if not unheard or tail is None:
        return next(iter(unheard), None)
    if draft.now - tail.read_at < READ_AGAIN_SECONDS:
        return None
    last = next((pod for pod in unheard if pod.name == tail.pod), None)
    if last is None:
        return unheard[0]
    if last_said(tail.text) is not None:
        return last
    return next((pod for pod in unheard if pod.index > last.index), unheard[0])

"""What is thought of each site of a cluster run: its conditions, and whether new Learners may go there.

Reachable is Unknown from the first failure and False after a grace; only then, and never by an operator that has just
started, is a site lost. Eligible is taken away by what a site refuses or cannot hold, and given back when a Learner
started there, or, for a site that came back, after a cool-down. A site that may be tried again is given one Learner.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from diloco_api.states import SITE_CONDITION_REASONS, Reason, SiteConditionType
from diloco_api.status import Condition, SiteStatus
from diloco_operator.planning.clock import to_seconds, to_text
from diloco_operator.planning.conditions import Conditions, find, is_true, with_site_condition
from diloco_operator.planning.sites import SiteRef
from diloco_operator.planning.types import Event, OperatorPolicy, PodView, SiteView
from diloco_operator.planning.waiting import Mark

_ELIGIBLE, _REACHABLE = SiteConditionType.ELIGIBLE, SiteConditionType.REACHABLE
_UNREACHABLE_WORDS = {
    reason.value: reason
    for reason in (
        Reason.TIMEOUT,
        Reason.TCP_FAILURE,
        Reason.TLS_FAILURE,
        Reason.DNS_FAILURE,
        Reason.UNAUTHORIZED,
        Reason.FORBIDDEN,
        Reason.CLUSTER_IDENTITY_CHANGED,
        Reason.SAME_CLUSTER,
        Reason.SECRET_MISSING,
        Reason.SECRET_INVALID,
    )
}
FORGET_COOL_DOWNS = 10
"""Cool-downs after which what was held against a site is forgotten, where nobody met with it again."""
WORKS_AFTER_SECONDS = 60.0
"""A container that runs for this long got past the start of Python, torch and its GPU."""
SUSPECT_AFTER_SECONDS = 10.0
"""A site that does not answer at once is merely slow, or busy."""
_CERTAIN = frozenset(
    {Reason.CLUSTER_IDENTITY_CHANGED, Reason.SAME_CLUSTER, Reason.SECRET_MISSING, Reason.SECRET_INVALID}
)
"""Nothing that may be over in a moment."""
REFUSED = {
    "QuotaExceeded": Reason.NO_QUOTA,
    "PodSecurityDenied": Reason.POD_SECURITY_DENIED,
    "NamespaceMissing": Reason.NAMESPACE_MISSING,
    "Forbidden": Reason.FORBIDDEN,
    "Invalid": Reason.CONFIG_ERROR,
}
"""Reasons of refusals that any Learner would meet there, and what they are called at the site."""
_AT_CREATION = frozenset(REFUSED.values()) - {Reason.CONFIG_ERROR}
NEVER_MADE = frozenset(REFUSED) | {reason.value for reason in _AT_CREATION}
"""Reasons of waiting rows whose pod was refused, or not even tried where others were refused."""
_CUT_OFF = SITE_CONDITION_REASONS[SiteConditionType.SYNCHRONIZER_REACHABLE][1]


@dataclass(frozen=True)
class SiteState:
    """One site in this pass."""

    ref: SiteRef
    view: SiteView
    row: SiteStatus
    """As it will be written, but for the counts."""
    lost: bool = False
    """Unreachable for so long that Learners there that are unheard are given up."""
    refuses: bool = False
    """It refuses new pods just now; those that are committed and not created need not be tried."""
    probing: bool = False
    """To be tried with one Learner."""
    open: bool = True
    """New Learners may go there."""
    events: tuple[Event, ...] = ()

    @property
    def reachable(self) -> bool:
        """It answers, or has done so a moment ago."""
        return is_true(self.row.conditions, _REACHABLE)

    @property
    def eligible(self) -> Condition | None:
        return find(self.row.conditions, _ELIGIBLE)


@dataclass(frozen=True)
class SiteMoment:
    """What all sites are judged with."""

    policy: OperatorPolicy
    watched_seconds: float
    generation: int
    now: float


def site_state(ref: SiteRef, view: SiteView, before: SiteStatus | None, moment: SiteMoment) -> SiteState:
    """A site as it is before the rows of its Learners were looked at."""
    row = before or SiteStatus(name=view.name)
    conditions, events, came_back = _reachable(tuple(row.conditions), view, moment)
    contact = view.last_contact
    if not view.unreachable:
        contact = moment.now if contact is None else contact
    update = {
        "conditions": list(conditions),
        "cluster_uid": row.cluster_uid or view.cluster_uid,
        "secret_name": ref.secret or "",
        "namespace": "" if ref.is_hub else ref.namespace,
        "last_contact_time": row.last_contact_time if contact is None else to_text(contact),
    }
    state = SiteState(ref, view, row.model_copy(update=update), events=events, lost=_lost(conditions, moment))
    if came_back:
        return marked(state, Mark(ref.name, "", Reason.COOLING_DOWN, "it has just come back"), moment)
    refusal = _refusal(view)
    if refusal is not None and not (_held(state, refusal.reason) and moment.now < _until(state)):
        return marked(state, refusal, moment)
    return _judged(_forgiven(state, moment), moment)


def overdue_there(state: SiteState, mark: Mark, moment: SiteMoment) -> SiteState:
    """As `marked`, for a pod that waits for too long; what is known already is not held against a site again."""
    known = mark.pool in state.row.full_pools if mark.reason is Reason.NO_FIT else _held(state, mark.reason)
    return state if known else marked(state, mark, moment)


def marked(state: SiteState, mark: Mark, moment: SiteMoment) -> SiteState:
    """The site with something held against it. A full node pool counts only when all of them are."""
    until = to_text(moment.now + moment.policy.timeouts.site_cool_down_seconds)
    full = list(state.row.full_pools)
    if mark.reason is Reason.NO_FIT:
        full = sorted({*full, mark.pool})
    row = state.row.model_copy(update={"full_pools": full, "not_before": until})
    state = replace(state, row=row)
    if mark.reason is Reason.NO_FIT and any(pool.name not in full for pool in state.ref.pools):
        return _judged(_with_eligible(state, "True", Reason.OK, "", moment), moment)
    refuses = mark.reason in _AT_CREATION
    return _judged(replace(_with_eligible(state, "False", mark.reason, mark.message, moment), refuses=refuses), moment)


def with_synchronizer_reachable(state: SiteState, reason: Reason, message: str, moment: SiteMoment) -> SiteState:
    """Whether the site's Learners reach the Synchronizer."""
    status: Literal["True", "False"] = "True" if reason is Reason.CONNECTED else "False"
    return _with(state, SiteConditionType.SYNCHRONIZER_REACHABLE, status, reason, message, moment)


def _reachable(before: Conditions, view: SiteView, moment: SiteMoment) -> tuple[Conditions, tuple[Event, ...], bool]:
    """(conditions, events, whether the site came back from being lost)."""
    known = find(before, _REACHABLE)
    away = known is not None and known.status == "False"
    if not view.unreachable:
        conditions = _set(before, _REACHABLE, "True", Reason.CONNECTED, "", moment)
        events = (Event("Normal", "SiteReachable", f"site {view.name} can be reached again"),) if away else ()
        return conditions, events, away and known is not None and Reason(known.reason) not in _CERTAIN
    reason = _UNREACHABLE_WORDS.get(view.unreachable, Reason.SERVER_ERROR)
    if view.last_contact is not None and moment.now - view.last_contact < SUSPECT_AFTER_SECONDS:
        return before, (), False
    grace = moment.policy.timeouts.site_lost_after_seconds
    since = min(to_seconds(known.last_transition_time), view.last_contact or math.inf) if known else moment.now
    over = known is not None and known.status == "Unknown" and moment.now - since >= grace
    status: Literal["False", "Unknown"] = "False" if away or over or reason in _CERTAIN else "Unknown"
    same = known is not None and (known.status, known.reason) == (status, reason.value)
    message = known.message if same and known is not None else view.message
    conditions = _set(before, _REACHABLE, status, reason, message, moment)
    told = Event("Warning", "SiteUnreachable", f"site {view.name} cannot be reached: {reason.value}: {message}")
    return conditions, (told,) if status == "False" and not away else (), False


def _lost(conditions: Conditions, moment: SiteMoment) -> bool:
    condition = find(conditions, _REACHABLE)
    if condition is None or condition.status != "False":
        return False
    grace = moment.policy.timeouts.site_lost_after_seconds
    certain = Reason(condition.reason) in _CERTAIN
    over = not certain or moment.now - to_seconds(condition.last_transition_time) >= grace
    return over and moment.watched_seconds >= grace


def _refusal(view: SiteView) -> Mark | None:
    """What the site has just refused, when any Learner would be."""
    for refusal in view.refusals.values():
        if refusal.reason in REFUSED:
            return Mark(view.name, "", REFUSED[refusal.reason], refusal.message)
    for refusal in view.object_refusals.values():
        if refusal.reason == "NamespaceMissing":
            return Mark(view.name, "", Reason.NAMESPACE_MISSING, refusal.message)
    return None


def _held(state: SiteState, reason: Reason) -> bool:
    eligible = state.eligible
    return eligible is not None and (eligible.status, eligible.reason) == ("False", reason.value)


def _until(state: SiteState) -> float:
    """When it may be tried again."""
    return to_seconds(state.row.not_before) if state.row.not_before else 0.0


def _forgiven(state: SiteState, moment: SiteMoment) -> SiteState:
    """Nothing is held against a site for ever.

    A cool-down ends, a Learner that starts proves the contrary, and what nobody has met with again is forgotten: with
    all Learners at work elsewhere none would ever be tried there.
    """
    eligible, over = state.eligible, moment.now >= _until(state)
    if state.view.unreachable:
        return state
    if eligible is None or eligible.status == "True":
        if over and not _has_learner(state, "Pending"):
            state = replace(state, row=state.row.model_copy(update={"full_pools": [], "not_before": None}))
        return _with_eligible(state, "True", Reason.OK, "", moment)
    if Reason(eligible.reason) in _CUT_OFF:  # that a pod runs says nothing of that
        proven = is_true(state.row.conditions, SiteConditionType.SYNCHRONIZER_REACHABLE)
    else:
        proven = any(_proves(pod, eligible, moment.now) for pod in state.view.pods if pod.role == "learner")
    if proven or _is_forgotten(state, moment) or (eligible.reason == Reason.COOLING_DOWN and over):
        row = state.row.model_copy(update={"full_pools": [], "not_before": None})
        return _with_eligible(replace(state, row=row), "True", Reason.OK, "", moment)
    refuses = Reason(eligible.reason) in _AT_CREATION and not over
    return replace(state, refuses=refuses)


def _is_forgotten(state: SiteState, moment: SiteMoment) -> bool:
    """Nobody waits there, and it could have been tried again for long."""
    cut_off = state.eligible is not None and Reason(state.eligible.reason) in _CUT_OFF
    waits = _has_learner(state, *(("Pending", "Running") if cut_off else ("Pending",)))
    wait = (FORGET_COOL_DOWNS - 1) * moment.policy.timeouts.site_cool_down_seconds
    return not waits and moment.now >= _until(state) + wait


def _has_learner(state: SiteState, *phases: str) -> bool:
    """Some live Learner's pod there is in one of these phases."""
    pods = [pod for pod in state.view.pods if pod.role == "learner" and pod.live]
    return any(pod.phase in phases for pod in pods)


def _proves(pod: PodView, eligible: Condition, now: float) -> bool:
    """A pod that came about after the trouble began, or, where pods came about but did not run, runs since.

    A configuration that does not fit, or a GPU that cannot be used, shows a while after the start only.
    """
    since, reason = to_seconds(eligible.last_transition_time), Reason(eligible.reason)
    if reason in _AT_CREATION:
        return pod.created_at > since
    least = WORKS_AFTER_SECONDS if reason is Reason.CONFIG_ERROR else 0.0
    return pod.phase == "Running" and pod.age_seconds >= least and now - pod.age_seconds > since


def _judged(state: SiteState, moment: SiteMoment) -> SiteState:
    """Whether it may be given Learners, and how many at a time."""
    eligible = is_true(state.row.conditions, _ELIGIBLE)
    may = state.reachable and state.ref.takes_learners and (eligible or moment.now >= _until(state))
    return replace(state, open=may, probing=may and not eligible)


def _with_eligible(
    state: SiteState, status: Literal["True", "False"], reason: Reason, message: str, moment: SiteMoment
) -> SiteState:
    before = state.eligible
    if not state.ref.takes_learners:
        return state
    if before is not None and (before.status, before.reason) == (status, reason.value):
        message = before.message
    changed = _with(state, _ELIGIBLE, status, reason, message, moment)
    name = state.ref.name
    if status == "False" and reason is not Reason.COOLING_DOWN and (before is None or before.reason != reason):
        text = f"site {name} takes no new Learners: {reason.value}: {message}"
        return replace(changed, events=(*changed.events, Event("Warning", "SiteIneligible", text)))
    if status == "True" and before is not None and before.status == "False":
        text = f"site {name} takes new Learners again"
        return replace(changed, events=(*changed.events, Event("Normal", "SiteEligible", text)))
    return changed


def _with(
    state: SiteState,
    kind: SiteConditionType,
    status: Literal["True", "False"],
    reason: Reason,
    message: str,
    moment: SiteMoment,
) -> SiteState:
    conditions = _set(tuple(state.row.conditions), kind, status, reason, message, moment)
    return replace(state, row=state.row.model_copy(update={"conditions": list(conditions)}))


def _set(
    conditions: Conditions,
    kind: SiteConditionType,
    status: Literal["True", "False", "Unknown"],
    reason: Reason,
    message: str,
    moment: SiteMoment,
) -> Conditions:
    return with_site_condition(
        conditions, kind, status, reason, now=moment.now, generation=moment.generation, message=message
    )

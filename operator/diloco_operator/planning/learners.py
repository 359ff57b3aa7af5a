"""What becomes of one Learner index: from its row in status and what is seen of it to its new row and what to do.

Covers the states of `LearnerPhase`. The end of an incarnation is counted once: the row leaves it in the same write.
Silence of Synchronizer or site is no reason to end anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from diloco_api.progress import LearnerProgress, Phase, Progress
from diloco_api.states import ConditionType, LearnerPhase, Reason, SiteConditionType
from diloco_api.status import JobStatus, LearnerStatus
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.planning.backoff import backoff_seconds, failures_in_a_row
from diloco_operator.planning.classify import FailureClass, Verdict, classify
from diloco_operator.planning.clock import to_seconds, to_text
from diloco_operator.planning.conditions import find
from diloco_operator.planning.incarnations import CREATING
from diloco_operator.planning.redact import redacted
from diloco_operator.planning.rows import ACTIVE, SITE_SILENT, heard, stopped_row, waits_for_a_site
from diloco_operator.planning.site_state import REFUSED, SiteState
from diloco_operator.planning.steps import step_patience
from diloco_operator.planning.types import Event, OperatorPolicy, PodView, SiteView
from diloco_operator.planning.waiting import NOT_CREATED, Mark, not_created, overdue, waiting_row

NAME_CONFLICT = "NameConflict"
NOT_ANSWERED = frozenset(
    {"Timeout", "TCPFailure", "TLSFailure", "DNSFailure", "Unauthorized", "ServerError", "TooManyRequests"}
)
"""Reasons of refusals that say nothing about the pod: it may even be there. It is asked for again."""

TURNED_AWAY = 3
"""Nodes that refuse or evict a Learner so many times in a row are no place for it."""


@dataclass(frozen=True)
class Surroundings:
    """What the decisions about all indices of a job share."""

    job: DiLoCoJob
    policy: OperatorPolicy
    now: float
    progress: Progress | None
    silent_sites: frozenset[str]
    """Sites none of whose Learners is heard: the network's fault, not theirs."""
    stepless_seconds: Mapping[tuple[int, int], float]
    """As observed."""
    sites: Mapping[str, SiteState] = field(default_factory=dict)
    """Of a cluster run; empty on one machine."""

    @property
    def max_restarts(self) -> int:
        return self.job.spec.failure_policy.max_restarts

    @property
    def phase(self) -> Phase | None:
        return self.progress.phase if self.progress else None


@dataclass(frozen=True)
class Outcome:
    """A row and what led to it."""

    row: LearnerStatus
    fatal: str = ""
    """The job must fail: why."""
    events: tuple[Event, ...] = ()
    mark: Mark | None = None
    """What is held against its site."""


def settle_row(row: LearnerStatus, site: SiteView | None, around: Surroundings) -> Outcome:
    """Bring a row up to what is seen; never starts a new incarnation. `site` is where the row's incarnation is."""
    if row.state not in ACTIVE:
        return Outcome(_unparked(row, around))
    if around.sites and row.site not in around.sites:
        text = f"Learner {row.index} leaves site {row.site}, which the job does not name any more"
        event = Event("Normal", f"Learner{FailureClass.SITE_REMOVED.value}", text)
        return Outcome(waits_for_a_site(row, FailureClass.SITE_REMOVED.value, ""), events=(event,))
    if site is None or site.unreachable:
        return _out_of_sight(row, around)
    pods = [pod for pod in site.pods if pod.index == row.index and pod.role == "learner"]
    pod = next((pod for pod in pods if pod.incarnation == row.incarnation), None)
    if pod is None:
        return _unseen(row, site, around)
    if pod.finished:
        return _judged(row, pod, classify(pod, around.phase), around)
    if pod.deleting and pod.node_silent and around.progress is None:
        return Outcome(row)  # its cluster wants it away, but it may well be at work: nobody can be asked
    if pod.deleting and not (pod.node_silent and _is_heard(row, around)):
        ran = pod.age_seconds if pod.phase == "Running" else 0.0
        text = "its pod is being deleted" + (f": {pod.disruption}" if pod.disruption else "")
        return _failed(row, Verdict(FailureClass.DISRUPTION, False, text, taken=True), ran, around)
    return _seen(row, pod, around)


def revived(status: JobStatus) -> JobStatus:
    """A failed job the user starts again: its end is taken back, restart budgets are new, incarnations live on."""
    rows = []
    for row in status.learner_statuses:
        update = {"restarts_counted": 0, "failures": 0, "not_before": None, "state": LearnerPhase.STOPPED.value}
        rows.append(row if row.state == LearnerPhase.SUCCEEDED else row.model_copy(update=update))
    kept = [condition for condition in status.conditions if condition.type != ConditionType.FAILED]
    return status.model_copy(update={"conditions": kept, "learner_statuses": rows, "completion_time": None})


def _unparked(row: LearnerStatus, around: Surroundings) -> LearnerStatus:
    """A parked row whose budget was raised waits for its next incarnation."""
    if row.state == LearnerPhase.PARKED.value and row.restarts_counted <= around.max_restarts:
        return row.model_copy(update={"state": LearnerPhase.BACK_OFF.value, "not_before": None})
    return row


def _is_heard(row: LearnerStatus, around: Surroundings) -> bool:
    known = heard(row, around.progress)
    return known is not None and known.live


def _out_of_sight(row: LearnerStatus, around: Surroundings) -> Outcome:
    """Its site does not answer: as it was, until the site is lost and the Learner is not heard either."""
    state = around.sites.get(row.site)
    if state is None or around.progress is None:
        return Outcome(row)
    if _is_heard(row, around):
        back = row.state in (LearnerPhase.UNKNOWN.value, LearnerPhase.STALLED.value)
        return Outcome(_running(row, around.now) if back else row)
    patience = around.policy.timeouts.site_lost_after_seconds
    if not state.lost or around.progress.served_seconds < patience:
        return Outcome(row)
    return Outcome(_state(row, LearnerPhase.UNKNOWN, "SiteUnreachable", "neither its site nor itself is heard"))


def _unseen(row: LearnerStatus, site: SiteView, around: Surroundings) -> Outcome:
    """No pod of this incarnation: not created yet, or gone without our wish."""
    refusal, state = site.refusals.get(row.pod_name), around.sites.get(row.site)
    if refusal is not None and refusal.reason in NOT_ANSWERED:
        waiting = not_created(row, f"{refusal.reason}: {refusal.message}", around.now)
        return Outcome(waiting, mark=overdue(waiting, around.policy.timeouts, around.now))
    if state is not None and refusal is not None and refusal.reason in REFUSED:
        return Outcome(waits_for_a_site(row, refusal.reason, refusal.message))
    if state is not None and state.refuses and row.reason in (CREATING, NOT_CREATED):
        reason = state.eligible.reason if state.eligible else ""
        return Outcome(waits_for_a_site(row, reason, ""))
    if refusal is not None:
        return _failed(row, Verdict(_refused(refusal.reason), False, refusal.message), 0.0, around, refusal.reason)
    if row.reason in (CREATING, NOT_CREATED) and heard(row, around.progress) is None:
        return Outcome(row)
    ran = around.now - to_seconds(row.running_since) if row.running_since else 0.0
    return _failed(row, Verdict(FailureClass.LOST, False, "its pod has vanished", taken=True), ran, around)


def _refused(reason: str) -> FailureClass:
    return FailureClass.LOST if reason == NAME_CONFLICT else FailureClass.PLACEMENT


def _judged(row: LearnerStatus, pod: PodView, verdict: Verdict, around: Surroundings) -> Outcome:
    """The pod is over."""
    if verdict.kind is FailureClass.UNDECIDED:
        return Outcome(row)
    if verdict.kind is FailureClass.COMPLETED:
        update = {
            "state": LearnerPhase.SUCCEEDED.value,
            "reason": verdict.kind.value,
            "message": "",
            "not_before": None,
        }
        return Outcome(row.model_copy(update=update), events=(_event(row, verdict, "Normal"),))
    if verdict.kind is FailureClass.ENDED and around.phase is not Phase.RUNNING:
        return Outcome(stopped_row(row, verdict.kind.value))
    ran = pod.ended.ran_seconds if pod.ended else 0.0
    outcome = _failed(row, verdict, ran, around)
    if verdict.kind is FailureClass.DEVICE and row.site in around.sites:
        outcome = replace(outcome, mark=Mark(row.site, row.pool, Reason.CONFIG_ERROR, verdict.message))
    turned_away = verdict.kind is FailureClass.PLACEMENT or (
        verdict.kind is FailureClass.DISRUPTION and not verdict.taken
    )
    if turned_away and outcome.row.failures >= TURNED_AWAY and row.site in around.sites:
        outcome = replace(outcome, mark=Mark(row.site, row.pool, Reason.NO_FIT, verdict.message))
    if verdict.kind is FailureClass.FATAL:
        return replace(outcome, fatal=verdict.message)
    return outcome


def _failed(
    row: LearnerStatus, verdict: Verdict, healthy_seconds: float, around: Surroundings, reason: str = ""
) -> Outcome:
    """Count what counts; then the row waits for its next incarnation, or is parked."""
    counted = row.restarts_counted + (1 if verdict.counts else 0)
    failures = failures_in_a_row(row.failures, healthy_seconds, around.policy)
    parked = counted > around.max_restarts
    wait = backoff_seconds(failures, f"{around.job.metadata.uid}/{row.index}/{row.incarnation}", around.policy)
    if verdict.taken and row.running_since:
        failures, wait = failures - 1, 0.0
    update = {
        "state": (LearnerPhase.PARKED if parked else LearnerPhase.BACK_OFF).value,
        "reason": reason or verdict.kind.value,
        "message": redacted(verdict.message)[:256],
        "reason_since": None,
        "restarts_counted": counted,
        "failures": failures,
        "not_before": to_text(around.now + wait) if wait and not parked else None,
    }
    return Outcome(row.model_copy(update=update), events=(_event(row, verdict, "Warning", parked),))


def _event(row: LearnerStatus, verdict: Verdict, kind: str, parked: bool = False) -> Event:
    name = f"Learner {row.index} (incarnation {row.incarnation})"
    end = " and is parked: its restart budget is spent" if parked else ""
    reason = "LearnerParked" if parked else f"Learner{verdict.kind.value}"
    if kind == "Normal":
        return Event("Normal", reason, f"{name} has ended well")
    return Event("Warning", reason, f"{name} was lost{end}: {verdict.message or verdict.kind.value}")


def _seen(row: LearnerStatus, pod: PodView, around: Surroundings) -> Outcome:
    """The pod runs or is being started."""
    if pod.phase != "Running":
        waiting = waiting_row(row, pod, around.now)
        return Outcome(waiting, mark=overdue(waiting, around.policy.timeouts, around.now))
    known = heard(row, around.progress)
    if pod.node_silent and around.progress is not None and not _is_heard(row, around):
        return _on_a_silent_node(row, pod, known, around)
    if around.progress is None and row.state != LearnerPhase.PENDING.value:
        return Outcome(row)
    patience = around.policy.timeouts.stall_timeout_seconds
    silent = pod.age_seconds if known is None else known.heartbeat_age_seconds
    if around.progress is not None and silent >= patience and around.progress.served_seconds >= patience:
        cut_off = _cut_off(row, around) if known is None else None
        return cut_off or _stalled(row, pod.age_seconds - silent, around)
    if known is None:
        return Outcome(_state(row, LearnerPhase.STARTING, "", ""))
    if known.gone:  # on its way out, or given up and not long enough silent
        return Outcome(row)
    if not known.live:
        return Outcome(_state(row, LearnerPhase.STALLED, "Unheard", ""))
    return _stuck(row, pod, known, around) or Outcome(_running(row, around.now))


def _on_a_silent_node(row: LearnerStatus, pod: PodView, known: LearnerProgress | None, around: Surroundings) -> Outcome:
    """Neither its node nor itself is heard: dead now, whenever its pod will be gone."""
    assert around.progress is not None, "it was asked"
    patience = around.policy.timeouts.dead_after_seconds
    silent = pod.age_seconds if known is None else known.heartbeat_age_seconds
    if min(silent, around.progress.served_seconds) < patience:
        return Outcome(row)
    verdict = Verdict(FailureClass.NODE_LOST, False, "neither its node nor itself is heard", taken=True)
    return _failed(row, verdict, pod.age_seconds - silent, around)


def _running(row: LearnerStatus, now: float) -> LearnerStatus:
    since = row.running_since or to_text(now)
    return _state(row, LearnerPhase.RUNNING, "", "").model_copy(update={"running_since": since})


def _stuck(row: LearnerStatus, pod: PodView, known: LearnerProgress, around: Surroundings) -> Outcome | None:
    """Heard, and without a step for too long, while the Synchronizer served all the time."""
    assert around.progress is not None, "the Learner is known"
    stepless = around.stepless_seconds.get((row.index, row.incarnation), 0.0)
    patience = step_patience(known, around.progress, around.policy.timeouts.stall_timeout_seconds)
    if stepless < patience or around.progress.served_seconds < patience:
        return None
    text = f"heard, but without a step for longer than {patience:.0f} s"
    return _failed(row, Verdict(FailureClass.STALLED, True, text), pod.age_seconds - stepless, around)


def _cut_off(row: LearnerStatus, around: Surroundings) -> Outcome | None:
    """Never heard, and its site is known not to reach the Synchronizer: not its fault, and no place to start again."""
    site = around.sites.get(row.site)
    way = find(site.row.conditions, SiteConditionType.SYNCHRONIZER_REACHABLE) if site is not None else None
    if way is None or way.status != "False":
        return None
    text = f"Learners do not reach the Synchronizer: {way.message}" if way.message else "no Learner was ever heard"
    return Outcome(waits_for_a_site(row, way.reason, text), mark=Mark(row.site, row.pool, Reason(way.reason), text))


def _stalled(row: LearnerStatus, healthy_seconds: float, around: Surroundings) -> Outcome:
    """Silent for too long, while the Synchronizer served all the time."""
    if row.site in around.silent_sites:
        return Outcome(_state(row, LearnerPhase.STALLED, SITE_SILENT, "no Learner of its site is heard"))
    verdict = Verdict(FailureClass.STALLED, True, "unheard for longer than the stall timeout")
    return _failed(row, verdict, healthy_seconds, around)


def _state(row: LearnerStatus, state: LearnerPhase, reason: str, message: str) -> LearnerStatus:
    update = {"state": state.value, "reason": reason[:63], "message": redacted(message)[:256], "reason_since": None}
    return row.model_copy(update=update)

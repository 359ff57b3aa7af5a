"""The three ways a run ends: Complete, Failed, Stopped. What is written, what is removed, and in which order.

Learners that were told the end get a moment to leave by themselves. An end is written before anything of it is removed;
a final job is never written again.
"""

from dataclasses import dataclass, replace

from diloco_api.names import Role
from diloco_api.progress import Phase
from diloco_api.states import ConditionType, LearnerPhase, Reason
from diloco_api.status import LearnerStatus
from diloco_operator.planning.clean_up import teardown
from diloco_operator.planning.clock import to_seconds
from diloco_operator.planning.conditions import Conditions, find, with_condition
from diloco_operator.planning.rows import ACTIVE, stopped_row
from diloco_operator.planning.starts import heard_once
from diloco_operator.planning.types import Action, Drain, Event, Observed, OperatorPolicy, Stop

HEARTBEATS_TO_LEAVE = 3
_QUIET = (
    ConditionType.SYNCHRONIZER_READY,
    ConditionType.QUORUM_MET,
    ConditionType.PROGRESSING,
    ConditionType.DEGRADED,
)


@dataclass(frozen=True)
class Ending:
    """How far the end of a run has come."""

    conditions: Conditions
    rows: dict[int, LearnerStatus]
    actions: tuple[Action, ...]
    keep_objects: bool
    """The Synchronizer and configuration are still needed as they are."""
    ended: bool = False
    """The end is in these conditions."""
    events: tuple[Event, ...] = ()


@dataclass(frozen=True)
class Moment:
    """What all endings are decided from."""

    conditions: Conditions
    rows: dict[int, LearnerStatus]
    observed: Observed
    policy: OperatorPolicy
    generation: int
    now: float

    def quiet(self, reason: Reason, message: str = "") -> Conditions:
        """The conditions of a job nothing happens in; `message` is Progressing's."""
        found = self.conditions
        for kind in _QUIET:
            text = message if kind is ConditionType.PROGRESSING else ""
            found = with_condition(found, kind, False, reason, now=self.now, generation=self.generation, message=text)
        return found

    @property
    def silent_seconds(self) -> float:
        """Since the Synchronizer was last heard; 0 while it is heard."""
        ready = find(self.conditions, ConditionType.SYNCHRONIZER_READY)
        away = self.observed.progress is None and ready is not None
        return self.now - to_seconds(ready.last_transition_time) if away and ready is not None else 0.0

    @property
    def learners_live(self) -> bool:
        """Some Learner's process may still be at work."""
        limit = self.now - self.policy.kill_margin_seconds
        pods = [pod for site in self.observed.sites for pod in site.pods if pod.role == Role.LEARNER]
        return any(not pod.finished and (pod.delete_by is None or pod.delete_by > limit) for pod in pods)

    def stopped_rows(self, reason: str) -> dict[int, LearnerStatus]:
        return {index: stopped_row(row, reason) for index, row in self.rows.items()}


def failing(moment: Moment, reason: Reason, message: str) -> Ending:
    """Failed, for ever; everything is removed, the Synchronizer last."""
    conditions = with_condition(
        moment.quiet(Reason.FINISHED),
        ConditionType.FAILED,
        True,
        reason,
        now=moment.now,
        generation=moment.generation,
        message=message,
    )
    actions = teardown(moment.observed.sites, spare_learners=False)
    return Ending(conditions, moment.stopped_rows("JobFailed"), tuple(actions), keep_objects=False, ended=True)


def completing(moment: Moment, reason: Reason) -> Ending:
    """The Synchronizer has the final parameters: let Learners leave, then write Complete, then remove the rest."""
    waiting = _leaving(moment, Reason.FINISHED)
    if waiting is not None:
        return waiting
    rows = {
        index: row.model_copy(update={"state": LearnerPhase.SUCCEEDED.value, "reason": "Completed", "not_before": None})
        if row.state in ACTIVE
        else stopped_row(row, "JobComplete")
        for index, row in moment.rows.items()
    }
    conditions = with_condition(
        moment.quiet(Reason.FINISHED),
        ConditionType.COMPLETE,
        True,
        reason,
        now=moment.now,
        generation=moment.generation,
    )
    actions = teardown(moment.observed.sites, spare_learners=False)
    return Ending(conditions, rows, tuple(actions), keep_objects=False, ended=True)


def stopping(moment: Moment) -> Ending:
    """The user asked for the end of this run; a later one resumes."""
    phase = moment.observed.progress.phase if moment.observed.progress else None
    told = find(moment.conditions, ConditionType.PROGRESSING)
    before = told if told is not None and told.reason == Reason.STOPPED else None
    over = phase is Phase.STOPPED or before is not None
    given_up = _unanswered(moment) if not over else before.message if before is not None else ""
    if moment.observed.stop is Stop.NOW or given_up or not (over or heard_once(moment.conditions)):
        events = (Event("Warning", "DrainUnanswered", given_up),) if given_up and not over else ()
        return _stopped(moment, given_up, events)
    if not over:
        actions = [Drain()] if phase in (Phase.WAITING, Phase.RUNNING) else []
        return Ending(moment.conditions, moment.rows, tuple(actions), keep_objects=True)
    return _leaving(moment, Reason.STOPPED) or _stopped(moment)


def _stopped(moment: Moment, message: str = "", events: tuple[Event, ...] = ()) -> Ending:
    """Stopped, now; everything but data is removed."""
    actions = teardown(moment.observed.sites, spare_learners=False)
    conditions = moment.quiet(Reason.STOPPED, message)
    return Ending(conditions, moment.stopped_rows("Stopped"), tuple(actions), False, ended=True, events=events)


def _unanswered(moment: Moment) -> str:
    """What to say when the Synchronizer has not answered for a grace period since it was to drain; else empty."""
    patience = moment.policy.timeouts.grace_period_seconds
    if min(moment.observed.stop_seconds, moment.silent_seconds) < patience:
        return ""
    return f"the Synchronizer has not answered for {patience:g} s: what was not merged by then is lost"


def _leaving(moment: Moment, reason: Reason) -> Ending | None:
    """Learners still there, within and after their time to leave; None when all have left."""
    if not moment.learners_live:
        return None
    conditions = with_condition(
        moment.conditions, ConditionType.PROGRESSING, False, reason, now=moment.now, generation=moment.generation
    )
    told = find(conditions, ConditionType.PROGRESSING)
    patience = HEARTBEATS_TO_LEAVE * moment.policy.timeouts.heartbeat_seconds
    spare = told is not None and moment.now - to_seconds(told.last_transition_time) < patience
    actions = teardown(moment.observed.sites, spare_learners=spare)
    ending = Ending(conditions, moment.rows, tuple(actions), keep_objects=True)
    return replace(ending, rows=moment.stopped_rows("Stopped")) if reason is Reason.STOPPED else ending

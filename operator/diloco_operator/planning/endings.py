"""The three ways a run ends: Complete, Failed, Stopped. What is written, what is removed, and in which order.

Learners that were told the end get a moment to leave by themselves. An end is written before anything of it is removed;
a final job is never written again.
"""

from dataclasses import dataclass, replace

from diloco_api.names import ConditionType, LearnerPhase, Reason, Role
from diloco_api.progress import Phase
from diloco_api.status import LearnerStatus
from diloco_operator.planning.clean_up import teardown
from diloco_operator.planning.clock import to_seconds
from diloco_operator.planning.conditions import Conditions, find, with_condition
from diloco_operator.planning.learners import ACTIVE, stopped_row
from diloco_operator.planning.starts import heard_once
from diloco_operator.planning.types import Action, Drain, Observed, OperatorPolicy, Stop

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


@dataclass(frozen=True)
class Moment:
    """What all endings are decided from."""

    conditions: Conditions
    rows: dict[int, LearnerStatus]
    observed: Observed
    policy: OperatorPolicy
    generation: int
    now: float

    def quiet(self, reason: Reason) -> Conditions:
        """The conditions of a job nothing happens in."""
        found = self.conditions
        for kind in _QUIET:
            found = with_condition(found, kind, False, reason, now=self.now, generation=self.generation)
        return found

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
    already = find(moment.conditions, ConditionType.PROGRESSING)
    over = phase is Phase.STOPPED or (already is not None and already.reason == Reason.STOPPED)
    if moment.observed.stop is Stop.NOW or not (over or heard_once(moment.conditions)):
        actions = teardown(moment.observed.sites, spare_learners=False)
        return Ending(moment.quiet(Reason.STOPPED), moment.stopped_rows("Stopped"), tuple(actions), False, ended=True)
    if not over:
        actions = [Drain()] if phase in (Phase.WAITING, Phase.RUNNING) else []
        return Ending(moment.conditions, moment.rows, tuple(actions), keep_objects=True)
    waiting = _leaving(moment, Reason.STOPPED)
    if waiting is not None:
        return waiting
    actions = teardown(moment.observed.sites, spare_learners=False)
    return Ending(moment.quiet(Reason.STOPPED), moment.stopped_rows("Stopped"), tuple(actions), False, ended=True)


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

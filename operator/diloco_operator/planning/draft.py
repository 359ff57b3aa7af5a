"""A plan in the making: what is known at the start of a pass, and what has been decided so far. Decides nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from diloco_api.states import ConditionType, Reason
from diloco_api.status import JobStatus
from diloco_api.v1alpha1 import DiLoCoJob, LearnersSpec
from diloco_operator.planning.acceptance import learners_in_force
from diloco_operator.planning.conditions import Conditions, with_condition
from diloco_operator.planning.desired import Wanted
from diloco_operator.planning.endings import Moment
from diloco_operator.planning.loss import Loss
from diloco_operator.planning.site_state import SiteMoment, SiteState
from diloco_operator.planning.sites import SiteRef
from diloco_operator.planning.starts import Rows
from diloco_operator.planning.types import Action, Event, Observed, OperatorPolicy


@dataclass(frozen=True)
class Draft:
    """See the module's docstring."""

    job: DiLoCoJob
    policy: OperatorPolicy
    observed: Observed
    now: float
    status: JobStatus
    conditions: Conditions
    refs: Mapping[str, SiteRef]
    """Places by name, the one with the Synchronizer first."""
    states: Mapping[str, SiteState] = field(default_factory=dict)
    """Of the sites of a cluster run; empty on one machine."""
    rows: Rows = field(default_factory=dict)
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    losses: tuple[Loss, ...] = ()
    attempt: int = 1

    def condition(self, kind: ConditionType, found: tuple[bool, Reason, str]) -> "Draft":
        value, reason, message = found
        conditions = with_condition(
            self.conditions,
            kind,
            value,
            reason,
            now=self.now,
            generation=self.job.metadata.generation,
            message=message,
        )
        return replace(self, conditions=conditions)

    def told(self, *events: Event) -> "Draft":
        return replace(self, events=(*self.events, *events))

    @property
    def learners(self) -> LearnersSpec:
        return learners_in_force(self.job, self.status.resolved)

    @property
    def moment(self) -> Moment:
        generation = self.job.metadata.generation
        return Moment(self.conditions, self.rows, self.observed, self.policy, generation, self.now)

    @property
    def site_moment(self) -> SiteMoment:
        return SiteMoment(self.policy, self.observed.watched_seconds, self.job.metadata.generation, self.now)

    @property
    def wanted(self) -> Wanted:
        return Wanted(self.job, self.status, self.policy, self.observed, self.refs, self.rows, self.attempt, self.now)

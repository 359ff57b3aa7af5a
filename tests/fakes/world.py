"""A job's world as plain values: pods, objects, Synchronizer and time, moved by hand; carries plans out like a site.

No sockets, no waiting: for tests of planning. `step` is one pass of the reconciler.
"""

from dataclasses import dataclass, field, replace

from builders import job as build_job
from diloco_api import names
from diloco_api.names import Role
from diloco_api.progress import LearnerProgress, LearnerState, Phase, Progress, TokenTotals
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.planning.plan import plan
from diloco_operator.planning.steps import Steps, watch_steps
from diloco_operator.planning.types import (
    Apply,
    CreatePod,
    Delete,
    Drain,
    Ended,
    ObjectKey,
    ObjectView,
    Observed,
    OperatorPolicy,
    Plan,
    PodView,
    SiteView,
    Stop,
)

KEY = b"k" * 64
POLICY = OperatorPolicy(image="trainer:1", loopback=True)


@dataclass
class World:
    """What there is. Change it, then `step`."""

    job: DiLoCoJob = field(default_factory=build_job)
    policy: OperatorPolicy = POLICY
    now: float = 1_800_000_000.0
    pods: dict[str, PodView] = field(default_factory=dict)
    objects: dict[ObjectKey, ObjectView] = field(default_factory=dict)
    phase: Phase | None = None
    """None: the Synchronizer is not heard."""
    served_since: float = 0.0
    heard: dict[tuple[int, int], float] = field(default_factory=dict)
    """When each incarnation was heard last."""
    gone: set[tuple[int, int]] = field(default_factory=set)
    stop: Stop = Stop.NO
    stop_at: float | None = None
    """When the end was first observed to be asked for."""
    frozen: dict[tuple[int, int], int] = field(default_factory=dict)
    """Incarnations that take no step beyond this one; all others step whenever they are heard."""
    state: LearnerState = LearnerState.TRAINING
    """What all Learners say they do."""
    steps: Steps = field(default_factory=dict)
    fresh_start: bool = False
    site_down: bool = False
    created: list[str] = field(default_factory=list)
    drains: int = 0
    uids: int = 0

    def observe(self) -> Observed:
        sites = SiteView("local", unreachable="Timeout") if self.site_down else self._site()
        progress = self._progress()
        self.steps = watch_steps(self.steps, progress, self.now)
        if self.stop is Stop.NO:
            self.stop_at = None
        elif self.stop_at is None:
            self.stop_at = self.now
        return Observed(
            (sites,), progress, key=KEY, stop=self.stop,
            stop_seconds=0.0 if self.stop_at is None else self.now - self.stop_at,
            stepless_seconds={who: self.now - last.seen_at for who, last in self.steps.items()},
            fresh_start=self.fresh_start,
        )  # fmt: skip

    def plan(self) -> Plan:
        return plan(self.job, self.policy, self.observe(), self.now)

    def step(self, seconds: float = 1.0, *, crash: bool = False) -> Plan:
        """One pass, `seconds` after the last. `crash`: the operator dies between commit and apply."""
        self.now += seconds
        planned = self.plan()
        self.job = self.job.model_copy(update={"status": planned.status})
        self.fresh_start = False
        if not crash:
            self.carry_out(planned)
        return planned

    def carry_out(self, planned: Plan) -> None:
        for action in planned.actions:
            if isinstance(action, CreatePod):
                self._create(action)
            elif isinstance(action, Apply):
                hash_ = action.manifest["metadata"]["annotations"][names.ANNOTATION_SPEC_HASH]
                self.objects[action.key] = ObjectView(uid=self._uid(), spec_hash=hash_)
            elif isinstance(action, Delete):
                self._delete(action)
            elif isinstance(action, Drain):
                self.drains += 1

    def settle(self, passes: int = 6) -> Plan:
        """Several passes in which everything created starts and is heard."""
        planned = self.step()
        for _ in range(passes):
            self.run_all()
            planned = self.step()
        return planned

    # --- what happens to pods ---

    def learner(self, index: int) -> PodView:
        """The newest pod of an index."""
        return max((p for p in self.pods.values() if p.index == index), key=lambda pod: pod.incarnation)

    def run_all(self) -> None:
        """Pending pods run; running Learners are heard by a Synchronizer that serves."""
        for pod in list(self.pods.values()):
            if pod.phase == "Pending" and not pod.deleting:
                self.change(pod, phase="Running")
        if self.phase is not None:
            for pod in self.pods.values():
                if pod.role == "learner" and pod.phase == "Running" and not pod.deleting:
                    self.heard[pod.index, pod.incarnation] = self.now

    def change(self, pod: PodView, **fields: object) -> PodView:
        self.pods[pod.name] = replace(self.pods[pod.name], **fields)  # type: ignore[arg-type]
        return self.pods[pod.name]

    def finish(self, pod: PodView, code: int, message: str = "", ran: float = 5.0, **fields: object) -> None:
        ended = Ended(exit_code=code, message=message, ran_seconds=ran)
        self.change(pod, phase="Succeeded" if code == 0 else "Failed", ended=ended, **fields)

    def serve(self, phase: Phase = Phase.RUNNING) -> None:
        """The Synchronizer answers."""
        if self.phase is None:
            self.served_since = self.now
        self.phase = phase

    # --- what is looked at ---

    def row(self, index: int) -> tuple[str, int, int, int]:
        """(state, incarnation, restarts, restarts counted) in the status."""
        row = next(r for r in self.job.status.learner_statuses if r.index == index)
        return row.state, row.incarnation, row.restarts, row.restarts_counted

    def condition(self, kind: str) -> tuple[str, str]:
        found = next(c for c in self.job.status.conditions if c.type == kind)
        return found.status, found.reason

    def _site(self) -> SiteView:
        return SiteView(
            "local", pods=tuple(sorted(self.pods.values(), key=lambda p: p.name)), objects=dict(self.objects)
        )

    def _progress(self) -> Progress | None:
        if self.phase is None:
            return None
        learners = [
            LearnerProgress(
                index=index, incarnation=incarnation, site="local", token_clock=100,
                step=self.frozen.get((index, incarnation), int(at)),
                live=self.now - at < 30 and (index, incarnation) not in self.gone,
                gone=(index, incarnation) in self.gone,
                heartbeat_age_seconds=self.now - at, state=self.state, step_seconds=1.0,
            )
            for (index, incarnation), at in self.heard.items()
        ]  # fmt: skip
        return Progress(
            job_uid=self.job.metadata.uid, epoch=0, phase=self.phase, served_seconds=self.now - self.served_since,
            uptime_seconds=0.0, budget_tokens=1000, percent=10.0, outer_steps=3, outer_rounds=1, tokens=TokenTotals(),
            last_merge_age_seconds=1.0 if learners else None, learners=learners,
        )  # fmt: skip

    def _uid(self) -> str:
        self.uids += 1
        return f"uid-{self.uids}"

    def _create(self, action: CreatePod) -> None:
        if action.name in self.pods:
            return  # AlreadyExists
        labels = action.manifest["metadata"]["labels"]
        self.created.append(action.name)
        self.pods[action.name] = PodView(
            name=action.name,
            uid=self._uid(),
            role=labels[names.LABEL_ROLE],
            index=int(labels[names.LABEL_LEARNER_INDEX]),
            incarnation=int(labels[names.LABEL_INCARNATION]),
            phase="Pending",
            created_at=self.now,
        )

    def _delete(self, action: Delete) -> None:
        if action.kind != "Pod":
            self.objects.pop((action.kind, action.name), None)
            return
        pod = self.pods.get(action.name)
        if pod is None or pod.uid != action.uid:
            return
        if pod.finished:
            del self.pods[pod.name]
        elif not pod.deleting:
            self.change(pod, deleting=True, delete_by=self.now + 30)

    def reap(self) -> None:
        """Pods whose deletion was asked for end."""
        self.pods = {name: pod for name, pod in self.pods.items() if not pod.deleting}

    def add_synchronizer_pod(self, **fields: object) -> PodView:
        pod = PodView(
            name="sync-1", uid=self._uid(), role=Role.SYNCHRONIZER.value, index=-1, incarnation=0, phase="Running"
        )
        self.pods[pod.name] = pod
        return self.change(pod, **fields)


def running_world(**fields: object) -> World:
    """Accepted, Synchronizer heard, all Learners at work."""
    world = World(**fields)  # type: ignore[arg-type]
    world.step()
    world.serve()
    world.settle()
    world.created.clear()
    return world

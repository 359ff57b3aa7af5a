"""A job on several clusters as plain values: as `fakes.world`, with a hub, sites, nodes, quotas, and a manual clock.

Sites are named as in the job's spec; the hub comes first. `step` is one pass of the reconciler. No sockets, no waiting.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from builders import job as build_job
from diloco_api import names
from diloco_api.names import Role
from diloco_api.progress import LearnerProgress, LearnerState, Phase, Progress, TokenTotals
from diloco_api.status import Condition, LearnerStatus, SiteStatus
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.planning.plan import plan
from diloco_operator.planning.sites import site_refs
from diloco_operator.planning.types import (
    Apply,
    CreatePod,
    Delete,
    Ended,
    LogTail,
    Manifest,
    ObjectKey,
    ObjectView,
    Observed,
    OperatorPolicy,
    Plan,
    PodView,
    ReadLog,
    Refusal,
    SiteView,
)

ROOT_KEY = b"r" * 32
POLICY = OperatorPolicy(
    image="trainer:1", tls=True, origin="here", operator_namespace="operator", monitoring_namespace="monitoring"
)
NODE_PORT = 31400


def fleet_job(changes: Mapping[str, object] | None = None, sites: int = 2, replicas: int = 4) -> DiLoCoJob:
    """Learners over sites `site-1`, `site-2`, ..., the Synchronizer reached by NodePort."""
    listed = [
        {"name": f"site-{number}", "kubeconfigSecretRef": {"name": f"kube-{number}"}} for number in range(1, sites + 1)
    ]
    return build_job(
        {
            "learners.replicas": replicas,
            "synchronizer.exposure": {"type": "NodePort"},
            "sites": listed,
            **(changes or {}),
        }
    )


@dataclass
class Cluster:
    """What there is in one cluster. Change it, then `step`."""

    name: str
    uid: str
    down: str = ""
    """Reason for which its API cannot be reached."""
    credentials: str = ""
    cut: bool = False
    """Its pods do not reach the Synchronizer."""
    pods: dict[str, PodView] = field(default_factory=dict)
    objects: dict[ObjectKey, ObjectView] = field(default_factory=dict)
    manifests: dict[ObjectKey, Manifest] = field(default_factory=dict)
    refusals: dict[str, Refusal] = field(default_factory=dict)
    refuse: Refusal | None = None
    """What every creation of a pod is answered."""
    quota: int | None = None
    """Pods there may be."""
    last_contact: float | None = None
    logs: dict[str, str] = field(default_factory=dict)
    """By pod."""
    log_problem: str = ""
    """Reason for which no log can be read."""
    log_tail: LogTail | None = None


@dataclass
class Fleet:
    """What there is. Change it, then `step`."""

    job: DiLoCoJob = field(default_factory=fleet_job)
    policy: OperatorPolicy = POLICY
    now: float = 1_800_000_000.0
    begun_at: float = 1_800_000_000.0
    """When the operator started."""
    phase: Phase | None = None
    served_since: float = 0.0
    heard: dict[tuple[int, int], float] = field(default_factory=dict)
    left: set[tuple[int, int]] = field(default_factory=set)
    """(index, incarnation) of Learners that took their leave."""
    nodes: tuple[str, ...] = ("192.0.2.11",)
    propagated: dict[ObjectKey, dict[str, bytes]] = field(default_factory=dict)
    crd_problem: str = ""
    namespace_ends: bool = False
    created: list[tuple[str, str]] = field(default_factory=list)
    """(site, pod)."""
    deleted: list[tuple[str, str]] = field(default_factory=list)
    """(site, name) of pods."""
    reads: list[tuple[float, str, str]] = field(default_factory=list)
    """(when, site, pod) of logs."""
    events: list[str] = field(default_factory=list)
    writes: int = 0
    uids: int = 0
    running_since: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clusters = {ref.name: Cluster(ref.name, f"uid-of-{ref.name}") for ref in site_refs(self.job)}
        self.hub = next(iter(self.clusters.values()))

    # --- passes ---

    def observe(self) -> Observed:
        return Observed(
            tuple(self._view(cluster) for cluster in self.clusters.values()), self._progress(), key=ROOT_KEY,
            watched_seconds=self.now - self.begun_at, hub_addresses=self.nodes, propagated=self.propagated,
            crd_problem=self.crd_problem, namespace_ends=self.namespace_ends,
        )  # fmt: skip

    def plan(self) -> Plan:
        return plan(self.job, self.policy, self.observe(), self.now)

    def step(self, seconds: float = 1.0) -> Plan:
        self.now += seconds
        planned = self.plan()
        self.writes += planned.status != self.job.status
        self.events += [event.reason for event in planned.events]
        metadata = self.job.metadata
        if planned.finalizer == "add":
            metadata = metadata.model_copy(update={"finalizers": [names.FINALIZER]})
        elif planned.finalizer == "remove":
            metadata = metadata.model_copy(update={"finalizers": []})
        self.job = self.job.model_copy(update={"status": planned.status, "metadata": metadata})
        for cluster in self.clusters.values():
            cluster.refusals = {}
        for action in planned.actions:
            self._carry_out(action)
        return planned

    def settle(self, passes: int = 6, seconds: float = 1.0) -> None:
        """Several passes in which everything created starts and is heard."""
        for _ in range(passes):
            self.step(seconds)
            self.run_all()

    def pass_time(self, seconds: float, every: float = 10.0) -> None:
        """Passes in which all that can be heard is."""
        for _ in range(int(seconds / every)):
            self.beat()
            self.step(every)

    # --- what happens ---

    def serve(self, phase: Phase = Phase.RUNNING) -> None:
        if self.phase is None:
            self.served_since = self.now
        self.phase = phase

    def run_all(self) -> None:
        for cluster in self.clusters.values():
            for pod in list(cluster.pods.values()):
                if pod.phase == "Pending" and not pod.deleting and not pod.waiting and not pod.unscheduled:
                    self.change(pod, phase="Running")
                    self.running_since[pod.name] = self.now
        self.beat()

    def beat(self) -> None:
        """Running Learners that reach the Synchronizer are heard."""
        for cluster in self.clusters.values():
            for pod in cluster.pods.values():
                running = pod.role == "learner" and pod.phase == "Running"
                if (
                    running
                    and not cluster.cut
                    and self.phase is not None
                    and not (pod.deleting and not pod.node_silent)
                ):
                    self.heard[pod.index, pod.incarnation] = self.now

    def change(self, pod: PodView, **fields: object) -> PodView:
        cluster = next(c for c in self.clusters.values() if pod.name in c.pods)
        cluster.pods[pod.name] = replace(cluster.pods[pod.name], **fields)  # type: ignore[arg-type]
        return cluster.pods[pod.name]

    def finish(self, pod: PodView, code: int, message: str = "") -> None:
        phase = "Succeeded" if code == 0 else "Failed"
        self.change(pod, phase=phase, ended=Ended(exit_code=code, message=message, ran_seconds=5.0))

    def wait(self, site: str, **fields: object) -> None:
        """Every pod that is not running yet there waits for this."""
        for pod in list(self.clusters[site].pods.values()):
            if pod.phase == "Pending":
                self.change(pod, **fields)

    def edit(self, changes: Mapping[str, object]) -> None:
        """The user changes sections of the spec."""
        document = self.job.model_dump(mode="json", by_alias=True, exclude_none=True)
        for path, value in changes.items():
            *parents, last = path.split(".")
            node = document["spec"]
            for key in parents:
                node = node.setdefault(key, {})
            node[last] = value
        self.job = DiLoCoJob.model_validate(document)

    # --- what is looked at ---

    def row(self, index: int) -> LearnerStatus:
        return next(row for row in self.job.status.learner_statuses if row.index == index)

    def where(self) -> dict[int, str]:
        """Sites of all Learners."""
        return {row.index: row.site for row in self.job.status.learner_statuses}

    def learner(self, index: int) -> PodView:
        """The pod of the present incarnation of an index."""
        row = self.row(index)
        return self.clusters[row.site].pods[row.pod_name]

    def condition(self, kind: str) -> Condition:
        return next(c for c in self.job.status.conditions if c.type == kind)

    def site(self, name: str) -> SiteStatus:
        return next(site for site in self.job.status.sites if site.name == name)

    def site_condition(self, name: str, kind: str) -> tuple[str, str]:
        found = next(c for c in self.site(name).conditions if c.type == kind)
        return found.status, found.reason

    # --- inside ---

    def _view(self, cluster: Cluster) -> SiteView:
        if cluster.down or cluster.credentials:
            return SiteView(
                cluster.name, cluster.down or cluster.credentials, "it does not answer", refusals=cluster.refusals,
                credentials_problem=cluster.credentials, last_contact=cluster.last_contact,
            )  # fmt: skip
        cluster.last_contact = self.now
        pods = [
            replace(pod, age_seconds=self.now - self.running_since.get(pod.name, pod.created_at))
            for pod in sorted(cluster.pods.values(), key=lambda pod: pod.name)
        ]
        return SiteView(
            cluster.name, pods=tuple(pods),
            objects=dict(cluster.objects), refusals=dict(cluster.refusals), last_contact=self.now,
            cluster_uid=cluster.uid, log_tail=cluster.log_tail,
        )  # fmt: skip

    def _progress(self) -> Progress | None:
        if self.phase is None:
            return None
        learners = [
            LearnerProgress(
                index=index, incarnation=incarnation, site="", token_clock=100, step=int(at),
                live=self.now - at < 30 and (index, incarnation) not in self.left,
                gone=(index, incarnation) in self.left,
                heartbeat_age_seconds=self.now - at, state=LearnerState.TRAINING, step_seconds=1.0,
            )
            for (index, incarnation), at in self.heard.items()
        ]  # fmt: skip
        return Progress(
            job_uid=self.job.metadata.uid, epoch=0, phase=self.phase, served_seconds=self.now - self.served_since,
            uptime_seconds=0.0, budget_tokens=1000, percent=10.0, outer_steps=3, outer_rounds=1, tokens=TokenTotals(),
            last_merge_age_seconds=1.0 if learners else None, learners=learners,
        )  # fmt: skip

    def _carry_out(self, action: object) -> None:
        if isinstance(action, CreatePod):
            self._create(self.clusters[action.site], action)
        elif isinstance(action, Apply):
            cluster = self.clusters[action.site]
            hash_ = action.manifest["metadata"]["annotations"][names.ANNOTATION_SPEC_HASH]
            outside = action.key[1].endswith("-external")
            cluster.manifests[action.key] = action.manifest
            cluster.objects[action.key] = ObjectView(
                self._uid(), hash_, action.manifest["metadata"]["labels"].get(names.LABEL_ORIGIN, ""),
                node_port=NODE_PORT if outside else 0,
            )  # fmt: skip
        elif isinstance(action, Delete):
            self._delete(self.clusters[action.site], action)
        elif isinstance(action, ReadLog):
            cluster = self.clusters[action.site]
            self.reads.append((self.now, action.site, action.pod))
            text = "" if cluster.log_problem else cluster.logs.get(action.pod, "")
            cluster.log_tail = LogTail(action.pod, self.now, text, cluster.log_problem)

    def _create(self, cluster: Cluster, action: CreatePod) -> None:
        if action.name in cluster.pods:
            return
        if cluster.refusals:
            return  # the first denial ended the batch
        full = cluster.quota is not None and len(cluster.pods) >= cluster.quota
        if full or cluster.refuse is not None:
            cluster.refusals[action.name] = cluster.refuse or Refusal("QuotaExceeded", "exceeded quota: pods")
            return
        labels = action.manifest["metadata"]["labels"]
        self.created.append((cluster.name, action.name))
        cluster.manifests["Pod", action.name] = action.manifest
        cluster.pods[action.name] = PodView(
            name=action.name,
            uid=self._uid(),
            role=labels[names.LABEL_ROLE],
            index=int(labels[names.LABEL_LEARNER_INDEX]),
            incarnation=int(labels[names.LABEL_INCARNATION]),
            phase="Pending",
            created_at=self.now,
            origin=labels.get(names.LABEL_ORIGIN, ""),
        )

    def _delete(self, cluster: Cluster, action: Delete) -> None:
        if action.kind != "Pod":
            cluster.objects.pop((action.kind, action.name), None)
            return
        self.deleted.append((cluster.name, action.name))
        pod = cluster.pods[action.name]
        if pod.finished or pod.phase == "Pending":
            del cluster.pods[pod.name]
        else:
            self.change(pod, deleting=True, delete_by=self.now + 30)

    def reap(self) -> None:
        """Pods whose deletion was asked for end, where a kubelet lives."""
        for cluster in self.clusters.values():
            cluster.pods = {name: pod for name, pod in cluster.pods.items() if not pod.deleting or pod.node_silent}

    def add_synchronizer_pod(self, **fields: object) -> PodView:
        origin = self.policy.origin
        pod = PodView("sync-1", self._uid(), Role.SYNCHRONIZER.value, -1, 0, "Running", origin=origin)
        self.hub.pods[pod.name] = pod
        return self.change(pod, **fields)

    def _uid(self) -> str:
        self.uids += 1
        return f"uid-{self.uids}"


def running_fleet(**fields: object) -> Fleet:
    """Accepted, Synchronizer heard, all Learners at work."""
    fleet = Fleet(**fields)  # type: ignore[arg-type]
    fleet.settle(3)
    fleet.serve()
    fleet.settle()
    fleet.created.clear()
    fleet.reads.clear()
    fleet.events.clear()
    fleet.writes = 0
    return fleet


def never_heard_fleet(*cut: str, job: DiLoCoJob | None = None) -> Fleet:
    """Accepted, Synchronizer heard; Learners have only just begun, and those of the sites `cut` will never be heard."""
    fleet = Fleet(job=job or fleet_job())
    fleet.settle(3)
    fleet.serve()
    for name in cut:
        fleet.clusters[name].cut = True
    fleet.settle(3)
    return fleet

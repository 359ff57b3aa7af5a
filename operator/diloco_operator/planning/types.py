"""The values decisions are made of: what was observed, what the operator was told, what shall be done.

Frozen and comparable, so that a test reads like a table. An unreachable site or Synchronizer is a field, not an error.
Nothing is decided here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from diloco_api.accept import Ports
from diloco_api.progress import Progress
from diloco_api.status import JobStatus
from diloco_api.timeouts import Timeouts
from diloco_operator.planning.loss import Loss

Manifest = dict[str, Any]
ObjectKey = tuple[str, str]
"""(kind, name) of an object of one site."""


class Stop(StrEnum):
    """What the user asked for."""

    NO = "No"
    DRAIN = "Drain"  # merge what is trained, then end all processes; a later run resumes
    NOW = "Now"  # end all processes


@dataclass(frozen=True)
class Ended:
    """How a container ended."""

    exit_code: int
    reason: str = ""
    """The kubelet's word: Completed, Error, OOMKilled."""
    message: str = ""
    """The end of its log."""
    ran_seconds: float = 0.0


@dataclass(frozen=True)
class PodView:
    """One pod of the job, of whatever role."""

    name: str
    uid: str
    role: str
    index: int
    """-1 for the Synchronizer."""
    incarnation: int
    """0 for the Synchronizer."""
    phase: str
    """Kubernetes' word: Pending, Running, Succeeded, Failed, Unknown."""
    deleting: bool = False
    delete_by: float | None = None
    """When its grace period is over, unix seconds; None unless it is being deleted."""
    ended: Ended | None = None
    """Its container is not running: how it ended."""
    last_ended: Ended | None = None
    """How the container's run before the present one ended (Synchronizer)."""
    waiting: str = ""
    """Why its container is not started, the kubelet's word; empty when it is running or over."""
    waiting_message: str = ""
    restarts: int = 0
    """Restarts of its container (Synchronizer)."""
    pod_reason: str = ""
    """`status.reason`, else DisruptionTarget where that is its condition: why the whole pod failed."""
    age_seconds: float = 0.0
    """Since its container is running, else since its creation."""
    created_at: float = 0.0
    """Unix seconds."""
    disruption: str = ""
    """Why the cluster takes it away, the reason of its condition DisruptionTarget."""
    unscheduled: str = ""
    """Why it has no node: Unschedulable, SchedulingGated; empty when it has one or nobody has looked yet."""
    unscheduled_message: str = ""
    node_silent: bool = False
    """The cluster does not hear its node: what its containers do is unknown."""
    origin: str = ""
    """Label: which installation made it."""

    @property
    def finished(self) -> bool:
        """It will never run again."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def live(self) -> bool:
        """It runs or may yet run, and nobody has asked for its end."""
        return not self.finished and not self.deleting


@dataclass(frozen=True)
class ObjectView:
    """An object that is not a pod."""

    uid: str
    spec_hash: str = ""
    origin: str = ""
    """Label: which installation made it."""
    deleting: bool = False
    addresses: tuple[str, ...] = ()
    """Hosts a Service of type LoadBalancer was given."""
    node_port: int = 0
    """Of a Service's port `grpc`; 0 where there is none."""
    problem: str = ""
    """Why a Deployment has no pod, the cluster's words; empty: it has, or will have."""


@dataclass(frozen=True)
class Refusal:
    """What became of the last attempt to create a pod or apply an object, when it failed. `reason` as of SiteError."""

    reason: str
    message: str = ""


@dataclass(frozen=True)
class LogTail:
    """The end of one pod's log as it was read, or why it could not be."""

    pod: str
    read_at: float
    """Unix seconds."""
    text: str = ""
    problem: str = ""
    """Reason as of SiteError; empty: it was read."""


@dataclass(frozen=True)
class SiteView:
    """One site as just seen."""

    name: str
    unreachable: str = ""
    """Reason; empty: it answered and the lists below are complete."""
    message: str = ""
    pods: tuple[PodView, ...] = ()
    objects: Mapping[ObjectKey, ObjectView] = field(default_factory=dict)
    refusals: Mapping[str, Refusal] = field(default_factory=dict)
    """Of pods, by name."""
    object_refusals: Mapping[ObjectKey, Refusal] = field(default_factory=dict)
    """Of everything else."""
    credentials_problem: str = ""
    """Why its credentials cannot be used: SecretMissing, SecretInvalid; `message` says more. Then it is `unreachable`
    for the same reason."""
    last_contact: float | None = None
    """When it last answered, unix seconds; None: not yet, as far as this process knows."""
    cluster_uid: str = ""
    """Identity of the cluster that answered."""
    log_tail: LogTail | None = None
    """The last one that was read there; None: none was yet, as far as this process knows."""


@dataclass(frozen=True)
class Observed:
    """Everything a decision may depend on besides the job itself."""

    sites: tuple[SiteView, ...]
    """The first one is where the Synchronizer is; see `site_refs`. Sites that are no longer in the spec may follow."""
    progress: Progress | None = None
    """What the Synchronizer says; None when it was not heard just now. Fetched after the pods were listed."""
    silence: str = ""
    """Why it was not heard."""
    key: bytes = field(default=b"", repr=False)
    """The job's secret key. On clusters the root of token key and certificates, else the token key itself."""
    stop: Stop = Stop.NO
    stop_seconds: float = 0.0
    """Since the end was asked for."""
    stepless_seconds: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """By (index, incarnation) of Learners that should step: how long they have been watched without a new step."""
    fresh_start: bool = False
    """Local runs: every process of earlier runs has ended; true until that is in the status."""
    watched_seconds: float = 0.0
    """How long this process has looked after the job: sites are not given up by one that has just started."""
    hub_addresses: tuple[str, ...] = ()
    """Addresses of the hub's ready nodes, wanted where the exposure is NodePort."""
    propagated: Mapping[ObjectKey, Mapping[str, bytes]] = field(default_factory=dict, repr=False)
    """Content of the Secrets and ConfigMaps `spec.propagate` names; one that does not exist is absent."""
    crd_problem: str = ""
    """What the installed CRD lacks; empty: it knows every field."""
    namespace_ends: bool = False
    """The job's namespace is being deleted: the job will be, and all that it has at the hub."""


@dataclass(frozen=True)
class OperatorPolicy:
    """What the operator was configured with, the same for all its jobs."""

    image: str
    tls: bool = False
    """The job runs on clusters: connections are encrypted, and what only clusters have is made. Else on one machine."""
    origin: str = ""
    """Id of this installation, a label of every object."""
    operator_namespace: str = ""
    """From where the operator asks the Synchronizer; empty: from outside the cluster."""
    monitoring_namespace: str = ""
    """From where metrics are scraped; empty: from nowhere."""
    fs_group: int | None = 65532
    """Group that owns mounted volumes and Secrets; None where the platform chooses one."""
    ports: Ports = Ports()
    """Offered to a job at acceptance, where its spec names none."""
    synchronizer_hosts: tuple[str, ...] = ()
    """Where Learners find the Synchronizer; empty: its Service."""
    loopback: bool = False
    """Everything runs on one machine: silence of a Learner is never the network's fault."""
    timeouts: Timeouts = Timeouts()
    poll_seconds: float = 5.0
    """Interval between two looks while a job runs."""
    first_backoff_seconds: float = 10.0
    backoff_cap_seconds: float = 360.0
    healthy_after_seconds: float = 600.0
    """A Learner that ran this long has no failures in a row."""
    kill_margin_seconds: float = 30.0
    """A pod still there this long after its grace period is lost."""


@dataclass(frozen=True)
class CreatePod:
    """POST; a pod of that name with our labels is success."""

    site: str
    manifest: Manifest

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])


@dataclass(frozen=True)
class Apply:
    """Create or update an object. Its content is not shown: it may be a Secret's."""

    site: str
    manifest: Manifest = field(repr=False)

    @property
    def key(self) -> ObjectKey:
        return self.manifest["kind"], self.manifest["metadata"]["name"]


@dataclass(frozen=True)
class Delete:
    """Delete exactly the object that was seen."""

    site: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True)
class ReadLog:
    """Look at the end of a log; what is found there is an observation of later passes."""

    site: str
    pod: str
    container: str


@dataclass(frozen=True)
class Drain:
    """Ask the Synchronizer to end the run well."""


Action = CreatePod | Apply | Delete | ReadLog | Drain


@dataclass(frozen=True)
class Event:
    """One line of the job's story."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True)
class Plan:
    """What shall be. `status` is written first; when that fails nothing else is done."""

    status: JobStatus
    """To be committed; equal to the job's present one: no write."""
    live: JobStatus
    """As of this moment, also what is written only every half minute."""
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    """To be told when the status or the finalizers are written, or when neither has to be."""
    requeue_after: float | None = None
    """Seconds until another look is needed although nothing woke us; None: never."""
    losses: tuple[Loss, ...] = ()
    """What was found out in this pass; for the metrics."""
    finished: bool = False
    """The job's end is in the status and nothing of it is left but its data."""
    finalizer: Literal["keep", "add", "remove"] = "keep"
    """What becomes of `names.FINALIZER` on the job: added before anything is created, removed when nothing is left."""

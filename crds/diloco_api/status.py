"""`status` of a DiLoCoJob: what was observed, written by the operator alone, through the status subresource.

Unknown fields are ignored, so that an older operator can read what a newer one wrote. Ratios are strings, as floats do
not compare in Kubernetes; times are RFC 3339 in UTC.
"""

from typing import Annotated

from pydantic import ConfigDict, Field, JsonValue, WithJsonSchema

from diloco_api.policy import SyncPolicy
from diloco_api.train import SpecModel

MAX_LEARNERS = 256
MAX_SITES = 32
MAX_POOLS = 8
MAX_MESSAGE = 256

Time = Annotated[str, Field(max_length=32), WithJsonSchema({"type": "string", "format": "date-time"})]
Message = Annotated[str, Field(max_length=MAX_MESSAGE)]
Name = Annotated[str, Field(max_length=63)]
Ratio = Annotated[str, Field(max_length=16)]
Amount = Annotated[str, Field(max_length=24)]
Count = Annotated[int, Field(ge=0)]


Milliseconds = Annotated[
    dict[str, int],
    WithJsonSchema(
        {
            "type": "object",
            "additionalProperties": {"type": "integer", "format": "int64", "minimum": 0},
            "maxProperties": 16,
        }
    ),
]


def _list_map(*keys: str) -> dict[str, JsonValue]:
    """Rows are merged by these keys, not by position."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [*keys]}


_SET: dict[str, JsonValue] = {"x-kubernetes-list-type": "set"}


class StatusModel(SpecModel):
    """Base of what is observed."""

    model_config = ConfigDict(extra="ignore")


class Condition(StatusModel):
    """As metav1.Condition."""

    type: Name
    """See `diloco_api.states.ConditionType`."""
    status: Annotated[str, Field(max_length=7, json_schema_extra={"enum": ["True", "False", "Unknown"]})]
    """True, False or Unknown."""
    reason: Name
    """One CamelCase word of a closed set."""
    message: Message = ""
    """For people; without times and counters."""
    last_transition_time: Time
    """When `status` changed last."""
    observed_generation: Count | None = None
    """Generation of the spec this was found for."""


class LearnerCounts(StatusModel):
    """Learners by what their newest incarnation is doing."""

    desired: Count = 0
    """Learners wanted now."""
    ready: Count = 0
    """Heard by the Synchronizer."""
    active: Count = 0
    """With a running pod or process."""
    succeeded: Count = 0
    """Ended well."""
    failed: Count = 0
    """Backing off or parked."""
    pending: Count = 0
    """Waiting to be started."""
    summary: Annotated[str, Field(max_length=16)] = ""
    """`ready/desired`, for `kubectl get`."""


class SiteStatus(StatusModel):
    """One site."""

    name: Name
    """Name of the site."""
    conditions: list[Condition] = Field(default=[], max_length=8, json_schema_extra=_list_map("type"))
    """Reachable (Unknown while it may come back at once), Eligible for new Learners, SynchronizerReachable from there.
    """
    last_contact_time: Time | None = None
    """When it last answered, as of the last write."""
    cluster_uid: Name = Field(default="", alias="clusterUID")
    """Identity of its cluster, from the first contact on; another one behind the same credentials is not used."""
    secret_name: Annotated[str, Field(max_length=253)] = ""
    """Secret with its kubeconfig; empty for the hub. By it a site that left the spec is still reached, and cleaned."""
    namespace: Name = ""
    """Namespace used there; empty for the hub."""
    desired: Count = 0
    """Learners placed there."""
    ready: Count = 0
    """Of these, heard by the Synchronizer."""
    failed: Count = 0
    """Of these, backing off or parked."""
    reason: Annotated[str, Field(max_length=63)] = ""
    """Why the site is not used or not reachable; empty when all is well."""
    not_before: Time | None = None
    """No new Learner goes there earlier."""
    full_pools: list[Name] = Field(default=[], max_length=MAX_POOLS, json_schema_extra=_SET)
    """Node pools in which a Learner found no room."""


class LearnerStatus(StatusModel):
    """One Learner index. Its incarnation is committed here before its pod is created."""

    index: Annotated[int, Field(ge=0, lt=MAX_LEARNERS)]
    """Stable index of the Learner."""
    site: Name
    """Where its newest incarnation is placed."""
    pool: Annotated[str, Field(max_length=63)] = ""
    """In which of the site's node pools; empty in local runs."""
    incarnation: Annotated[int, Field(ge=1)]
    """The newest; all older ones are fenced."""
    pod_name: Name
    """Its pod or process."""
    state: Annotated[str, Field(max_length=32)]
    """See `diloco_api.states.LearnerPhase`."""
    reason: Annotated[str, Field(max_length=63)] = ""
    """Why it is in this state."""
    reason_since: Time | None = None
    """Since when its pod has been waiting for this reason; absent unless it waits."""
    restarts: Count = 0
    """Incarnations started after the first."""
    restarts_counted: Count = 0
    """Of these, those that count against `failurePolicy.maxRestarts`."""
    failures: Count = 0
    """Failures in a row; the back-off grows with them, a long healthy run begins them anew."""
    running_since: Time | None = None
    """When its newest incarnation was first heard."""
    not_before: Time | None = None
    """Back-off: the next incarnation does not start earlier."""
    message: Message = ""
    """For people."""


class ProgressStatus(StatusModel):
    """As told by the Synchronizer."""

    percent: Annotated[int, Field(ge=0, le=100)] = 0
    """Trained, undiscarded tokens over the budget, rounded down."""
    tokens: Count = 0
    """Tokens merged into the outer parameters."""
    outer_steps: Count = 0
    """Merges of all fragments."""
    outer_rounds: Count = 0
    """Outer steps of the fragment that has fewest."""
    eta_seconds: Count | None = None
    """Seconds left at the present pace; absent while unknown."""
    last_updated_time: Time
    """When the Synchronizer said so."""


class PortsStatus(StatusModel):
    """Ports of the Synchronizer."""

    synchronizer: Annotated[int, Field(ge=1, le=65535)]
    """gRPC."""
    admin: Annotated[int, Field(ge=1, le=65535)]
    """Progress and drain."""
    metrics: Annotated[int, Field(ge=1, le=65535)]
    """/metrics and /healthz."""


class ImagesStatus(StatusModel):
    """Images in use."""

    trainer: Annotated[str, Field(max_length=512)] = ""
    """Of Learners and Synchronizer, where their templates name none."""


class ResolvedStatus(StatusModel):
    """What was decided at acceptance and holds for the job's life."""

    policy: Annotated[SyncPolicy, WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})]
    """The complete synchronisation policy, all defaults and presets filled in."""
    budget_tokens: Annotated[int, Field(gt=0)]
    """Tokens of the whole job."""
    budget_reason: Name
    """Reason with which the job will be Complete once they are merged."""
    template_version: Annotated[int, Field(ge=1)]
    """Version of the pod templates its pods are built from."""
    protocol_version: Annotated[int, Field(ge=1)]
    """Version of the protocol between Learners and Synchronizer."""
    replicas: Annotated[int, Field(ge=1, le=MAX_LEARNERS)]
    """`learners.replicas` at acceptance: budgets in steps and step schedules are counted with it."""
    ports: PortsStatus
    """Ports in use."""
    images: ImagesStatus = ImagesStatus()
    """Images in use."""
    origin: Annotated[str, Field(max_length=63)] = ""
    """Label `origin` of all that belongs to the job: the installation that accepted it. Empty in local runs."""


class LearnerTimeStatus(StatusModel):
    """Where the time of one Learner index at one site went."""

    index: Annotated[int, Field(ge=0, lt=MAX_LEARNERS)]
    """Index of the Learner."""
    site: Name
    """Name of the site; empty: it had none yet, or it was at one of earlier sites that are counted together."""
    milliseconds: Milliseconds = Field(default={})
    """By state, see `diloco_api.states.GoodputState`."""


class HeardTimeStatus(StatusModel):
    """How far the time of one Learner index is accounted for."""

    index: Annotated[int, Field(ge=0, lt=MAX_LEARNERS)]
    """Index of the Learner."""
    incarnation: Count = 0
    """Its newest incarnation that was heard; 0: none."""
    milliseconds: Milliseconds = Field(default={})
    """What that one has counted itself, by state, as far as it is in `learnerTimes`."""
    open_milliseconds: Count = 0
    """Time that is in no state yet: what the Learner did in it is not known yet."""


class GoodputStatus(StatusModel):
    """Shares of the time or work paid for, each from 0 to 1 with four digits, and the totals they are made of."""

    capacity: Ratio = ""
    """`trainingSeconds` over `wantedSeconds`."""
    accepted: Ratio = ""
    """Tokens merged over tokens the wanted Learners could have trained."""
    uptime: Ratio = ""
    """`uptimeSeconds` over `windowSeconds`."""
    window_seconds: Ratio = ""
    """Seconds the shares are of: the job's active time."""
    uptime_seconds: Ratio = ""
    """Part of it in which outer steps advanced within their deadline."""
    wanted_seconds: Amount = ""
    """Seconds of the Learners wanted in that time, times their weights."""
    training_seconds: Amount = ""
    """Part of these they spent training."""
    ideal_tokens_per_second: Ratio = ""
    """Tokens a second of an undisturbed Learner, per unit of weight."""
    accounted_time: Time | None = None
    """Until when time has been counted."""
    learner_times: list[LearnerTimeStatus] = Field(
        default=[], max_length=4 * MAX_LEARNERS, json_schema_extra=_list_map("index", "site")
    )
    """Seconds of all Learners by site and state; every second wanted is in one of them, or open in `heardTimes`."""
    heard_times: list[HeardTimeStatus] = Field(
        default=[], max_length=MAX_LEARNERS, json_schema_extra=_list_map("index")
    )
    """One row per Learner index."""


class JobStatus(StatusModel):
    """What was observed of the job."""

    observed_generation: Count = 0
    """Generation of the spec the operator has acted upon."""
    phase: Annotated[str, Field(max_length=32)] = ""
    """Summary for people; see `diloco_api.states.JobPhase`."""
    conditions: list[Condition] = Field(default=[], max_length=16, json_schema_extra=_list_map("type"))
    """Accepted, SynchronizerReady, QuorumMet, Progressing, Degraded, Complete, Failed; the last two are final."""
    start_time: Time | None = None
    """When the job was accepted."""
    completion_time: Time | None = None
    """When it became Complete or Failed."""
    last_progress_time: Time | None = None
    """When an outer step last advanced."""
    execution_attempt: Count = 0
    """Grows by one whenever the job is started, restarted or resumed, before anything is created."""
    learners: LearnerCounts = LearnerCounts()
    """Counts of Learners."""
    sites: list[SiteStatus] = Field(default=[], max_length=2 * MAX_SITES, json_schema_extra=_list_map("name"))
    """The hub, the sites of the spec, and those that were taken out of it and are not empty yet."""
    site_summary: Annotated[str, Field(max_length=16)] = ""
    """`reachable/all` sites, for `kubectl get`."""
    learner_statuses: list[LearnerStatus] = Field(
        default=[], max_length=MAX_LEARNERS, json_schema_extra=_list_map("index")
    )
    """One row per Learner index."""
    progress: ProgressStatus | None = None
    """Absent until the Synchronizer was heard."""
    resolved: ResolvedStatus | None = None
    """Absent until the job is accepted."""
    goodput: GoodputStatus = GoodputStatus()
    """How well the capacity is used."""
    selector: Annotated[str, Field(max_length=256)] = ""
    """Label selector of the Learner pods, for the scale subresource."""

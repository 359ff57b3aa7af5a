"""`diloco.dev/v1alpha1` `DiLoCoJob`: the only source of the CRD, of its defaults and of its documentation.

A manifest needs `spec.train.data` and `spec.learners.replicas`, everything else has a default. `spec` is what the user
wants, `status` (see `diloco_api.status`) what was observed. Rules between fields are in `sync_policy`, `train` and
`accept`; what CEL can express of them is enforced by API servers, too. What can be changed once a job exists says so.
"""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, JsonValue

from diloco_api import names, rules
from diloco_api.algorithm import AlgorithmSpec
from diloco_api.rules import NEVER_CHANGES, rule
from diloco_api.sites import SUBDOMAIN, ObjectName, OpenObject, SiteSpec
from diloco_api.status import MAX_LEARNERS, MAX_SITES, JobStatus
from diloco_api.synchronizer import SynchronizerSpec
from diloco_api.train import SpecModel, TrainSpec

_IMMUTABLE = rules.cel(NEVER_CHANGES)
_SET: dict[str, JsonValue] = {"x-kubernetes-list-type": "set"}
_Propagated = Annotated[str, Field(min_length=1, max_length=180, pattern=SUBDOMAIN)]


class BudgetSpec(SpecModel):
    """When the job is Complete; the merged work of all Learners counts."""

    model_config = ConfigDict(
        json_schema_extra=rules.cel(
            rule(
                "(has(self.tokens) ? 1 : 0) + (has(self.innerSteps) ? 1 : 0) + (has(self.outerRounds) ? 1 : 0) <= 1",
                rules.ONE_BUDGET,
            )
        )
    )

    tokens: int | None = Field(default=None, ge=1, le=10**16)
    """Tokens of the whole job. Default, where nothing is set: 20 per parameter of the model (arXiv 2203.15556)."""
    inner_steps: int | None = Field(default=None, ge=1, le=10**9)
    """Inner steps of each of `learners.replicas` Learners."""
    outer_rounds: int | None = Field(default=None, ge=1, le=10**9)
    """Outer steps of every fragment, each standing for `syncEvery` inner steps of `learners.replicas` Learners."""


class LearnersSpec(SpecModel):
    """How many Learners train. Mutable."""

    model_config = ConfigDict(
        json_schema_extra=rules.cel(
            rule("self.min <= self.replicas", rules.REPLICAS_AT_LEAST_MIN, "replicas"),
            rule("!has(self.max) || self.replicas <= self.max", rules.REPLICAS_AT_MOST_MAX, "replicas"),
        )
    )

    replicas: int = Field(ge=1, le=MAX_LEARNERS)
    """Learners wanted. Required. What depends on it (outer learning rate, budgets in steps, step schedules) is fixed
    with its value at acceptance; DiLoCo and StreamingDiLoCo divide the work by that value and take no more Learners."""
    min: int = Field(default=1, ge=1, le=MAX_LEARNERS)
    """Fewer than this many that can still be restarted fail the job; synchronous presets start with them when not all
    are there in time. Default 1."""
    max: int | None = Field(default=None, ge=1, le=MAX_LEARNERS)
    """Upper bound of `replicas` over the job's life. Default: `replicas`."""
    gpus: int = Field(default=1, ge=0, le=128)
    """GPUs of one Learner; 0, or a node pool with device cpu: it trains on the CPU. Local runs use what there is.
    Default 1."""
    template: OpenObject | None = None
    """What is changed of the Learners' pods: `metadata` (labels, annotations) and `spec`, as far as a pod stays within
    the restricted profile. Holds for pods made from then on. Local runs ignore it."""


class FailurePolicySpec(SpecModel):
    """What failures cost. Mutable."""

    max_restarts: int = Field(default=10, ge=0, le=1000)
    """Restarts of one Learner index that count (its own failures, not disruptions) before it is parked; the job fails
    when fewer than `learners.min` are left. Default 10."""


class PropagateSpec(SpecModel):
    """Secrets and ConfigMaps of the job's namespace that Learners need at every site. Templates name them as they are
    called here. They must carry the label `diloco.dev/propagate: "true"`."""

    secrets: list[_Propagated] = Field(default=[], max_length=32, json_schema_extra=_SET)
    """Names of Secrets."""
    config_maps: list[_Propagated] = Field(default=[], max_length=32, json_schema_extra=_SET)
    """Names of ConfigMaps."""


class JobSpec(SpecModel):
    """What the user wants."""

    model_config = ConfigDict(
        json_schema_extra=rules.cel(
            rule(
                "!has(self.algorithm.quorum.minLearners) || type(self.algorithm.quorum.minLearners) == string || "
                "self.algorithm.quorum.minLearners <= "
                "(has(self.learners.max) ? self.learners.max : self.learners.replicas)",
                rules.QUORUM_AT_MOST_LEARNERS,
                "algorithm.quorum.minLearners",
            ),
            rule(
                "!has(self.sites) || self.synchronizer.exposure.type != 'ClusterIP' || "
                "!self.sites.exists(site, has(site.kubeconfigSecretRef))",
                rules.EXPOSURE_NEEDED,
                "synchronizer.exposure.type",
            ),
            rule(
                "!has(self.sites) || self.sites.filter(site, !has(site.kubeconfigSecretRef)).size() <= 1",
                rules.ONE_HUB,
                "sites",
            ),
            rule(
                "!has(self.sites) || self.sites.map(site, site.learners.min).sum() <= "
                "(has(self.learners.max) ? self.learners.max : self.learners.replicas)",
                rules.SITE_MINIMA,
                "sites",
            ),
            rule(
                "!has(self.sites) || self.sites.exists(site, !has(site.learners.max)) || "
                "self.learners.replicas <= "
                "self.sites.filter(site, has(site.learners.max)).map(site, site.learners.max).sum()",
                rules.SITE_MAXIMA,
                "learners.replicas",
            ),
        )
    )

    algorithm: AlgorithmSpec = Field(default=AlgorithmSpec(), json_schema_extra=_IMMUTABLE)
    """How Learners are kept together. Immutable."""
    train: TrainSpec = Field(json_schema_extra=_IMMUTABLE)
    """What is trained, on what and how. Immutable."""
    budget: BudgetSpec = Field(default=BudgetSpec(), json_schema_extra=_IMMUTABLE)
    """When the job is Complete. Immutable."""
    learners: LearnersSpec
    """How many Learners train. Mutable."""
    synchronizer: SynchronizerSpec = SynchronizerSpec()
    """The Synchronizer. Ports and storage are immutable."""
    failure_policy: FailurePolicySpec = FailurePolicySpec()
    """What failures cost. Mutable."""
    sites: list[SiteSpec] = Field(
        default=[],
        max_length=MAX_SITES,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    """Where Learners run, in order of preference. Mutable. Default: one site, the hub. Local runs have one of their
    own."""
    propagate: PropagateSpec = PropagateSpec()
    """What is copied to every site. Mutable."""
    priority_class_name: ObjectName | None = None
    """PriorityClass of all pods. Holds for pods made from then on. Default: the cluster's."""


def _job_name(name: str) -> str:
    if len(name) > names.JOB_NAME_MAX_LENGTH or not re.fullmatch(names.JOB_NAME_PATTERN, name):
        raise ValueError(rules.JOB_NAME)
    return name


class ObjectMeta(SpecModel):
    """The part of Kubernetes' metadata that is used; everything else is carried along."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, AfterValidator(_job_name)]
    """A DNS label, as names of pods and Services are made from it."""
    namespace: str = "default"
    """Namespace of the job."""
    uid: str = ""
    """Identity of the job for ever; empty in a manifest."""
    generation: int = 0
    """Counts changes of the spec."""
    resource_version: str = ""
    """For guarded writes."""
    creation_timestamp: str | None = None
    """When the object was created."""
    deletion_timestamp: str | None = None
    """When its end was asked for."""
    finalizers: list[str] = Field(default=[])
    """Who has something to remove before it may go."""


class DiLoCoJob(SpecModel):
    """One training run of Learners that are joined by a Synchronizer."""

    model_config = ConfigDict(
        json_schema_extra=rules.cel(
            rule(
                f"self.metadata.name.size() <= {names.JOB_NAME_MAX_LENGTH} && "
                f"self.metadata.name.matches('{names.JOB_NAME_PATTERN}')",
                f"metadata.name {rules.JOB_NAME}",
            )
        )
    )

    api_version: Literal["diloco.dev/v1alpha1"] = "diloco.dev/v1alpha1"
    """Always diloco.dev/v1alpha1."""
    kind: Literal["DiLoCoJob"] = "DiLoCoJob"
    """Always DiLoCoJob."""
    metadata: ObjectMeta
    """Name and identity."""
    spec: JobSpec
    """What the user wants."""
    status: JobStatus = JobStatus()
    """What was observed."""

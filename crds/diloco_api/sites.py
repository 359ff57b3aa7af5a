"""`spec.sites`: the clusters a job's Learners may run in, and how each of them takes part.

`problems` holds the rules between sites. Where a Learner goes is decided by the operator's planning.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, WithJsonSchema

from diloco_api import names, rules
from diloco_api.errors import Problem
from diloco_api.rules import rule
from diloco_api.status import MAX_LEARNERS, MAX_POOLS
from diloco_api.train import SpecModel

DNS_LABEL = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
SUBDOMAIN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
_RESOURCE = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
MAX_SELECTOR = 16
MAX_TOLERATIONS = 16
Label = Annotated[str, Field(min_length=1, max_length=63, pattern=DNS_LABEL)]
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=SUBDOMAIN)]
OPEN_OBJECT: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
OpenObject = Annotated[dict[str, Any], WithJsonSchema(OPEN_OBJECT)]


class SecretRef(SpecModel):
    """A Secret in the namespace of the job."""

    name: ObjectName
    """Name of the Secret."""


class SiteLearnersSpec(SpecModel):
    """How many Learners a site takes."""

    model_config = ConfigDict(
        json_schema_extra=rules.cel(rule("!has(self.max) || self.min <= self.max", rules.SITE_MIN_AT_MOST_MAX, "min"))
    )

    min: int = Field(default=0, ge=0, le=MAX_LEARNERS)
    """The first Learners go to sites that have fewer than this many. Default 0."""
    max: int | None = Field(default=None, ge=0, le=MAX_LEARNERS)
    """Never more than this many. Default: no bound."""
    weight: int = Field(default=1, ge=0, le=1000)
    """Learners are spread over sites in proportion to their weights; 0: only where no other site takes one. Default 1.
    """


def _at_most(values: dict[str, str]) -> dict[str, str]:
    if len(values) > MAX_SELECTOR:
        raise ValueError(f"must have at most {MAX_SELECTOR} entries")
    for key, value in values.items():
        if len(value) > 63:
            raise ValueError(f"{key}: must have at most 63 characters")
    return values


NodeSelector = Annotated[
    dict[str, str],
    AfterValidator(_at_most),
    WithJsonSchema(
        {
            "type": "object",
            "additionalProperties": {"type": "string", "maxLength": 63},
            "maxProperties": MAX_SELECTOR,
        }
    ),
]


class NodePoolSpec(SpecModel):
    """Nodes of one kind."""

    name: Label
    """Name of the pool."""
    node_selector: NodeSelector = Field(default={})
    """Labels its nodes have."""
    tolerations: list[OpenObject] = Field(
        default=[], max_length=MAX_TOLERATIONS, json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """Taints of its nodes that Learners put up with, as in a pod."""
    gpu_resource: str = Field(default="nvidia.com/gpu", min_length=1, max_length=253, pattern=_RESOURCE)
    """What a GPU is called there, for example `nvidia.com/mig-1g.10gb`. Default `nvidia.com/gpu`."""
    device: Literal["cuda", "cpu"] = "cuda"
    """`cuda`: Learners ask for `learners.gpus` GPUs and never train on anything else. `cpu`: they ask for none. Default
    `cuda`."""


class SiteSpec(SpecModel):
    """One cluster, and the namespace used in it."""

    model_config = ConfigDict(
        json_schema_extra=rules.cel(
            rule(
                "!has(self.namespace) || has(self.kubeconfigSecretRef)", rules.NAMESPACE_NEEDS_KUBECONFIG, "namespace"
            ),
            rules.fixed("namespace", rules.SITE_NAMESPACE_FIXED),
            rule(
                f"self.name != '{names.HUB_SITE}' || !has(self.kubeconfigSecretRef)",
                rules.HUB_HAS_NO_KUBECONFIG,
                "kubeconfigSecretRef",
            ),
        )
    )

    name: Label
    """Name of the site, a DNS label."""
    kubeconfig_secret_ref: SecretRef | None = None
    """Secret whose key `kubeconfig` leads to the cluster; it must carry the label `diloco.dev/kubeconfig: "true"`.
    Default: the hub, which is the cluster the job is in."""
    namespace: Label | None = None
    """Namespace in that cluster, for a site with a kubeconfig. Default: the job's."""
    learners: SiteLearnersSpec = SiteLearnersSpec()
    """How many Learners the site takes."""
    node_pools: list[NodePoolSpec] = Field(
        default=[],
        max_length=MAX_POOLS,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    """Where Learners go in that cluster: the pool with fewest, another one where there is no room. Default: any node
    with GPUs called `nvidia.com/gpu`."""

    @property
    def is_hub(self) -> bool:
        return self.kubeconfig_secret_ref is None


def problems(sites: Sequence[SiteSpec], job_namespace: str, most: int, replicas: int) -> Iterator[Problem]:
    """Every broken rule of and between sites; `most` and `replicas` are the job's Learners."""
    path = "spec.sites"
    yield from _doubled(sites, path)
    hubs = [site.name for site in sites if site.is_hub]
    if len(hubs) > 1:
        yield Problem(path, ", ".join(hubs), rules.ONE_HUB)
    seen: dict[tuple[str, str], str] = {}
    for number, site in enumerate(sites):
        at = f"{path}.{number}"
        yield from _broken(site, at)
        if site.kubeconfig_secret_ref is not None:
            target = (site.kubeconfig_secret_ref.name, site.namespace or job_namespace)
            if target in seen:
                yield Problem(f"{at}.kubeconfigSecretRef", target[0], f"{rules.SAME_TARGET} ({seen[target]})")
            seen.setdefault(target, site.name)
    least = sum(site.learners.min for site in sites)
    if least > most:
        yield Problem(path, f"{least}", f"{rules.SITE_MINIMA} ({most})")
    bounds = [site.learners.max for site in sites]
    room = sum(bound for bound in bounds if bound is not None)
    if sites and None not in bounds and room < replicas:
        yield Problem("spec.learners.replicas", f"{replicas}", f"{rules.SITE_MAXIMA} ({room})")


def _doubled(sites: Sequence[SiteSpec], path: str) -> Iterator[Problem]:
    seen: set[str] = set()
    for number, site in enumerate(sites):
        if site.name in seen:
            yield Problem(f"{path}.{number}.name", site.name, rules.ONE_NAME)
        seen.add(site.name)
        pools: set[str] = set()
        for place, pool in enumerate(site.node_pools):
            if pool.name in pools:
                yield Problem(f"{path}.{number}.nodePools.{place}.name", pool.name, rules.ONE_NAME)
            pools.add(pool.name)


def _broken(site: SiteSpec, at: str) -> Iterator[Problem]:
    if site.is_hub and site.namespace is not None:
        yield Problem(f"{at}.namespace", site.namespace, rules.NAMESPACE_NEEDS_KUBECONFIG)
    if not site.is_hub and site.name == names.HUB_SITE:
        assert site.kubeconfig_secret_ref is not None, "it is not the hub"
        yield Problem(f"{at}.kubeconfigSecretRef", site.kubeconfig_secret_ref.name, rules.HUB_HAS_NO_KUBECONFIG)
    if site.learners.max is not None and site.learners.min > site.learners.max:
        rule_text = f"{rules.SITE_MIN_AT_MOST_MAX} ({site.learners.max})"
        yield Problem(f"{at}.learners.min", f"{site.learners.min}", rule_text)

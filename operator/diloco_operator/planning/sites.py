"""Which sites a job has: its spec, or the one machine of a local run, as one list of places.

The hub comes first, as the Synchronizer is there, also where no Learner may be. Nothing is observed or decided here.
"""

from dataclasses import dataclass, field

from diloco_api import names
from diloco_api.sites import NodePoolSpec, SiteLearnersSpec, SiteSpec
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.planning.types import Observed, OperatorPolicy


@dataclass(frozen=True)
class SiteRef:
    """How a site is reached."""

    name: str
    secret: str | None
    """Secret with its kubeconfig, in the job's namespace; None: the hub."""
    namespace: str
    order: int = 0
    """Place in the order of preference."""
    takes_learners: bool = True
    learners: SiteLearnersSpec = SiteLearnersSpec()
    pools: tuple[NodePoolSpec, ...] = field(default=(NodePoolSpec(name=names.DEFAULT_POOL),))

    @property
    def is_hub(self) -> bool:
        return self.secret is None


def site_refs(job: DiLoCoJob) -> tuple[SiteRef, ...]:
    """The sites of a job on clusters, the hub first, the others in the order of the spec."""
    listed = [_ref(site, number, job.metadata.namespace) for number, site in enumerate(job.spec.sites)]
    if not listed:
        return (SiteRef(names.HUB_SITE, None, job.metadata.namespace),)
    hub = next((ref for ref in listed if ref.is_hub), None)
    first = hub or SiteRef(names.HUB_SITE, None, job.metadata.namespace, takes_learners=False)
    return (first, *(ref for ref in listed if ref is not hub))


def places(job: DiLoCoJob, policy: OperatorPolicy, observed: Observed) -> tuple[SiteRef, ...]:
    """The sites of a job on clusters; on one machine that machine, whatever the spec says of sites."""
    if policy.tls:
        return site_refs(job)
    return tuple(SiteRef(view.name, None, job.metadata.namespace, number) for number, view in enumerate(observed.sites))


def _ref(site: SiteSpec, order: int, namespace: str) -> SiteRef:
    secret = site.kubeconfig_secret_ref.name if site.kubeconfig_secret_ref else None
    pools = tuple(site.node_pools) or (NodePoolSpec(name=names.DEFAULT_POOL),)
    return SiteRef(site.name, secret, site.namespace or namespace, order, learners=site.learners, pools=pools)

"""The reconciler of one job on clusters, put together. Decides nothing."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from diloco_operator.api import Api, JobRef
from diloco_operator.hub_facts import Kept, KubeFacts
from diloco_operator.kube_hub import KubeHub
from diloco_operator.planning.types import OperatorPolicy
from diloco_operator.reconciler import Pass, Reconciler, RunEnd
from diloco_operator.registry import JobSites, Registry
from diloco_operator.synchronizer_client import SynchronizerClient
from diloco_operator.wake_ups import WakeUps


@dataclass(frozen=True)
class Shared:
    """What all jobs of a process share."""

    api: Api
    registry: Registry
    policy: OperatorPolicy
    crd_problem: Callable[[], Awaitable[str]]
    on_pass: Callable[[JobRef, Pass, dict[str, float]], None]
    """With the times at which credentials of sites expire."""
    on_problem: Callable[[JobRef, str], None]
    """A pass failed, and not because the job had changed or was gone."""
    on_end: Callable[[JobRef], None] = lambda _: None
    """Nobody looks after the job any more."""
    nodes: Kept[list[str]] = field(default_factory=lambda: Kept("nodes", []))
    """Addresses of the hub's ready nodes."""
    namespace_ends: Callable[[str], bool] = lambda _: False
    """Whether a namespace is being deleted, and the operator's rights there with it."""


class JobRunner:
    """One job."""

    def __init__(self, shared: Shared, ref: JobRef) -> None:
        self._ref = ref
        self._on_end = shared.on_end
        self._hub = KubeHub(shared.api, ref)
        self._sites = JobSites(shared.registry, ref.uid)
        hub_site = shared.registry.hub(ref.namespace, ref.uid).site
        nodes = partial(shared.nodes.get, hub_site.node_addresses)
        facts = KubeFacts(shared.api, nodes, shared.crd_problem, shared.namespace_ends)
        self._client = SynchronizerClient()
        self._reconciler = Reconciler(
            self._hub, self._sites, facts, self._client, shared.policy,
            on_pass=lambda done: shared.on_pass(ref, done, self._sites.expiries()),
            on_problem=lambda problem: shared.on_problem(ref, problem),
        )  # fmt: skip

    @property
    def wake_ups(self) -> WakeUps:
        return self._reconciler.wake_ups

    @property
    def resource_version(self) -> str:
        return self._hub.resource_version

    def job_changed(self) -> None:
        self._hub.changed()

    async def run(self) -> RunEnd:
        async with self._client:
            return await self._reconciler.run()

    async def close(self) -> None:
        await self._sites.close()
        self._on_end(self._ref)

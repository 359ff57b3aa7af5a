"""What planning needs to know of the hub beyond the job's objects: addresses, content to copy, an old CRD.

Looked up seldom and kept between passes; what cannot be read is told in the log and left out, but for what is to be
copied: a pass without it would take the copies away. Decides nothing.
"""

import asyncio
import base64
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from diloco_api import names
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.api import Api, ApiError, core_path, find
from diloco_operator.planning.types import ObjectKey
from diloco_operator.sites.site import SiteError

log = logging.getLogger(__name__)

LABEL_PROPAGATE = "diloco.dev/propagate"
KEEP_SECONDS = 30.0
_T = TypeVar("_T")


@dataclass(frozen=True)
class HubFacts:
    """As of a moment ago."""

    admin_host: str = ""
    """Where the operator reaches the Synchronizer; empty: nowhere yet."""
    node_addresses: tuple[str, ...] = ()
    propagated: Mapping[ObjectKey, Mapping[str, bytes]] = field(default_factory=dict, repr=False)
    crd_problem: str = ""
    namespace_ends: bool = False
    """The job's namespace is being deleted."""


class Facts(Protocol):
    """Where a job's facts are asked for, at every pass."""

    async def read(self, job: DiLoCoJob) -> HubFacts:
        """HubError where what has to be known has never been read."""


class FixedFacts:
    """The same facts for ever."""

    def __init__(self, facts: HubFacts) -> None:
        self._facts = facts

    async def read(self, job: DiLoCoJob) -> HubFacts:
        return self._facts


class Kept(Generic[_T]):
    """What was found last, for a while; what was found before when it cannot be looked up now."""

    def __init__(
        self,
        what: str,
        default: _T,
        *,
        believe_empty: bool = True,
        required: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`required`: nothing stands in for the first answer; copies at sites would go for a hub that is slow."""
        self._what = what
        self._found = default
        self._at: float | None = None
        self._believe_empty = believe_empty
        self._required = required
        self._now = now
        self._told = ""
        self._turn = asyncio.Lock()

    async def get(self, look: Callable[[], Awaitable[_T]]) -> _T:
        """`look` is asked when it is time; those who come meanwhile wait for its answer."""
        async with self._turn:
            fresh = self._at is not None and self._now() - self._at < KEEP_SECONDS
            if fresh and (self._found or self._believe_empty):
                return self._found
            problem = ""
            try:
                self._found = await look()
            except (ApiError, SiteError) as error:
                if self._required and self._at is None:
                    raise
                problem = f"{error.reason}: {error}"
            if problem and self._told != problem:
                log.warning("%s: %s", self._what, problem)
            self._told = problem
            self._at = self._now()
            return self._found


class KubeFacts:
    """Facts of one job on an API server. `node_addresses`: see `HubFacts`; asked at every pass that needs them."""

    def __init__(
        self,
        api: Api,
        node_addresses: Callable[[], Awaitable[list[str]]],
        crd_problem: Callable[[], Awaitable[str]],
        namespace_ends: Callable[[str], bool] = lambda _: False,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._node_addresses = node_addresses
        self._crd_problem = crd_problem
        self._namespace_ends = namespace_ends
        self._admin = Kept("admin", "", believe_empty=False, now=now)
        self._content: Kept[dict[ObjectKey, dict[str, bytes]]] = Kept("propagate", {}, required=True, now=now)

    async def read(self, job: DiLoCoJob) -> HubFacts:
        exposure = job.spec.synchronizer.exposure
        nodes_wanted = exposure.type == "NodePort" and not exposure.addresses
        return HubFacts(
            admin_host=await self._admin.get(lambda: self._cluster_ip(job)),
            node_addresses=tuple(await self._node_addresses()) if nodes_wanted else (),
            propagated=await self._content.get(lambda: self._propagated(job)),
            crd_problem=await self._crd_problem(),
            namespace_ends=self._namespace_ends(job.metadata.namespace),
        )

    async def _cluster_ip(self, job: DiLoCoJob) -> str:
        """Of the Synchronizer's Service: an address works with and without the cluster's DNS."""
        name = names.synchronizer_name(job.metadata.name, job.metadata.uid)
        service = await find(self._api, core_path(job.metadata.namespace, "services", name))
        return str(service["spec"].get("clusterIP", "")) if service is not None else ""

    async def _propagated(self, job: DiLoCoJob) -> dict[ObjectKey, dict[str, bytes]]:
        found: dict[ObjectKey, dict[str, bytes]] = {}
        spec = job.spec.propagate
        for kind, plural, wanted in (
            ("Secret", "secrets", spec.secrets),
            ("ConfigMap", "configmaps", spec.config_maps),
        ):
            for name in wanted:
                source = await find(self._api, core_path(job.metadata.namespace, plural, name))
                if source is None or (source["metadata"].get("labels") or {}).get(LABEL_PROPAGATE) != "true":
                    continue
                found[kind, name] = _content(kind, source)
        return found


def _content(kind: str, source: Mapping[str, Any]) -> dict[str, bytes]:
    data: Mapping[str, str] = source.get("data") or {}
    binary: Mapping[str, str] = source.get("binaryData") or {}
    if kind == "Secret":
        return {key: base64.b64decode(value) for key, value in data.items()}
    return {key: value.encode() for key, value in data.items()} | {k: base64.b64decode(v) for k, v in binary.items()}

"""`KubeSite`: one namespace of one cluster as a site, through its API server.

Pods are created by POST and never patched; other objects are applied (server-side) after a look showed absence or the
label of the same job; deletions name the uid that was meant. Decides nothing; errors are those of `site`.
"""

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from diloco_api.names import LABEL_JOB_UID, LABEL_ORIGIN
from diloco_operator.sites.kube_client import APPLY_PATCH, JSON, METADATA, KubeClient, KubeLimits, OnCall
from diloco_operator.sites.kube_errors import AlreadyThere, SiteNotFound
from diloco_operator.sites.kube_kinds import CONFIG_MAP, HUB_KINDS, POD, SECRET, Kind, by_name
from diloco_operator.sites.kube_watch import SharedWatch
from diloco_operator.sites.kubeconfig import ClusterCredentials
from diloco_operator.sites.site import (
    LOG_TAIL_BYTES,
    LOG_TAIL_LINES,
    AlreadyExists,
    Created,
    Manifest,
    SiteConflict,
    SiteEvent,
    SiteInvalid,
    SiteServerError,
)

FIELD_MANAGER = "diloco-operator"
_MANAGER = ("fieldManager", FIELD_MANAGER)
_CREATE_ATTEMPTS = 2


class KubeSite:
    """One namespace of one cluster. Made inside a running event loop; `close()` after everything else.

    `kinds`: what of a job may be there; `SITE_KINDS` for a site whose Role allows no more.
    """

    def __init__(
        self,
        name: str,
        credentials: ClusterCredentials,
        namespace: str,
        *,
        kinds: tuple[Kind, ...] = HUB_KINDS,
        limits: KubeLimits | None = None,
        now: Callable[[], float] = time.monotonic,
        on_call: OnCall | None = None,
    ) -> None:
        self._name = name
        self._namespace = namespace
        self._kinds = by_name(kinds)
        self._client = KubeClient(credentials, limits=limits, now=now, on_call=on_call)
        self._watch = SharedWatch(name, self._client, namespace, tuple(kind for kind in kinds if kind.watched))

    @property
    def name(self) -> str:
        return self._name

    @property
    def namespace(self) -> str:
        return self._namespace

    async def close(self) -> None:
        """End watches and connections; their readers are told."""
        await self._watch.close()
        await self._client.close()

    async def list_owned(self, job_uid: str) -> list[Manifest]:
        return await self.list_labelled(f"{LABEL_JOB_UID}={job_uid}")

    async def list_labelled(self, selector: str) -> list[Manifest]:
        """Every object of our kinds that has these labels; complete or an error."""
        lists = [self._list(kind, selector) for kind in self._kinds.values()]
        found = await asyncio.gather(*lists, return_exceptions=True)
        listed: list[Manifest] = []
        for of_kind in found:
            if isinstance(of_kind, BaseException):
                raise of_kind
            listed += of_kind
        return listed

    async def create_pod(self, manifest: Manifest) -> Created | AlreadyExists:
        """A pod that is gone again by the time it is looked at is created once more."""
        path = POD.path(self._namespace)
        for _ in range(_CREATE_ATTEMPTS):
            try:
                created = await self._client.request("POST", path, [_MANAGER], manifest)
                return Created(uid=created["metadata"]["uid"])
            except AlreadyThere:
                existing = await self._metadata(POD, manifest["metadata"]["name"])
            except SiteNotFound as error:
                raise SiteInvalid(str(error)) from error
            if existing is not None:
                return AlreadyExists(labels=dict(existing.get("labels") or {}), uid=existing["uid"])
        raise SiteConflict(f"pod {manifest['metadata']['name']}: comes and goes")

    async def apply(self, manifest: Manifest) -> None:
        name = manifest["metadata"]["name"]
        kind = self._kind(manifest["kind"])
        if kind is POD:
            raise SiteInvalid(f"pod {name}: pods are created, never applied")
        existing = await self._metadata(kind, name)
        if existing is not None:
            _check_same_job(existing, manifest)
        wanted = _as_stored(manifest)
        if existing is not None:  # so that what was looked at is what is changed, and nothing deleted comes back
            wanted["metadata"] = wanted["metadata"] | {"uid": existing["uid"]}
        path = kind.object_path(self._namespace, name)
        try:
            await self._client.request("PATCH", path, [_MANAGER, ("force", "true")], wanted, content_type=APPLY_PATCH)
        except SiteNotFound as error:
            raise SiteInvalid(f"{kind.name} {name}: {error}") from error

    async def delete(self, kind: str, name: str, uid: str | None) -> None:
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        try:
            await self._client.request("DELETE", self._kind(kind).object_path(self._namespace, name), (), options)
        except SiteNotFound:
            pass

    async def log_tail(self, pod: str, container: str) -> str:
        """Needs the right to get pods/log, which a site may withhold."""
        query = [("container", container), ("tailLines", str(LOG_TAIL_LINES)), ("limitBytes", str(LOG_TAIL_BYTES))]
        try:
            return await self._client.text(f"{POD.object_path(self._namespace, pod)}/log", query, 2 * LOG_TAIL_BYTES)
        except SiteNotFound:
            return ""

    def watch(self, job_uid: str) -> AsyncIterator[SiteEvent]:
        return self._watch.read(job_uid)

    async def identity(self) -> str:
        """UID of the namespace kube-system: which cluster this is, whatever its address."""
        path = "/api/v1/namespaces/kube-system"
        try:
            found = await self._client.request("GET", path, accept=METADATA)
        except SiteNotFound as error:
            raise SiteServerError("the cluster has no namespace kube-system") from error
        return str(found["metadata"]["uid"])

    async def node_addresses(self) -> list[str]:
        """One address of each Ready node, by name: its InternalIP, else its ExternalIP."""
        nodes, _ = await self._client.list_all("/api/v1/nodes", "", metadata_only=False)
        nodes.sort(key=lambda node: str(node["metadata"]["name"]))
        found = [_address(node.get("status") or {}) for node in nodes if _ready(node.get("status") or {})]
        return [address for address in found if address]

    async def secret_data(self, name: str) -> dict[str, bytes] | None:
        """The decoded entries of a Secret, None when there is none."""
        found = await self._get(SECRET, name)
        return found and {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()}

    async def config_map_data(self, name: str) -> dict[str, str] | None:
        """The entries of a ConfigMap that are text, None when there is none."""
        found = await self._get(CONFIG_MAP, name)
        return found and dict(found.get("data") or {})

    def _kind(self, name: str) -> Kind:
        if name not in self._kinds:
            raise SiteInvalid(f"kind {name}: this site has no use for it")
        return self._kinds[name]

    async def _list(self, kind: Kind, selector: str) -> list[Manifest]:
        """Items of a list say neither kind nor version; who manages which field is of no interest here."""
        path = kind.path(self._namespace)
        items, _ = await self._client.list_all(path, selector, metadata_only=kind.metadata_only)
        for item in items:
            item["apiVersion"], item["kind"] = kind.api_version, kind.name
            item["metadata"].pop("managedFields", None)
        return items

    async def _get(self, kind: Kind, name: str, accept: str = JSON) -> Manifest | None:
        try:
            return await self._client.request("GET", kind.object_path(self._namespace, name), accept=accept)
        except SiteNotFound:
            return None

    async def _metadata(self, kind: Kind, name: str) -> Manifest | None:
        found = await self._get(kind, name, accept=METADATA)
        return found and found["metadata"]


def _check_same_job(existing: Manifest, manifest: Manifest) -> None:
    theirs, ours = ((of.get("labels") or {}) for of in (existing, manifest["metadata"]))
    what = f"{manifest['kind']} {manifest['metadata']['name']}"
    if LABEL_JOB_UID not in theirs or theirs[LABEL_JOB_UID] != ours.get(LABEL_JOB_UID):
        raise SiteConflict(f"{what}: belongs to job uid {theirs.get(LABEL_JOB_UID)}")
    if theirs.get(LABEL_ORIGIN) != ours.get(LABEL_ORIGIN):
        raise SiteConflict(f"{what}: belongs to another installation ({LABEL_ORIGIN} {theirs.get(LABEL_ORIGIN)})")


def _as_stored(manifest: Manifest) -> Manifest:
    """Without `stringData`: an entry applied there is not removed with the next apply that lacks it."""
    if "stringData" not in manifest:
        return dict(manifest)
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in manifest["stringData"].items()}
    rest = {key: value for key, value in manifest.items() if key != "stringData"}
    return rest | {"data": manifest.get("data", {}) | encoded}


def _ready(status: Manifest) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or [])


def _address(status: Manifest) -> str:
    by_type = {address["type"]: address["address"] for address in reversed(status.get("addresses") or [])}
    return str(by_type.get("InternalIP") or by_type.get("ExternalIP") or "")

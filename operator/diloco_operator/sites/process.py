"""`ProcessSite`: the local machine as a site; runs Pod and Deployment manifests as processes.

It plays API server, Deployment controller (Recreate, one replica) and kubelet for one work folder. Objects live in
memory: after a restart of the operator there are none, and what an earlier, killed run left running is ended first. Not
honoured: everything `command.ignored_fields` lists (images, resources, security contexts, probes); it is logged once.
"""

import asyncio
import copy
import logging
import os
import time
import uuid
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from diloco_api.names import LABEL_DEPLOYMENT, LABEL_JOB_UID
from diloco_operator.sites.command import check_pod, ignored_fields
from diloco_operator.sites.container import PodRun, RestartBackoff, Surroundings, timestamp
from diloco_operator.sites.process_table import ProcessTable
from diloco_operator.sites.site import (
    LOG_TAIL_BYTES,
    LOG_TAIL_LINES,
    AlreadyExists,
    Created,
    Manifest,
    SiteConflict,
    SiteEvent,
    SiteInvalid,
    SiteStorage,
)
from diloco_operator.sites.volumes import Volumes, check_volumes

log = logging.getLogger(__name__)

_CONTENT_KINDS = ("ConfigMap", "Secret", "PersistentVolumeClaim")


@dataclass(frozen=True)
class RunningProcess:
    """A process of this site, for people and drills."""

    pod: str
    pid: int
    labels: dict[str, str]


class _Watch:
    """One reader of changes; forgotten by the site when its reader drops it."""

    def __init__(self, job_uid: str) -> None:
        self.job_uid = job_uid
        self.queue: asyncio.Queue[SiteEvent] = asyncio.Queue()

    def __aiter__(self) -> "_Watch":
        return self

    async def __anext__(self) -> SiteEvent:
        return await self.queue.get()


class ProcessSite:
    """One folder of the local machine as a site. Use `start()` before and `close()` after everything else."""

    def __init__(
        self, name: str, folder: Path, environment: Mapping[str, str], backoff: RestartBackoff | None = None
    ) -> None:
        self._name = name
        self._folder = folder
        self._objects: dict[tuple[str, str], Manifest] = {}
        self._runs: dict[str, PodRun] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._watches: weakref.WeakSet[_Watch] = weakref.WeakSet()
        self._said: set[str] = set()
        self._version = 0
        self._closing = False
        self._around = Surroundings(
            volumes=Volumes(folder),
            table=ProcessTable(folder / "processes.json"),
            logs=folder / "logs",
            own_environment=dict(environment),
            backoff=backoff or RestartBackoff(),
            secrets=lambda: [o for (kind, _), o in self._objects.items() if kind == "Secret"],
        )

    @property
    def name(self) -> str:
        return self._name

    @property
    def ignored(self) -> frozenset[str]:
        """Manifest fields met so far that mean nothing here."""
        return frozenset(self._said)

    def claim_folder(self, name: str) -> Path:
        """Where the content of a PersistentVolumeClaim lies."""
        return self._around.volumes.object_folder("PersistentVolumeClaim", name)

    def log_file(self, pod: str) -> Path:
        """Where the output of a pod goes."""
        return self._around.logs / f"{pod}.log"

    def processes(self) -> list[RunningProcess]:
        """What is running now."""
        running = [(name, run) for name, run in self._runs.items() if run.pid is not None]
        return [RunningProcess(name, run.pid or 0, dict(run.pod["metadata"]["labels"])) for name, run in running]

    async def start(self) -> None:
        """Make the folders and end what an earlier run left behind, also its copies of secrets."""
        with _storage_errors("its work folder"):
            self._around.logs.mkdir(parents=True, exist_ok=True)
            leftovers = await asyncio.to_thread(self._around.table.end_leftovers)
        for record in leftovers:
            log.warning("ended process %d (%s) left behind by an earlier run", record.pid, record.pod)
        self._around.volumes.forget_content()

    async def close(self, grace_seconds: float = 5.0) -> None:
        """End every process, first politely, and remove the secrets."""
        self._closing = True
        deadline = time.monotonic() + grace_seconds
        for run in list(self._runs.values()):
            run.delete(max(0.0, deadline - time.monotonic()))
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))
        for kind, name in [key for key in self._objects if key[0] == "Secret"]:
            self._around.volumes.discard(kind, name)

    async def list_owned(self, job_uid: str) -> list[Manifest]:
        owned = [o for o in self._objects.values() if o["metadata"].get("labels", {}).get(LABEL_JOB_UID) == job_uid]
        return [_without_content(copy.deepcopy(manifest)) for manifest in owned]

    async def create_pod(self, manifest: Manifest) -> Created | AlreadyExists:
        existing = self._objects.get(("Pod", manifest["metadata"]["name"]))
        if existing is not None:
            return AlreadyExists(labels=dict(existing["metadata"].get("labels", {})), uid=existing["metadata"]["uid"])
        return Created(uid=self._start_pod(manifest)["metadata"]["uid"])

    async def apply(self, manifest: Manifest) -> None:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        if kind not in (*_CONTENT_KINDS, "Deployment"):
            raise SiteInvalid(f"{kind} {name}: local processes have no use for this kind")
        if kind == "Deployment":
            self._check(_pod_of(manifest))
        existing = self._objects.get((kind, name))
        if existing is not None:
            _check_same_job(existing, manifest)
        if kind in _CONTENT_KINDS:
            with _storage_errors(f"{kind} {name}"):
                self._around.volumes.materialise(manifest)  # before it is listed: what is listed is not applied again
        stored = self._store(manifest, existing)
        if kind in _CONTENT_KINDS:
            for run in self._runs.values():
                run.poke()
        else:
            self._roll_out(stored)

    async def delete(self, kind: str, name: str, uid: str | None) -> None:
        existing = self._objects.get((kind, name))
        if existing is None:
            return
        if uid is not None and existing["metadata"]["uid"] != uid:
            raise SiteConflict(f"{kind} {name}: has uid {existing['metadata']['uid']}, not {uid}")
        if kind == "Pod":
            self._delete_pod(name)
            return
        self._remove(kind, name)
        if kind in _CONTENT_KINDS:
            self._around.volumes.discard(kind, name)
        else:
            for pod in self._pods_of(existing):
                self._delete_pod(pod)

    async def log_tail(self, pod: str, container: str) -> str:
        """Every process has one output, whatever its container is called."""
        try:
            with self.log_file(pod).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
                lines = file.read().decode(errors="replace").splitlines(keepends=True)
        except FileNotFoundError:
            return ""
        return "".join(lines[-LOG_TAIL_LINES:])

    def watch(self, job_uid: str) -> AsyncIterator[SiteEvent]:
        watch = _Watch(job_uid)
        self._watches.add(watch)
        return watch

    def _check(self, pod: Manifest) -> None:
        check_pod(pod)
        check_volumes(pod["spec"])
        fresh = [field for field in ignored_fields(pod) if field not in self._said]
        if fresh:
            self._said.update(fresh)
            log.info("site %s: local processes ignore %s", self._name, ", ".join(fresh))

    def _store(self, manifest: Manifest, existing: Manifest | None) -> Manifest:
        self._version += 1
        stored = copy.deepcopy(manifest)
        known = existing["metadata"] if existing else {"uid": str(uuid.uuid4()), "creationTimestamp": timestamp()}
        stored["metadata"] |= {key: known[key] for key in ("uid", "creationTimestamp")}
        stored["metadata"]["resourceVersion"] = str(self._version)
        stored["metadata"].setdefault("labels", {})
        self._objects[(stored["kind"], stored["metadata"]["name"])] = stored
        self._tell("MODIFIED" if existing else "ADDED", stored)
        return stored

    def _remove(self, kind: str, name: str) -> None:
        removed = self._objects.pop((kind, name), None)
        if removed is not None:
            self._tell("DELETED", removed)

    def _tell(self, type_: Literal["ADDED", "MODIFIED", "DELETED"], manifest: Manifest) -> None:
        event = SiteEvent(type_, manifest["kind"], manifest["metadata"]["name"])
        for watch in self._watches:
            if manifest["metadata"]["labels"].get(LABEL_JOB_UID) == watch.job_uid:
                watch.queue.put_nowait(event)

    def _start_pod(self, manifest: Manifest) -> Manifest:
        self._check(manifest)
        stored = self._store(manifest, None)
        name = stored["metadata"]["name"]
        run = PodRun(stored, self._around, changed=lambda: self._tell("MODIFIED", stored))
        self._runs[name] = run
        self._tasks[name] = asyncio.create_task(self._live(name, run), name=f"pod {name}")
        return stored

    async def _live(self, name: str, run: PodRun) -> None:
        """One pod from start to disappearance. A finished pod stays listed until it is deleted."""
        await run.run()
        self._tasks.pop(name, None)
        if run.deleting:
            self._gone(name)

    def _delete_pod(self, name: str) -> None:
        run = self._runs[name]
        run.delete()
        if name not in self._tasks:  # its process had ended before
            self._gone(name)

    def _gone(self, name: str) -> None:
        self._runs.pop(name, None)
        pod = self._objects.get(("Pod", name))
        self._remove("Pod", name)
        owner = pod["metadata"]["labels"].get(LABEL_DEPLOYMENT) if pod else None
        deployment = self._objects.get(("Deployment", owner)) if owner else None
        if deployment is not None:
            self._roll_out(deployment)

    def _pods_of(self, deployment: Manifest) -> list[str]:
        name = deployment["metadata"]["name"]
        return [pod for pod, run in self._runs.items() if run.pod["metadata"]["labels"].get(LABEL_DEPLOYMENT) == name]

    def _roll_out(self, deployment: Manifest) -> None:
        """Recreate: end pods of another template, then start one of this."""
        pods = self._pods_of(deployment)
        wanted = _pod_of(deployment)
        outdated = [p for p in pods if self._runs[p].pod["spec"] != wanted["spec"] or self._runs[p].deleting]
        for pod in outdated:
            if not self._runs[pod].deleting:
                self._delete_pod(pod)
        if not pods and not self._closing and deployment["spec"].get("replicas", 1) > 0:
            self._version += 1
            wanted["metadata"]["name"] = f"{deployment['metadata']['name']}-{self._version}"
            self._start_pod(wanted)


@contextmanager
def _storage_errors(what: str) -> Iterator[None]:
    """Errors of the operating system stop here."""
    try:
        yield
    except OSError as error:
        raise SiteStorage(f"{what}: cannot be written: {error.strerror}") from error


def _pod_of(deployment: Manifest) -> Manifest:
    template = copy.deepcopy(deployment["spec"]["template"])
    labels = template.get("metadata", {}).get("labels", {}) | {LABEL_DEPLOYMENT: deployment["metadata"]["name"]}
    metadata = template.get("metadata", {}) | {"name": deployment["metadata"]["name"], "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def _check_same_job(existing: Manifest, manifest: Manifest) -> None:
    theirs, ours = (m["metadata"].get("labels", {}).get(LABEL_JOB_UID) for m in (existing, manifest))
    if theirs != ours:
        raise SiteConflict(f"{manifest['kind']} {manifest['metadata']['name']}: belongs to job uid {theirs}")


def _without_content(manifest: Manifest) -> Manifest:
    if manifest["kind"] == "Secret":
        manifest.pop("data", None)
        manifest.pop("stringData", None)
    return manifest

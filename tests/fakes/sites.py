"""A site in memory; containers do what their first argument says: `run`, `stubborn` (ignores SIGTERM), `fail`,
`chatty` (writes 1000 numbered lines).
"""

import asyncio
import copy
from collections.abc import AsyncIterator
from typing import Any, Literal

from diloco_api.names import LABEL_JOB_UID
from diloco_operator.sites.site import LOG_TAIL_LINES, AlreadyExists, Created, SiteConflict, SiteError, SiteEvent

Manifest = dict[str, Any]
NOW = "2026-01-01T00:00:00Z"


class FakeSite:
    """API server, Deployment controller and kubelet. `down` makes every call fail with that error."""

    def __init__(self, name: str = "local", restart_seconds: float = 0.05) -> None:
        self._name = name
        self.objects: dict[tuple[str, str], Manifest] = {}
        self.down: SiteError | None = None
        self.logs: dict[str, str] = {}
        self.log_problem: SiteError | None = None
        self.calls: list[tuple[str, str, str]] = []
        self._restart_seconds = restart_seconds
        self._queues: list[tuple[str, asyncio.Queue[SiteEvent]]] = []
        self._count = 0

    @property
    def name(self) -> str:
        return self._name

    async def list_owned(self, job_uid: str) -> list[Manifest]:
        self._reach()
        owned = [o for o in self.objects.values() if o["metadata"]["labels"].get(LABEL_JOB_UID) == job_uid]
        return [{k: v for k, v in copy.deepcopy(o).items() if k not in ("stringData",)} for o in owned]

    async def create_pod(self, manifest: Manifest) -> Created | AlreadyExists:
        self._reach()
        existing = self.objects.get(("Pod", manifest["metadata"]["name"]))
        if existing is not None:
            return AlreadyExists(dict(existing["metadata"]["labels"]), existing["metadata"]["uid"])
        self.calls.append(("create", "Pod", manifest["metadata"]["name"]))
        return Created(self._create_pod(manifest)["metadata"]["uid"])

    async def apply(self, manifest: Manifest) -> None:
        self._reach()
        key = (manifest["kind"], manifest["metadata"]["name"])
        existing = self.objects.get(key)
        if existing is not None and existing["metadata"]["labels"].get(LABEL_JOB_UID) != manifest["metadata"][
            "labels"
        ].get(LABEL_JOB_UID):
            raise SiteConflict(f"{key} belongs to another job")
        self.calls.append(("apply", *key))
        self._store(manifest, existing)
        if manifest["kind"] == "Deployment":
            self._roll_out(manifest["metadata"]["name"])
        for pod in self._pods():
            self._try_start(pod)

    async def delete(self, kind: str, name: str, uid: str | None) -> None:
        self._reach()
        existing = self.objects.get((kind, name))
        if existing is None:
            return
        if uid is not None and existing["metadata"]["uid"] != uid:
            raise SiteConflict(f"{kind} {name}: another uid")
        self.calls.append(("delete", kind, name))
        if kind == "Pod":
            self._end(existing)
            return
        self._remove(kind, name)
        for pod in self._pods(name) if kind == "Deployment" else []:
            self._end(pod)

    async def log_tail(self, pod: str, container: str) -> str:
        self._reach()
        self.calls.append(("log", "Pod", pod))
        if self.log_problem is not None:
            raise self.log_problem
        lines = self.logs.get(pod, "").splitlines(keepends=True)
        return "".join(lines[-LOG_TAIL_LINES:])

    def watch(self, job_uid: str) -> AsyncIterator[SiteEvent]:
        queue: asyncio.Queue[SiteEvent] = asyncio.Queue()
        self._queues.append((job_uid, queue))

        async def events() -> AsyncIterator[SiteEvent]:
            while True:
                yield await queue.get()

        return events()

    def kill(self, pod_name: str, signum: int) -> None:
        """As if a signal had ended the container."""
        self.finish(pod_name, 128 + signum)

    def finish(self, pod_name: str, code: int, message: str = "") -> None:
        """End a running container; restartPolicy decides what follows."""
        pod = self.objects["Pod", pod_name]
        ended = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "message": message}
        ended |= {"startedAt": NOW, "finishedAt": NOW}
        status = pod["status"]["containerStatuses"][0]
        if pod["metadata"].get("deletionTimestamp"):
            self._gone(pod)
        elif pod["spec"].get("restartPolicy", "Always") == "Always":
            status |= {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": ended}}
            status["restartCount"] += 1
            asyncio.get_running_loop().call_later(self._restart_seconds, self._try_start, pod)
            self._tell("MODIFIED", pod)
        else:
            status["state"] = {"terminated": ended}
            pod["status"]["phase"] = "Succeeded" if code == 0 else "Failed"
            self._tell("MODIFIED", pod)

    def vanish(self, pod_name: str) -> None:
        """Somebody removed the pod at once."""
        self._gone(self.objects["Pod", pod_name])

    def pod_names(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self._pods()]

    def _reach(self) -> None:
        if self.down is not None:
            raise self.down

    def _store(self, manifest: Manifest, existing: Manifest | None) -> Manifest:
        self._count += 1
        stored = copy.deepcopy(manifest)
        uid = existing["metadata"]["uid"] if existing else f"uid-{self._count}"
        stored["metadata"] |= {"uid": uid, "creationTimestamp": NOW}
        self.objects[stored["kind"], stored["metadata"]["name"]] = stored
        self._tell("MODIFIED" if existing else "ADDED", stored)
        return stored

    def _remove(self, kind: str, name: str) -> None:
        removed = self.objects.pop((kind, name), None)
        if removed is not None:
            self._tell("DELETED", removed)

    def _tell(self, type_: Literal["ADDED", "MODIFIED", "DELETED"], manifest: Manifest) -> None:
        for job_uid, queue in self._queues:
            if manifest["metadata"]["labels"].get(LABEL_JOB_UID) == job_uid:
                queue.put_nowait(SiteEvent(type_, manifest["kind"], manifest["metadata"]["name"]))

    def _create_pod(self, manifest: Manifest) -> Manifest:
        pod = self._store(manifest, None)
        pod["status"] = {"phase": "Pending", "containerStatuses": [{"name": "c", "restartCount": 0}]}
        self._try_start(pod)
        return pod

    def _try_start(self, pod: Manifest) -> None:
        status = pod["status"]["containerStatuses"][0]
        if "running" in status.get("state", {}) or pod["status"]["phase"] in ("Succeeded", "Failed"):
            return
        for volume in pod["spec"].get("volumes", []):
            for source, kind, key in (("configMap", "ConfigMap", "name"), ("secret", "Secret", "secretName")):
                if source in volume and (kind, volume[source][key]) not in self.objects:
                    status["state"] = {"waiting": {"reason": "CreateContainerConfigError", "message": "missing"}}
                    return
        pod["status"]["phase"] = "Running"
        status["state"] = {"running": {"startedAt": NOW}}
        self._tell("MODIFIED", pod)
        behaviour, name = pod["spec"]["containers"][0].get("args"), pod["metadata"]["name"]
        if behaviour == ["chatty"]:
            self.logs[name] = "".join(f"line {number}\n" for number in range(1000))
        if behaviour == ["fail"]:
            self.logs[name] = "error: made to fail\n"
            self.finish(pod["metadata"]["name"], 1, "error: made to fail")

    def _end(self, pod: Manifest) -> None:
        if pod["metadata"].get("deletionTimestamp"):
            return
        pod["metadata"]["deletionTimestamp"] = NOW
        self._tell("MODIFIED", pod)
        args = pod["spec"]["containers"][0].get("args")
        grace = pod["spec"].get("terminationGracePeriodSeconds", 30) if args == ["stubborn"] else 0.01
        asyncio.get_running_loop().call_later(grace, self._gone, pod)

    def _gone(self, pod: Manifest) -> None:
        self._remove("Pod", pod["metadata"]["name"])
        owner = pod["metadata"]["labels"].get("deployment")
        if ("Deployment", owner) in self.objects:
            self._roll_out(owner)

    def _pods(self, deployment: str | None = None) -> list[Manifest]:
        pods = [manifest for (kind, _), manifest in self.objects.items() if kind == "Pod"]
        return [p for p in pods if deployment is None or p["metadata"]["labels"].get("deployment") == deployment]

    def _roll_out(self, name: str) -> None:
        template = copy.deepcopy(self.objects["Deployment", name]["spec"]["template"])
        pods = self._pods(name)
        for pod in pods:
            if pod["spec"] != template["spec"]:
                self._end(pod)
        if not pods:
            self._count += 1
            labels = template["metadata"]["labels"] | {"deployment": name}
            metadata = {"name": f"{name}-{self._count}", "labels": labels}
            self._create_pod({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})

"""A fake kubelet for scale: Node objects without machines, whose pods run only on paper.

The scheduler places pods on them like on any node. One thread a site moves each such pod to Running and Ready at once,
removes it when it is deleted, and renews the nodes' leases. `finish` gives a pod an end, as a container would.
"""

import datetime
import itertools
import threading
from collections.abc import Iterable

from clusters.api import Api, ApiError, Object, path_of
from clusters.layout import SiteLayout

TAINT = {"key": "diloco.test/fake", "value": "true", "effect": "NoSchedule"}
"""So that only pods that tolerate it land on a fake node."""
LABEL = "diloco.test/fake"

_LEASE_SECONDS = 40
_RENEW_EVERY_SECONDS = 5
_WATCH_SECONDS = 60


class FakeNodes:
    """Fake nodes of one site, for as long as the context is entered.

    `resources` are what each node has besides plenty of everything, such as {"nvidia.com/gpu": "8"}.
    """

    def __init__(self, site: SiteLayout, count: int, resources: dict[str, str] | None = None) -> None:
        self._api = Api(site)
        self.names = [f"{site.name}-fake-{index}" for index in range(count)]
        self._resources = {"cpu": "10000", "memory": "10000Gi", "pods": "1000"} | (resources or {})
        self._addresses = itertools.count(1)
        self._silent: set[str] = set()
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=loop, daemon=True) for loop in (self._renew, self._follow)]

    def __enter__(self) -> "FakeNodes":
        for name in self.names:
            self._api.apply(_node(name))
            status = {"capacity": self._resources, "allocatable": self._resources, "conditions": [_ready()]}
            self._api.patch(f"/api/v1/nodes/{name}/status", {"status": status}, strategic=True)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for name in self.names:
            self._api.delete("v1", "Node", None, name)
        self._threads[0].join(2 * _RENEW_EVERY_SECONDS)
        for pod in self._pods():
            self._delete(pod)

    def finish(self, namespace: str, name: str, exit_code: int, message: str = "") -> None:
        """The pod's container ends."""
        ended = {"exitCode": exit_code, "reason": "Completed" if exit_code == 0 else "Error", "message": message}
        pod = self._api.request("GET", path_of("v1", "Pod", namespace, name))
        phase = "Succeeded" if exit_code == 0 else "Failed"
        self._patch(pod, phase, {"terminated": {**ended, "finishedAt": _now()}}, ready=False)

    def silence(self, name: str) -> None:
        """Nothing is heard of a node any more: it becomes NotReady, and nobody moves its pods."""
        self._silent.add(name)

    def hear(self, name: str) -> None:
        """A silent node is back."""
        self._silent.discard(name)
        self._renew_lease(name)
        self._api.patch(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [_ready()]}}, strategic=True)

    def _renew(self) -> None:
        """Leases keep the nodes Ready; the node's status is written once and left alone."""
        while not self._stopped.is_set():
            for name in self.names:
                try:
                    if name not in self._silent:
                        self._renew_lease(name)
                except (ApiError, OSError):  # the API server is down on purpose: tried again
                    break
            self._stopped.wait(_RENEW_EVERY_SECONDS)

    def _renew_lease(self, name: str) -> None:
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": "kube-node-lease"},
            "spec": {"holderIdentity": name, "leaseDurationSeconds": _LEASE_SECONDS, "renewTime": _now(6)},
        }
        self._api.apply(lease)

    def _follow(self) -> None:
        while not self._stopped.is_set():
            try:
                for event in self._api.watch("/api/v1/pods", _WATCH_SECONDS):
                    if self._stopped.is_set():
                        return
                    if event["type"] in ("ADDED", "MODIFIED"):
                        self._move(event["object"])
            except (ApiError, OSError):  # as above; what was missed is seen again by the next watch
                self._stopped.wait(0.5)

    def _move(self, pod: Object) -> None:
        node = pod["spec"].get("nodeName")
        if node not in self.names or node in self._silent:
            return
        try:
            if "deletionTimestamp" in pod["metadata"]:
                self._delete(pod)
            elif pod["status"].get("phase") == "Pending":
                self._patch(pod, "Running", {"running": {"startedAt": _now()}}, ready=True)
        except ApiError as error:
            if error.status not in (404, 409):  # deleted or changed meanwhile: another event follows
                raise

    def _patch(self, pod: Object, phase: str, state: Object, *, ready: bool) -> None:
        metadata = pod["metadata"]
        truth = str(ready)
        types = ("Initialized", "Ready", "ContainersReady")
        conditions = [
            {"type": kind, "status": truth if kind != "Initialized" else "True", "lastTransitionTime": _now()}
            for kind in types
        ]
        number = next(self._addresses)
        address = pod["status"].get("podIP") or f"198.18.{number // 250 % 250}.{number % 250 + 1}"
        containers = [
            {"name": one["name"], "image": one["image"], "imageID": "fake", "ready": ready, "restartCount": 0,
             "started": ready, "state": state}
            for one in pod["spec"]["containers"]
        ]  # fmt: skip
        status = {
            "phase": phase, "podIP": address, "podIPs": [{"ip": address}], "hostIP": "198.18.255.1",
            "startTime": pod["status"].get("startTime") or _now(),
            "containerStatuses": containers, "conditions": conditions,
        }  # fmt: skip
        path = path_of("v1", "Pod", metadata["namespace"], metadata["name"], "status")
        self._api.patch(path, {"metadata": {"uid": metadata["uid"]}, "status": status}, strategic=True)

    def _delete(self, pod: Object) -> None:
        metadata = pod["metadata"]
        self._api.delete("v1", "Pod", metadata["namespace"], metadata["name"], grace_seconds=0)

    def _pods(self) -> Iterable[Object]:
        return [pod for pod in self._api.all("v1", "Pod") if pod["spec"].get("nodeName") in self.names]


def _node(name: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {LABEL: "true", "kubernetes.io/hostname": name}},
        "spec": {"taints": [TAINT]},
    }


def _ready() -> Object:
    return {"type": "Ready", "status": "True", "reason": "FakeKubelet", "message": "", "lastHeartbeatTime": _now(),
            "lastTransitionTime": _now()}  # fmt: skip


def _now(digits: int = 0) -> str:
    now = datetime.datetime.now(datetime.UTC)
    return now.strftime("%Y-%m-%dT%H:%M:%S") + (f".{now.microsecond:06d}" if digits else "") + "Z"

"""The operator as a process of this machine, inside the hub's network namespace, where ClusterIPs are reached."""

import base64
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from clusters import workloads
from clusters.api import Api, Object, wait_until
from clusters.layout import Layout, SiteLayout
from clusters.pythons import REPOSITORY

GROUP = "diloco.dev/v1alpha1"


class OperatorProcess:
    """Looks after the jobs of one namespace; its Lease and its own Secret are in another."""

    def __init__(self, layout: Layout, namespace: str, own_namespace: str, image: str, folder: Path) -> None:
        self._layout = layout
        self._namespace = namespace
        self._own_namespace = own_namespace
        self._image = image
        self.log = folder / "operator.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._health_port, self._metrics_port = workloads.inside(layout, "hub", _two_free_ports)

    def start(self) -> None:
        """And wait until it is active."""
        paths = os.pathsep.join(str(REPOSITORY / package) for package in ("crds", "operator"))
        command = [
            "nsenter", f"--net={self._layout.namespace_path('hub')}", sys.executable, "-m", "diloco_operator",
            f"--image={self._image}", f"--kubeconfig={self._layout.hub.kubeconfig}", f"--namespace={self._namespace}",
            f"--lease-namespace={self._own_namespace}",
            f"--health-port={self._health_port}", f"--metrics-port={self._metrics_port}",
        ]  # fmt: skip
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": paths}, stdout=log, stderr=log)
        wait_until("the operator to be active", lambda: self.ask("readyz") == "active\n", 30)

    def ask(self, path: str) -> str:
        """Text of one of its health pages, or of `metrics`; empty when it does not answer."""
        port = self._metrics_port if path == "metrics" else self._health_port

        def get() -> str:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as answer:
                    return str(answer.read().decode())
            except (OSError, urllib.error.URLError):
                return ""

        return str(workloads.inside(self._layout, "hub", get))

    def end(self, signum: int = signal.SIGTERM) -> int:
        """The exit code."""
        if self._process is None:
            return 0
        self._process.send_signal(signum)
        code = self._process.wait(30)
        self._process = None
        return code


def _two_free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("", 0))
        other.bind(("", 0))
        return one.getsockname()[1], other.getsockname()[1]


def kubeconfig_secret(site: SiteLayout, namespace: str, name: str, text: str | None = None) -> Object:
    """A Secret of the hub that leads to a site."""
    content = site.kubeconfig.read_text() if text is None else text
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "labels": {"diloco.dev/kubeconfig": "true"}},
        "data": {"kubeconfig": base64.b64encode(content.encode()).decode()},
    }


def job_of(api: Api, namespace: str, name: str) -> Object | None:
    return api.get(GROUP, "DiLoCoJob", namespace, name)


def condition(job: Object | None, kind: str) -> tuple[str, str, str]:
    """(status, reason, message) of a condition of a job or of one of its sites."""
    status = (job or {}).get("status", job or {})
    found = next((one for one in status.get("conditions", []) if one["type"] == kind), {})
    return found.get("status", ""), found.get("reason", ""), found.get("message", "")


def site_of(job: Object | None, name: str) -> Object:
    return next((one for one in (job or {}).get("status", {}).get("sites", []) if one["name"] == name), {})


def owned(api: Api, namespace: str, uid: str) -> dict[str, str]:
    """kind/name -> uid of everything that carries the job's label."""
    kinds = [
        ("v1", "Pod"), ("v1", "Secret"), ("v1", "ConfigMap"), ("v1", "Service"), ("v1", "PersistentVolumeClaim"),
        ("apps/v1", "Deployment"), ("policy/v1", "PodDisruptionBudget"), ("networking.k8s.io/v1", "NetworkPolicy"),
    ]  # fmt: skip
    return {
        f"{kind}/{one['metadata']['name']}": one["metadata"]["uid"]
        for version, kind in kinds
        for one in api.all(version, kind, namespace, f"diloco.dev/job-uid={uid}")
    }


def pods(api: Api, namespace: str, uid: str) -> dict[str, Object]:
    found = api.all("v1", "Pod", namespace, f"diloco.dev/job-uid={uid}")
    return {one["metadata"]["name"]: one for one in found}


def seconds_until(what: str, found: object, timeout_seconds: float) -> float:
    """How long it took."""
    begun = time.monotonic()
    wait_until(what, found, timeout_seconds)  # type: ignore[arg-type]
    return time.monotonic() - begun

"""What tests put into clusters and ask of them: namespaces, pods, Services, probes."""

import socket
import subprocess
import threading
from collections.abc import Callable
from typing import Any

from clusters import network
from clusters.api import Api, Object, path_of, wait_until
from clusters.images import BUSYBOX
from clusters.layout import Layout, SiteLayout

RESTRICTED = {
    "pod-security.kubernetes.io/enforce": "restricted",
    "pod-security.kubernetes.io/enforce-version": "latest",
}
"""Labels of a namespace in which only pods of the restricted profile are let in."""


def namespace(name: str, *, restricted: bool = True) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": dict(RESTRICTED) if restricted else {}},
    }


def pod(namespace: str, name: str, *command: str, image: str = BUSYBOX, **spec: Any) -> Object:
    """A pod of the restricted profile that ends at once when it is deleted. Without a command it stays."""
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container | ({"command": list(command)} if command else {})],
            **spec,
        },
    }


def service(namespace: str, name: str, app: str, port: int, node_port: int | None = None) -> Object:
    """A ClusterIP Service, or a NodePort one where a node port is given."""
    ports = {"port": port, "targetPort": port, **({"nodePort": node_port} if node_port else {})}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"type": "NodePort" if node_port else "ClusterIP", "selector": {"app": app}, "ports": [ports]},
    }


def wait_for_pod(api: Api, namespace: str, name: str, *phases: str, timeout_seconds: float = 60) -> Object:
    """Wait until the pod is in one of the phases (Running also asks for Ready); the pod."""

    def found() -> Object | None:
        seen = api.get("v1", "Pod", namespace, name)
        phase = seen["status"].get("phase") if seen else None
        ready = phase != "Running" or condition(seen, "Ready") == "True"
        return seen if phase in phases and ready else None

    try:
        return wait_until(f"pod {namespace}/{name} {' or '.join(phases)}", found, timeout_seconds)
    except TimeoutError as error:
        error.add_note(f"{api.get('v1', 'Pod', namespace, name)}")
        raise


def condition(found: Object | None, kind: str) -> str | None:
    """Status of a condition, None if it is not there."""
    conditions = found["status"].get("conditions", []) if found else []
    return next((one["status"] for one in conditions if one["type"] == kind), None)


def give_load_balancer(api: Api, namespace: str, name: str, address: str) -> None:
    """Answer a Service of type LoadBalancer as a cloud would."""
    status = {"status": {"loadBalancer": {"ingress": [{"ip": address}]}}}
    api.patch(path_of("v1", "Service", namespace, name, "status"), status)


def wait_until_gone(api: Api, api_version: str, kind: str, namespace: str | None, name: str) -> None:
    wait_until(f"{kind} {name} gone", lambda: api.get(api_version, kind, namespace, name) is None, 60)


def logs(api: Api, namespace: str, name: str) -> str:
    return str(api.request("GET", path_of("v1", "Pod", namespace, name, "log")))


def kubectl(site: SiteLayout, *arguments: str) -> str:
    """Output of kubectl as the site's administrator."""
    return network.run(str(site.clusters.bin / "kubectl"), f"--kubeconfig={site.kubeconfig}", *arguments)


def reaches(layout: Layout, namespace: str, address: str, port: int, timeout_seconds: float = 2) -> bool:
    """Whether a TCP connection from a network namespace to the address comes about."""

    def connect() -> bool:
        try:
            with socket.create_connection((address, port), timeout_seconds):
                return True
        except OSError:
            return False

    return inside(layout, namespace, connect)


def inside(layout: Layout, namespace: str, act: Callable[[], Any]) -> Any:
    """What the function returns when it is called within a network namespace, by a thread of its own."""
    results: list[Any] = []

    def enter_and_act() -> None:
        network.enter(layout, namespace)
        results.append(act())

    thread = threading.Thread(target=enter_and_act)
    thread.start()
    thread.join()
    return results[0]


def process_ids_of(text: str) -> list[str]:
    """Lines of the process list that hold the text."""
    listing = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listing.splitlines() if text in line]

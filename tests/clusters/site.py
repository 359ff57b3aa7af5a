"""One cluster: start it, wait until it serves, take it down."""

import socket
import struct
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from clusters import cgroups, network, node, pki, storage
from clusters.api import Api, Object, wait_until
from clusters.components import control_plane
from clusters.layout import DNS_SERVICE, SiteLayout
from clusters.processes import Processes


def start(site: SiteLayout, num_nodes: int, archives: list[Path]) -> list[str]:
    """Start what does not run and wait until nodes are Ready and DNS answers; names of what was started."""
    begin = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    processes = Processes(site.folder)
    started = start_control_plane(site, processes)
    for index in range(num_nodes):
        pki.make_node(site.node(index))
        started += node.start(site.node(index), processes, archives)
    api = Api(site)
    for layout in site.nodes():
        since = begin if any(name.startswith("kubelet") for name in started) else ""
        ready = partial(node.is_ready, api, layout.name, since)
        _wait(processes, started, f"node {layout.name} Ready", ready, 90)
    name = "kubernetes.default.svc.cluster.local"
    _wait(processes, started, f"DNS of {site.name}", lambda: resolves(site, name), 30)
    wait_until("the default ServiceAccount", lambda: api.get("v1", "ServiceAccount", "default", "default"), 30)
    return started


def start_control_plane(site: SiteLayout, processes: Processes) -> list[str]:
    site.folder.mkdir(parents=True, exist_ok=True)
    cgroups.make(f"{site.cgroup}/components")
    network.link_node(site.node(0))
    pki.make_authority(site)
    started = []
    for component in control_plane(site):
        if processes.start(component):
            started.append(component.name)
        if component.name == "kube-apiserver":
            _wait(processes, started, f"API server of {site.name}", lambda: is_ready(site), 90)
            if started:
                wait_until("first objects", lambda: _apply(site, _first_objects(site) + storage.class_objects()))
    return started


def stop(site: SiteLayout) -> None:
    """End every process of the site and remove its cgroups and its folder."""
    cgroups.kill(site.cgroup)
    cgroups.remove(site.cgroup)
    if site.folder.exists():
        node.remove_folder(site.folder)
    site.kubeconfig.unlink(missing_ok=True)


def is_ready(site: SiteLayout) -> bool:
    """Whether the site's API server says that it is ready."""
    return Api(site, timeout_seconds=2).request("GET", "/readyz") == "ok"


def resolves(site: SiteLayout, name: str, timeout_seconds: float = 1) -> bool:
    """Whether the site's CoreDNS gives an address for the name."""
    question = b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0"
    query = struct.pack(">HHHHHH", 1, 0x0100, 1, 0, 0, 0) + question + struct.pack(">HH", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.settimeout(timeout_seconds)
        udp.sendto(query, (site.address, 53))
        answer = udp.recv(512)
    flags, _, num_answers = struct.unpack(">HHH", answer[2:8])
    return flags & 0xF == 0 and num_answers > 0


def _apply(site: SiteLayout, manifests: list[Object]) -> bool:
    api = Api(site)
    for manifest in manifests:
        api.apply(manifest)
    return True


def _wait(
    processes: Processes, watched: list[str], what: str, condition: Callable[[], bool], timeout_seconds: float
) -> None:
    """Wait, and tell which of the watched processes died meanwhile instead of only that it took too long."""

    def alive_and_true() -> bool:
        for name in watched:
            if not processes.is_running(name):
                raise RuntimeError(f"waiting for {what}: {name} ended: {processes.log_tail(name)}")
        return condition()

    wait_until(what, alive_and_true, timeout_seconds)


def _first_objects(site: SiteLayout) -> list[Object]:
    """DNS runs as a process of the site, so its Service has no selector."""
    labels = {"kubernetes.io/service-name": "kube-dns"}
    ports = [{"name": f"dns-{protocol.lower()}", "port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
    readable = [
        {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    rbac = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "kube-dns", "namespace": "kube-system"},
         "spec": {"clusterIP": DNS_SERVICE, "ports": ports}},
        {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "ports": ports,
         "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": labels},
         "endpoints": [{"addresses": [site.address], "conditions": {"ready": True}}]},
        {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": "test-coredns"}, "rules": readable},
        {"apiVersion": f"{rbac}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "test-coredns"},
         "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "test-coredns"},
         "subjects": [{"apiGroup": rbac, "kind": "User", "name": "system:coredns"}]},
    ]  # fmt: skip

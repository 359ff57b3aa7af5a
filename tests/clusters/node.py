"""A real node: containerd, kubelet and kube-proxy.

The node has a mount namespace of its own, in which /run, /var/lib and /var/log are its own folders. So everything on a
node is at its usual place, nodes do not meet, and all mounts of pods go away with the node's last process.
"""

import json
import shutil
from pathlib import Path

from clusters import cgroups, network
from clusters.api import Api, wait_until
from clusters.images import PAUSE
from clusters.layout import DNS_SERVICE, NodeLayout
from clusters.processes import Component, Processes, write_configuration

_MOUNTS = Path(__file__).with_name("node-mounts.sh")
_SOCKET = "/run/containerd/containerd.sock"


def start(node: NodeLayout, processes: Processes, archives: list[Path]) -> list[str]:
    """Start what does not run and load images; names of what was started."""
    cgroups.make(node.cgroup)
    network.link_node(node)
    _write_configuration(node)
    started = []
    for component in components(node):
        if component.name == _own("mounts", node) and not processes.is_running(component.name):
            (node.folder / "mounted").unlink(missing_ok=True)
        if processes.start(component):
            started.append(component.name)
        if component.name == _own("mounts", node):
            wait_until("the node's mounts", (node.folder / "mounted").exists, 10, 0.02)
        if component.name in started and component.name == _own("containerd", node):
            wait_for_containerd(node, processes)
            for archive in archives:
                load_image(node, processes, archive)
    return started


def remove(node: NodeLayout, processes: Processes) -> None:
    """Take a node away from its cluster for good, also one that has died; pods that were on it are gone with it."""
    api = Api(node.site)
    for component in components(node):
        processes.stop(component.name)
        processes.forget(component.name)
    cgroups.kill(node.cgroup)
    for pod in api.all("v1", "Pod"):
        if pod["spec"].get("nodeName") == node.name:
            api.delete("v1", "Pod", pod["metadata"]["namespace"], pod["metadata"]["name"], grace_seconds=0)
    api.delete("v1", "Node", None, node.name)
    cgroups.remove(node.cgroup)
    network.remove_namespace(node)
    remove_folder(node.folder)


def components(node: NodeLayout) -> list[Component]:
    """In the order in which they are started."""
    site = node.site
    path = str(site.clusters.namespace_path(node.namespace))
    group = f"{site.cgroup}/components"
    mounts = _own("mounts", node)
    kubelet = [
        str(site.clusters.bin / "kubelet"),
        f"--config={node.folder}/kubelet.json",
        f"--kubeconfig={site.pki}/{node.name}.kubeconfig",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
        f"--node-labels=topology.kubernetes.io/region={site.name}",
    ]
    proxy = [str(site.clusters.bin / "kube-proxy"), f"--config={node.folder}/kube-proxy.json"]
    return [
        Component(mounts, ["unshare", "--mount", str(_MOUNTS), str(node.folder), site.address], path, group),
        Component(
            _own("containerd", node), ["containerd", "-c", f"{node.folder}/containerd.toml"], path, group, mounts
        ),
        Component(_own("kubelet", node), kubelet, path, group, mounts),
        Component(_own("kube-proxy", node), proxy, path, group),
    ]


def load_image(node: NodeLayout, processes: Processes, archive: Path) -> None:
    """Import an OCI or docker archive into the node's containerd."""
    run(node, processes, "ctr", "-a", _SOCKET, "-n", "k8s.io", "images", "import", str(archive))


def mount_read_only(node: NodeLayout, processes: Processes, folder: Path, path: str) -> None:
    """Show a folder of the machine at a path of the node, by a file system that nobody can write to.

    A read-only bind mount would not do: kubelets mount volumes again without that flag, then change their owner.
    """
    mount = 'mkdir -p "$2" /run/empty && mount -t overlay read-only -o "lowerdir=$1:/run/empty" "$2"'
    script = f'mountpoint -q "$2" || {{ {mount}; }}'
    run(node, processes, "sh", "-c", script, "sh", str(folder), path)


def run(node: NodeLayout, processes: Processes, *command: str) -> str:
    """Run a command with the network and the mounts of the node."""
    containerd = components(node)[1]
    return network.run(*processes.enter(containerd), *command)


def add_capacity(api: Api, name: str, resources: dict[str, int]) -> None:
    """Give a node extended resources (GPUs); they are scheduled, and run out, like real ones. 0 removes one."""
    values = {key: str(count) if count else None for key, count in resources.items()}
    api.patch(f"/api/v1/nodes/{name}/status", {"status": {"capacity": values, "allocatable": values}})


def taint(api: Api, name: str, *taints: str) -> None:
    """Set the node's taints, each `key=value:Effect`; none removes all, Kubernetes' own come back by themselves."""
    parsed = []
    for text in taints:
        pair, _, effect = text.partition(":")
        key, _, value = pair.partition("=")
        parsed.append({"key": key, "value": value, "effect": effect})
    api.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": parsed or None}})


def is_ready(api: Api, name: str, since: str = "") -> bool:
    """Whether the node says that it is Ready, and said so at or after a time (RFC 3339, UTC)."""
    found = api.get("v1", "Node", None, name)
    conditions = found["status"].get("conditions", []) if found else []
    return any(
        one["type"] == "Ready" and one["status"] == "True" and one["lastHeartbeatTime"] >= since for one in conditions
    )


def wait_for_containerd(node: NodeLayout, processes: Processes) -> None:
    def answers() -> bool:
        try:
            run(node, processes, "ctr", "-a", _SOCKET, "version")
        except RuntimeError:
            if not processes.is_running(_own("containerd", node)):
                raise
            return False
        return True

    wait_until(f"containerd of {node.name}", answers, 30, 0.2)


def _own(component: str, node: NodeLayout) -> str:
    return component if node.index == 0 else f"{component}-{node.index}"


def _write_configuration(node: NodeLayout) -> None:
    cni = node.folder / "cni"
    cni.mkdir(parents=True, exist_ok=True)
    write_configuration(cni / "10-pods.conflist", json.dumps(_cni(node), indent=1))
    write_configuration(node.folder / "containerd.toml", _containerd(node))
    write_configuration(node.folder / "kubelet.json", json.dumps(_kubelet(node), indent=1))
    write_configuration(node.folder / "kube-proxy.json", json.dumps(_kube_proxy(node), indent=1))


def _cni(node: NodeLayout) -> dict:
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": node.pod_cidr}]], "routes": [{"dst": "0.0.0.0/0"}]},
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, portmap]}


def _containerd(node: NodeLayout) -> str:
    """The oom score cannot be lowered without CAP_SYS_RESOURCE, so it is left as it is."""
    return f"""version = 2
[plugins."io.containerd.internal.v1.opt"]
  path = "{node.folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{node.folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""


def _kubelet(node: NodeLayout) -> dict:
    pki = node.site.pki
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.cgroup}",
        "clusterDNS": [DNS_SERVICE],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": f"unix://{_SOCKET}",
        "resolvConf": "",
        "tlsCertFile": f"{pki}/{node.name}.crt",
        "tlsPrivateKeyFile": f"{pki}/{node.name}.key",
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        "makeIPTablesUtilChains": False,
        "evictionHard": {"memory.available": "100Mi"},
        "imageGCHighThresholdPercent": 100,
        "maxPods": 200,
        "nodeStatusUpdateFrequency": "4s",
        "nodeLeaseDurationSeconds": 16,
        "syncFrequency": "15s",
    }


def _kube_proxy(node: NodeLayout) -> dict:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": f"{node.site.pki}/{node.name}-proxy.kubeconfig"},
        "clusterCIDR": node.site.cluster_cidr,
        "hostnameOverride": node.name,
        "conntrack": {"maxPerCore": 0},
    }


def remove_folder(folder: Path) -> None:
    """Remove a folder of the clusters, unless something is still mounted below it, whose files would go too."""
    mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    below = [path for path in mounted if Path(path).is_relative_to(folder)]
    if below:
        raise RuntimeError(f"not removed, since something is mounted there: {', '.join(below)}")
    shutil.rmtree(folder, ignore_errors=False)

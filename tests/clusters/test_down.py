"""A set of clusters that is down has left nothing behind, also where pods ran and components had died."""

from pathlib import Path

from clusters import cgroups, cli, faults, network, workloads
from clusters.api import Api, wait_until
from clusters.layout import Layout
from clusters.processes import Processes

USUAL_PATHS = [Path(path) for path in ("/var/lib/kubelet", "/var/lib/cni", "/var/log/pods", "/run/containerd")]
"""Where components put things unless they are told otherwise: a node has these folders for itself."""


def test_down_leaves_nothing_and_up_is_repeatable(clusters: Layout):
    layout = Layout(clusters.folder.with_name("diloco-clusters-once"))
    paths_before = [path for path in USUAL_PATHS if path.exists()]
    try:
        cli.up(layout, num_sites=0)
        api = Api(layout.hub)
        api.create(workloads.pod("default", "sleeper", restartPolicy="Always"))
        workloads.wait_for_pod(api, "default", "sleeper", "Running")
        assert cli.up(layout, num_sites=0) == []
        faults.stop(layout.hub, "kube-scheduler")
        assert cli.up(layout, num_sites=0) == ["hub/kube-scheduler"]
        assert Processes(layout.hub.folder).is_running("kube-scheduler")
        cgroups.kill(layout.name)  # as when the machine went down
        cli.up(layout, num_sites=0)
        wait_until("the pod's second start", lambda: restarts(api, "sleeper") == 1, 60)
        faults.stop(layout.hub, "containerd")
    finally:
        cli.down(layout)
        network.enter(clusters)  # `up` had moved this process into the other set's `wan`
    assert cli.leftovers(layout) == []
    assert workloads.process_ids_of(layout.name) == []
    assert [line for line in mounts() if layout.name in line] == []
    assert [path for path in USUAL_PATHS if path.exists()] == paths_before


def restarts(api, name):
    return api.get("v1", "Pod", "default", name)["status"]["containerStatuses"][0]["restartCount"]


def mounts():
    return Path("/proc/self/mounts").read_text().splitlines()

"""Each failure can be made alone, does what it says and no more, and is healed."""

import socket
import threading
import time

import pytest

from clusters import faults, network, node, shape, workloads
from clusters.api import Api, wait_until
from clusters.fake_nodes import FakeNodes
from clusters.layout import API_PORT, WAN
from clusters.relay import Relay

pytestmark = pytest.mark.usefixtures("healed")
PORT = 7001
MEGABYTE = 1_000_000


@pytest.fixture
def listener(clusters):
    """Something on the hub that answers, as the Synchronizer's NodePort does."""
    server = workloads.inside(clusters, "hub", lambda: socket.create_server((clusters.hub.address, PORT)))
    yield server
    server.close()


def seen_by(clusters, site):
    """What is reached: the site's API from the hub, the hub's port from the site, the site's API from `wan`."""
    from_hub = workloads.reaches(clusters, "hub", site.address, API_PORT, 1)
    from_site = workloads.reaches(clusters, site.name, clusters.hub.address, PORT, 1)
    return {"api": from_hub, "pods": from_site, "wan": workloads.reaches(clusters, WAN, site.address, API_PORT, 1)}


@pytest.mark.parametrize(
    ("kinds", "reached"),
    [
        (["api"], {"api": False, "pods": True, "wan": True}),
        (["pods"], {"api": True, "pods": False, "wan": True}),
        (["api", "pods"], {"api": False, "pods": False, "wan": True}),
        (["all"], {"api": False, "pods": False, "wan": False}),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else "",
)
def test_a_cut_takes_away_what_it_names_and_healing_brings_it_back(clusters, site_1, listener, kinds, reached):
    for kind in kinds:
        faults.cut(site_1, kind)
    assert seen_by(clusters, site_1) == reached
    assert seen_by(clusters, clusters.site("site-2")) == {"api": True, "pods": True, "wan": True}
    for kind in kinds:
        faults.heal(site_1, kind)
    assert seen_by(clusters, site_1) == {"api": True, "pods": True, "wan": True}


def test_a_cut_stops_a_connection_that_was_open(clusters, site_1, listener):
    connect = lambda: socket.create_connection((clusters.hub.address, PORT), 2)  # noqa: E731
    with workloads.inside(clusters, "site-1", connect) as learner:
        synchronizer, _ = listener.accept()
        faults.cut(site_1, "pods")
        synchronizer.sendall(b"round 1")
        learner.settimeout(1)
        with pytest.raises(TimeoutError):
            learner.recv(100)
        faults.heal(site_1, "pods")
        learner.settimeout(20)
        assert learner.recv(100) == b"round 1"
        synchronizer.close()


def test_a_shaped_link_has_the_rate_it_was_given(clusters, site_1, listener):
    shape.limit(site_1, 20)
    assert 12 < measured_mbit(clusters, listener, 2 * MEGABYTE) < 26
    shape.limit(site_1, 0)
    assert measured_mbit(clusters, listener, 20 * MEGABYTE) > 100


def measured_mbit(clusters, listener, num_bytes):
    """Rate from site-1 to the hub."""

    def send():
        with socket.create_connection((clusters.hub.address, PORT), 5) as connection:
            connection.sendall(bytes(num_bytes))

    sender = threading.Thread(target=lambda: workloads.inside(clusters, "site-1", send))
    sender.start()
    connection, _ = listener.accept()
    begin, received = time.monotonic(), 0
    while chunk := connection.recv(1 << 16):
        received += len(chunk)
    took = time.monotonic() - begin
    connection.close()
    sender.join()
    assert received == num_bytes
    return num_bytes * 8 / took / 1e6


def test_a_stopped_api_server_refuses_a_frozen_one_is_silent_and_both_come_back(clusters, site_1):
    faults.stop(site_1, "kube-apiserver")
    with pytest.raises(ConnectionRefusedError):
        Api(site_1).request("GET", "/readyz")
    faults.start(site_1, "kube-apiserver")
    wait_until("the API server", lambda: Api(site_1).request("GET", "/readyz") == "ok", 60)
    faults.freeze(site_1, "kube-apiserver")
    with pytest.raises(TimeoutError):
        Api(site_1, timeout_seconds=1).request("GET", "/readyz")
    faults.thaw(site_1, "kube-apiserver")
    wait_until("the API server", lambda: Api(site_1).request("GET", "/readyz") == "ok", 20)


def test_a_node_without_kubelet_is_not_ready_and_its_pods_run_on(clusters, site_1, new_namespace):
    namespace, api = new_namespace(site_1), Api(site_1)
    api.create(workloads.pod(namespace, "steady"))
    before = workloads.wait_for_pod(api, namespace, "steady", "Running")
    faults.stop(site_1, "kubelet")
    wait_until("the node NotReady", lambda: not node.is_ready(api, "site-1-node-0"), 40)
    faults.start(site_1, "kubelet")
    wait_until("the node Ready", lambda: node.is_ready(api, "site-1-node-0"), 40)
    after = workloads.wait_for_pod(api, namespace, "steady", "Running")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0


def test_nothing_leads_out_of_the_namespaces(clusters):
    for name in (WAN, "hub", "site-1"):
        links = network.run("ip", "-n", clusters.namespace(name), "-br", "link").splitlines()
        assert all(line.startswith(("lo ", "v-", "eth0@", "cni0 ", "veth")) for line in links), links


def test_a_silent_fake_node_becomes_not_ready_and_comes_back(clusters, site_1):
    api = Api(site_1)
    with FakeNodes(site_1, 2) as fakes:
        silent, heard = fakes.names
        wait_until("both Ready", lambda: all(node.is_ready(api, name) for name in fakes.names), 10)
        fakes.silence(silent)
        wait_until("the silent one NotReady", lambda: not node.is_ready(api, silent), 40)
        assert node.is_ready(api, heard)
        fakes.hear(silent)
        wait_until("Ready again", lambda: node.is_ready(api, silent), 20)


def test_a_killed_container_ends_its_pod(site_1, new_namespace):
    namespace, api = new_namespace(site_1), Api(site_1)
    api.create(workloads.pod(namespace, "victim"))
    faults.kill_container(site_1, workloads.wait_for_pod(api, namespace, "victim", "Running"))
    ended = workloads.wait_for_pod(api, namespace, "victim", "Failed", timeout_seconds=20)
    assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137


def test_an_image_that_cannot_be_pulled_is_said_to_be_so_within_seconds(site_1, new_namespace):
    namespace, api = new_namespace(site_1), Api(site_1)
    api.create(workloads.pod(namespace, "nobody", image="registry.invalid/nobody:1"))

    def reason():
        statuses = api.get("v1", "Pod", namespace, "nobody")["status"].get("containerStatuses") or [{}]
        return statuses[0].get("state", {}).get("waiting", {}).get("reason") in ("ErrImagePull", "ImagePullBackOff")

    wait_until("the image's failure", reason, 15)


def test_a_relay_delays_holds_and_drops(site_1, tmp_path):
    with Relay(site_1, 6501) as relay:
        relay.write_kubeconfig(tmp_path / "relayed")
        ready = [f"--kubeconfig={tmp_path}/relayed", "get", "--raw=/readyz"]
        command = [str(site_1.clusters.bin / "kubectl"), *ready]
        assert network.run(*command) == "ok"
        relay.delay_seconds = 0.3
        begin = time.monotonic()
        assert network.run(*command) == "ok"
        assert time.monotonic() - begin > 4 * relay.delay_seconds  # the handshake's two ways and the answer's
        relay.delay_seconds = 0
        relay.hold()
        with pytest.raises(RuntimeError, match=r"Timeout|timeout|deadline"):
            network.run(*command, "--request-timeout=1s")
        relay.release()
        relay.refuse = True
        with pytest.raises(RuntimeError, match=r"EOF|reset"):
            network.run(*command)

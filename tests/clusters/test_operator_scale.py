"""Two hundred Learners on fake kubelets, over five sites: how soon a lost pod is replaced, and what rest costs.

Namespaces of two real API servers, each behind a relay of its own, stand for five sites. The Synchronizer is real.
"""

import contextlib
import os
import statistics
import threading
import time

import pytest

from clusters import cli, storage, workloads
from clusters.api import Api, path_of, wait_until
from clusters.fake_nodes import LABEL, TAINT, FakeNodes
from clusters.operator_process import GROUP, OperatorProcess, job_of, kubeconfig_secret, pods
from clusters.pythons import REPOSITORY
from clusters.relay import Relay

pytestmark = pytest.mark.timeout(900)
LEARNERS = 200
LOSSES = 40
SITES = (("site-1", "a"), ("site-1", "b"), ("site-1", "c"), ("site-2", "a"), ("site-2", "b"))
"""(cluster, end of the namespace's name)."""
FIRST_PORT = 17443
POOL = {
    "name": "fake", "device": "cpu", "nodeSelector": {LABEL: "true"},
    "tolerations": [{"key": TAINT["key"], "operator": "Exists"}],
}  # fmt: skip


@pytest.fixture(scope="module")
def arena(clusters, python, tmp_path_factory):
    """(hub's API, namespace of the job, its UID, (API, namespace) of each site) with all Learners' pods running."""
    name, folder, hub = f"scale-{os.getpid()}", tmp_path_factory.mktemp("scale"), Api(clusters.hub)
    storage.provide(clusters.hub, clusters.hub.node(0), cli.FREE_VOLUMES)
    with contextlib.ExitStack() as stack:

        def made(site, namespace):
            Api(site).apply(workloads.namespace(namespace))
            stack.callback(Api(site).delete, "v1", "Namespace", None, namespace)

        for cluster in ("site-1", "site-2"):
            stack.enter_context(FakeNodes(clusters.site(cluster), 2))
        for namespace in (name, f"{name}-own"):
            made(clusters.hub, namespace)
        python.provide(clusters.hub, name)
        stack.callback(python.remove, clusters.hub, name)
        listed, sites = [], []
        for number, (cluster, end) in enumerate(SITES):
            site, namespace = clusters.site(cluster), f"{name}-{end}"
            made(site, namespace)
            relay = stack.enter_context(Relay(site, FIRST_PORT + number))
            relay.write_kubeconfig(folder / f"s{number}")
            text = (folder / f"s{number}").read_text()
            hub.create(kubeconfig_secret(site, name, f"s{number}", text))
            ref = {"kubeconfigSecretRef": {"name": f"s{number}"}, "namespace": namespace, "nodePools": [POOL]}
            listed.append({"name": f"s{number}", **ref})
            sites.append((Api(site), namespace))
        crd = f"{REPOSITORY}/crds/dilocojobs.diloco.dev.yaml"
        workloads.kubectl(clusters.hub, "apply", "--server-side", "--force-conflicts", "-f", crd)
        operator = OperatorProcess(clusters, name, f"{name}-own", python.image, folder)
        stack.callback(lambda: print(operator.log.read_text()[-8000:]))
        stack.callback(operator.end)
        operator.start()
        uid = hub.create(manifest(name, listed, python.pod_template))["metadata"]["uid"]
        stack.callback(end_job, hub, name)
        begun = time.monotonic()
        wait_until("its first Learner", lambda: sum(count(sites, uid)) > 0, 300)
        first = time.monotonic()
        wait_until("all pods", lambda: sum(count(sites, uid)) == LEARNERS, 120)
        print(f"first pod after {first - begun:.0f} s, all {LEARNERS} {time.monotonic() - first:.1f} s later")
        time.sleep(10)
        yield hub, name, uid, sites


def manifest(namespace, sites, template):
    return {
        "apiVersion": GROUP,
        "kind": "DiLoCoJob",
        "metadata": {"name": "many", "namespace": namespace},
        "spec": {
            "train": {
                "data": {"uri": "{stdlib}/[a-c]*.py", "sequenceLength": 32},
                "model": {"layers": 1, "hidden": 32, "heads": 2},
                "batch": {"sequences": 2},
            },
            "budget": {"outerRounds": 100000},
            "learners": {"replicas": LEARNERS},
            "synchronizer": {"template": template, "storage": {"size": "1Gi"}, "exposure": {"type": "NodePort"}},
            "sites": sites,
        },
    }


def end_job(hub, namespace):
    hub.delete(GROUP, "DiLoCoJob", namespace, "many")
    wait_until("the job gone", lambda: job_of(hub, namespace, "many") is None, 120)


def count(sites, uid):
    return [len(pods(api, namespace, uid)) for api, namespace in sites]


class Observer:
    """When pods came and went, as one watch per site tells: by (index, what happened), seconds."""

    def __init__(self, sites, uid):
        self.seen = {}
        self._uid = uid
        for api, namespace in sites:
            threading.Thread(target=self._follow, args=(api, namespace), daemon=True).start()

    def _follow(self, api, namespace):
        query = {"labelSelector": f"diloco.dev/job-uid={self._uid}"}
        for event in api.watch(path_of("v1", "Pod", namespace), 600, **query):
            labels, now = event["object"]["metadata"]["labels"], time.monotonic()
            who = int(labels["diloco.dev/learner-index"]), int(labels["diloco.dev/incarnation"])
            self.seen.setdefault((*who, event["type"]), now)


def test_a_lost_pod_is_replaced_within_a_second(arena, figure):
    _, _, uid, sites = arena
    assert all(count(sites, uid))
    observer = Observer(sites, uid)
    wait_until("the watches", lambda: len(observer.seen) >= LEARNERS)
    took = []
    for number in range(LOSSES):
        api, namespace = sites[number % len(sites)]
        lost = sorted(pods(api, namespace, uid).items())[number // len(sites)]
        labels = lost[1]["metadata"]["labels"]
        index, incarnation = int(labels["diloco.dev/learner-index"]), int(labels["diloco.dev/incarnation"])
        api.delete("v1", "Pod", namespace, lost[0])
        gone, back = (index, incarnation, "DELETED"), (index, incarnation + 1, "ADDED")
        wait_until("a replacement", lambda keys=(gone, back): all(key in observer.seen for key in keys), 20)
        took.append(observer.seen[back] - observer.seen[gone])
    took.sort()
    p95 = took[round(0.95 * len(took)) - 1]
    times = f"median {statistics.median(took):.3f} s, p95 {p95:.3f} s, most {took[-1]:.3f} s"
    figure(f"{LOSSES} of {LEARNERS} Learners' pods lost one after the other; replacement created: {times}")
    assert p95 < 1.0


def test_at_rest_nothing_is_written(arena, figure):
    hub, namespace, _, sites = arena
    time.sleep(10)

    def versions():
        found = {"job": job_of(hub, namespace, "many")["metadata"]["resourceVersion"]}
        kinds = [("v1", "Pod"), ("v1", "Secret"), ("v1", "ConfigMap"), ("networking.k8s.io/v1", "NetworkPolicy")]
        for at, (api, space) in enumerate([(hub, namespace), *sites]):
            for version, kind in [*kinds, ("v1", "Event")]:
                for one in api.all(version, kind, space):
                    found[at, kind, one["metadata"]["name"]] = one["metadata"]["resourceVersion"]
        return found

    before = versions()
    time.sleep(60)
    after = versions()
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    figure(f"{LEARNERS} Learners at rest for 60 s: {len(changed)} objects written")
    assert changed == set()

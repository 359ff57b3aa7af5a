"""The operator against real API servers: a job's objects appear at hub and site, outlive it, and go with the job.

The tests share one running job, in the order of the file, as real Learners take their time to start.
"""

import os
import signal
import time

import pytest

from clusters import cli, storage, workloads
from clusters.api import Api, path_of, wait_until
from clusters.endless_job import limited
from clusters.operator_process import (
    GROUP,
    OperatorProcess,
    condition,
    job_of,
    kubeconfig_secret,
    owned,
    pods,
    seconds_until,
    site_of,
)
from clusters.pythons import REPOSITORY
from clusters.relay import Relay

pytestmark = pytest.mark.timeout(400)
FINALIZER = "diloco.dev/teardown"
CRD = "dilocojobs.diloco.dev"
RELAY_PORT = 17543


@pytest.fixture(scope="module")
def relay(clusters):
    """The way to the site's API server, which a test may close without anybody else noticing."""
    with Relay(clusters.site("site-1"), RELAY_PORT) as relay:
        yield relay


@pytest.fixture(scope="module")
def namespace(clusters, python, relay, tmp_path_factory):
    """Of one name on hub and site, with what pods need to run the trainer, and the site's kubeconfig."""
    sites, name = (clusters.hub, clusters.site("site-1")), f"operator-{os.getpid()}"
    storage.provide(clusters.hub, clusters.hub.node(0), cli.FREE_VOLUMES)
    for site in sites:
        Api(site).apply(workloads.namespace(name))
        python.provide(site, name)
    Api(clusters.hub).apply(workloads.namespace(f"{name}-own"))
    path = tmp_path_factory.mktemp("kubeconfigs") / "site-1"
    relay.write_kubeconfig(path)
    Api(clusters.hub).create(kubeconfig_secret(sites[1], name, "site-1", path.read_text()))
    yield name
    Api(clusters.hub).delete("v1", "Namespace", None, f"{name}-own")
    for site in sites:
        Api(site).delete("v1", "Namespace", None, name)
        python.remove(site, name)


@pytest.fixture(scope="module")
def operator(clusters, namespace, python, tmp_path_factory):
    crd = f"{REPOSITORY}/crds/{CRD}.yaml"
    workloads.kubectl(clusters.hub, "apply", "--server-side", "--force-conflicts", "-f", crd)
    process = OperatorProcess(
        clusters, namespace, f"{namespace}-own", python.image, tmp_path_factory.mktemp("operator")
    )
    process.start()
    yield process
    process.end()
    print(process.log.read_text()[-8000:])
    api = Api(clusters.hub)
    for job in api.all(GROUP, "DiLoCoJob", namespace):  # nobody is left to let them go
        path = path_of(GROUP, "DiLoCoJob", namespace, job["metadata"]["name"])
        api.patch(path, {"metadata": {"finalizers": None}})


@pytest.fixture(scope="module")
def running(hub_api, namespace, operator, python):
    """UID of a job with a Learner at each of two sites."""
    uid = hub_api.create(manifest(namespace, "job", python.pod_template))["metadata"]["uid"]
    at_work(hub_api, namespace, "job", 2)
    return uid


@pytest.fixture(scope="module")
def hub_api(clusters):
    return Api(clusters.hub)


@pytest.fixture(scope="module")
def site_api(clusters):
    return Api(clusters.site("site-1"))


def manifest(namespace, name, template, sites=("hub", "site-1"), replicas=2, **spec):
    pools = [{"name": "cpu", "device": "cpu"}]
    listed = {
        "hub": {"name": "hub", "nodePools": pools},
        "site-1": {"name": "site-1", "kubeconfigSecretRef": {"name": "site-1"}, "nodePools": pools},
    }
    # Synchronizer and Learners see the interpreter that runs the tests; what they train on is its library.
    return {
        "apiVersion": GROUP,
        "kind": "DiLoCoJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "train": {
                "data": {"uri": "{stdlib}/[a-c]*.py", "sequenceLength": 32},
                "model": {"layers": 1, "hidden": 32, "heads": 2},
                "batch": {"sequences": 2},
            },
            "budget": {"outerRounds": 100000},
            "learners": {"replicas": replicas, "template": limited(template)},
            "synchronizer": {
                "template": template, "storage": {"size": "1Gi"}, "exposure": {"type": "NodePort"},
            },
            "sites": [listed[site] for site in sites],
            **spec,
        },
    }  # fmt: skip


def learners(api, namespace, uid):
    return {name: pod for name, pod in pods(api, namespace, uid).items() if "synchronizer" not in name}


def at_work(api, namespace, name, replicas):
    def found():
        job = job_of(api, namespace, name)
        return job if job.get("status", {}).get("learners", {}).get("ready") == replicas else None

    return wait_until(f"{replicas} Learners at work", found, 300)


def delete_job(api, namespace, name):
    api.delete(GROUP, "DiLoCoJob", namespace, name)
    return seconds_until("the job gone", lambda: job_of(api, namespace, name) is None, 120)


def test_the_operator_marks_the_job_and_no_pod(hub_api, site_api, namespace, running):
    job = job_of(hub_api, namespace, "job")
    assert job["metadata"]["finalizers"] == [FINALIZER]
    assert not [key for key in job["metadata"].get("annotations", {}) if "kopf" in key]
    assert condition(job, "Accepted")[:2] == ("True", "Valid")
    for api in (hub_api, site_api):
        assert len(learners(api, namespace, running)) == 1
        assert not [pod for pod in pods(api, namespace, running).values() if "finalizers" in pod["metadata"]]
    identity = site_api.get("v1", "Namespace", None, "kube-system")["metadata"]["uid"]
    assert site_of(job, "site-1")["clusterUID"] == identity
    there = [one for kind in ("Pod", "Secret", "ConfigMap") for one in site_api.all("v1", kind, namespace)]
    assert not [one for one in there if one["metadata"].get("ownerReferences")]


def test_a_running_job_costs_no_write_but_its_progress(hub_api, site_api, namespace, running):
    def versions():
        return {
            (kind, one["metadata"]["name"]): one["metadata"]["resourceVersion"]
            for api in (hub_api, site_api)
            for kind in ("Secret", "ConfigMap", "Service")
            for one in api.all("v1", kind, namespace, f"diloco.dev/job-uid={running}")
        }

    before, version, writes = versions(), job_of(hub_api, namespace, "job")["metadata"]["resourceVersion"], 0
    for _ in range(40):
        time.sleep(0.5)
        now = job_of(hub_api, namespace, "job")["metadata"]["resourceVersion"]
        writes, version = writes + (now != version), now
    assert versions() == before
    assert writes <= 1, "progress is written every half minute"


def test_a_deleted_pod_is_replaced_at_once_and_nothing_else_is_touched(hub_api, site_api, namespace, running, figure):
    before = owned(hub_api, namespace, running)
    (lost,) = learners(site_api, namespace, running)
    site_api.request("DELETE", path_of("v1", "Pod", namespace, lost), {"gracePeriodSeconds": 0})
    taken = seconds_until("a replacement", lambda: set(learners(site_api, namespace, running)) - {lost}, 20)
    figure(f"replacement seen {taken:.2f} s after the pod was gone")
    assert taken < 2
    assert owned(hub_api, namespace, running) == before


def test_the_next_operator_touches_nothing_of_a_job_that_went_on_without_one(
    hub_api, site_api, namespace, running, operator
):
    at_work(hub_api, namespace, "job", 2)
    before = (owned(hub_api, namespace, running), owned(site_api, namespace, running))
    operator.end(signal.SIGKILL)
    time.sleep(2)
    operator.start()
    time.sleep(5)
    assert (owned(hub_api, namespace, running), owned(site_api, namespace, running)) == before
    assert condition(job_of(hub_api, namespace, "job"), "QuorumMet")[0] == "True"


def reachable(hub_api, namespace, name="job"):
    return condition(site_of(job_of(hub_api, namespace, name), "site-1"), "Reachable")[0]


def test_a_site_that_hangs_holds_nothing_up_and_its_learner_that_is_heard_is_left_alone(
    hub_api, site_api, namespace, running, relay, figure
):
    at_work(hub_api, namespace, "job", 2)
    there, (lost,) = learners(site_api, namespace, running), learners(hub_api, namespace, running)
    relay.hold()
    try:
        wait_until("the site is missed", lambda: reachable(hub_api, namespace) != "True", 60)
        hub_api.request("DELETE", path_of("v1", "Pod", namespace, lost), {"gracePeriodSeconds": 0})
        taken = seconds_until("a replacement", lambda: set(learners(hub_api, namespace, running)) - {lost}, 20)
        figure(f"replacement at the hub seen {taken:.2f} s after the pod was gone, while a site hung")
        assert taken < 5
        at_work(hub_api, namespace, "job", 2)
        assert learners(site_api, namespace, running).keys() == there.keys()
    finally:
        relay.release()
    wait_until("the site is back", lambda: reachable(hub_api, namespace) == "True", 60)
    assert learners(site_api, namespace, running).keys() == there.keys()


def test_a_job_deleted_while_a_site_is_away_goes_when_it_is_back_and_leaves_nothing_but_its_data(
    hub_api, site_api, namespace, running, relay, figure
):
    relay.refuse = True
    relay.drop()
    try:
        hub_api.delete(GROUP, "DiLoCoJob", namespace, "job")
        time.sleep(20)
        assert job_of(hub_api, namespace, "job")["metadata"]["finalizers"] == [FINALIZER]
        assert owned(site_api, namespace, running) != {}
    finally:
        relay.refuse = False
    taken = seconds_until("the job gone", lambda: job_of(hub_api, namespace, "job") is None, 150)
    figure(f"gone {taken:.1f} s after the site was back")
    assert owned(site_api, namespace, running) == {}
    claim = f"PersistentVolumeClaim/job-{running[:8]}-synchronizer"
    wait_until("the hub's objects gone", lambda: set(owned(hub_api, namespace, running)) <= {claim}, 30)


def test_an_operator_that_ends_gives_its_lease_to_the_next_one(hub_api, namespace, operator):
    assert operator.ask("healthz") == "ok\n"
    assert operator.end() == 0
    lease = hub_api.get("coordination.k8s.io/v1", "Lease", f"{namespace}-own", "diloco-operator")
    assert lease["spec"]["holderIdentity"] == ""
    operator.start()
    lease = hub_api.get("coordination.k8s.io/v1", "Lease", f"{namespace}-own", "diloco-operator")
    assert lease["spec"]["holderIdentity"] != ""


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("no-secret", lambda text: None, "SecretMissing"),
        ("no-https", lambda text: text.replace("https://", "http://"), "SecretInvalid"),
        ("key-in-a-file", lambda text: text.replace("client-key-data", "client-key"), "SecretInvalid"),
    ],
)
def test_a_site_with_a_bad_kubeconfig_says_so_and_the_hub_goes_on(
    clusters, hub_api, namespace, operator, python, name, change, reason
):
    site = clusters.site("site-1")
    text = change(site.kubeconfig.read_text())
    hub_api.delete("v1", "Secret", namespace, "site-1")
    if text is not None:
        hub_api.create(kubeconfig_secret(site, namespace, "site-1", text))
    uid = hub_api.create(manifest(namespace, name, python.pod_template))["metadata"]["uid"]

    def told():
        status, found, message = condition(site_of(job_of(hub_api, namespace, name), "site-1"), "Reachable")
        return message if (status, found) == ("False", reason) else None

    assert "site-1" in wait_until(f"the site says {reason}", told, 10)
    wait_until("its Synchronizer", lambda: [key for key in owned(hub_api, namespace, uid) if "Deployment" in key], 10)
    hub_api.apply(kubeconfig_secret(site, namespace, "site-1"))
    wait_until(
        "the site is reached",
        lambda: condition(site_of(job_of(hub_api, namespace, name), "site-1"), "Reachable")[0] == "True",
        10,
    )
    delete_job(hub_api, namespace, name)


def test_a_namespace_is_deleted_with_a_job_in_it(hub_api, site_api, namespace, operator, python, figure):
    uid = hub_api.create(manifest(namespace, "within", python.pod_template))["metadata"]["uid"]
    wait_until("a Learner at the site", lambda: learners(site_api, namespace, uid), 300)
    hub_api.delete("v1", "Namespace", None, namespace)
    taken = seconds_until("the site's objects gone", lambda: owned(site_api, namespace, uid) == {}, 120)
    figure(f"the site's objects are gone after {taken:.1f} s")
    workloads.wait_until_gone(hub_api, "v1", "Namespace", None, namespace)

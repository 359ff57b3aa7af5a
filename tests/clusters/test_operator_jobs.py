"""The operator against real API servers: a job's objects appear at hub and site, survive it, and go with the job."""

import signal
import time

import pytest

from clusters import workloads
from clusters.api import Api, path_of, wait_until
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

FINALIZER = "diloco.dev/teardown"
CRD = "dilocojobs.diloco.dev"


@pytest.fixture
def namespace(hub, site_1, new_namespace, python):
    """Of one name on hub and site, with what pods need to run the trainer, and the site's kubeconfig."""
    name = new_namespace(hub, site_1)
    for site in (hub, site_1):
        python.provide(site, name)
    Api(hub).create(kubeconfig_secret(site_1, name, "site-1"))
    yield name
    for site in (hub, site_1):
        python.remove(site, name)


@pytest.fixture
def operator(clusters, hub, namespace, python, tmp_path):
    workloads.kubectl(hub, "apply", "--server-side", "--force-conflicts", "-f", f"{REPOSITORY}/crds/{CRD}.yaml")
    process = OperatorProcess(clusters, namespace, python.image, tmp_path)
    process.start()
    yield process
    process.end()
    print(process.log.read_text()[-8000:])
    for job in Api(hub).all(GROUP, "DiLoCoJob", namespace):  # nobody is left to remove them
        path = path_of(GROUP, "DiLoCoJob", namespace, job["metadata"]["name"])
        Api(hub).patch(path, {"metadata": {"finalizers": None}})


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
            "learners": {"replicas": replicas, "template": template},
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

    return wait_until(f"{replicas} Learners at work", found, 120)


def delete_job(api, namespace, name):
    api.delete(GROUP, "DiLoCoJob", namespace, name)
    return seconds_until("the job gone", lambda: job_of(api, namespace, name) is None, 60)


def test_a_job_trains_at_two_sites_and_leaves_nothing_when_it_is_deleted(hub, site_1, namespace, operator, python):
    api, there = Api(hub), Api(site_1)
    job = api.create(manifest(namespace, "two-sites", python.pod_template))
    uid = job["metadata"]["uid"]
    job = at_work(api, namespace, "two-sites", 2)
    assert job["metadata"]["finalizers"] == [FINALIZER]
    assert not [key for key in job["metadata"].get("annotations", {}) if "kopf" in key]
    assert condition(job, "Accepted")[:2] == ("True", "Valid")
    assert site_of(job, "site-1")["clusterUID"] == there.get("v1", "Namespace", None, "kube-system")["metadata"]["uid"]
    assert len(learners(api, namespace, uid)) == len(learners(there, namespace, uid)) == 1
    for site in (api, there):
        for pod in pods(site, namespace, uid).values():
            assert "finalizers" not in pod["metadata"]
    assert not [
        one
        for one in there.all("v1", "Pod", namespace) + there.all("v1", "Secret", namespace)
        if one["metadata"].get("ownerReferences")
    ]
    assert delete_job(api, namespace, "two-sites") < 60
    assert owned(there, namespace, uid) == {}
    wait_until("the hub's objects gone", lambda: set(owned(api, namespace, uid)) <= {claim(job)}, 30)


def claim(job):
    return f"PersistentVolumeClaim/two-sites-{job['metadata']['uid'][:8]}-synchronizer"


def test_a_deleted_pod_is_replaced_at_once_and_nothing_else_is_touched(hub, site_1, namespace, operator, python):
    api, there = Api(hub), Api(site_1)
    uid = api.create(manifest(namespace, "loss", python.pod_template))["metadata"]["uid"]
    at_work(api, namespace, "loss", 2)
    before = owned(api, namespace, uid)
    (lost,) = learners(there, namespace, uid)
    path = path_of("v1", "Pod", namespace, lost)
    there.request("DELETE", path, {"gracePeriodSeconds": 0})
    taken = seconds_until("a replacement", lambda: set(learners(there, namespace, uid)) - {lost}, 20)
    print(f"replacement created within {taken:.2f} s")
    assert taken < 2
    at_work(api, namespace, "loss", 2)
    assert owned(api, namespace, uid) == before


def test_a_job_goes_on_without_its_operator_and_is_not_touched_by_the_next_one(
    hub, site_1, namespace, operator, python
):
    api, there = Api(hub), Api(site_1)
    uid = api.create(manifest(namespace, "alone", python.pod_template))["metadata"]["uid"]
    at_work(api, namespace, "alone", 2)
    before = (owned(api, namespace, uid), owned(there, namespace, uid))
    operator.end(signal.SIGKILL)
    time.sleep(2)
    operator.start()
    time.sleep(5)
    assert (owned(api, namespace, uid), owned(there, namespace, uid)) == before
    assert condition(job_of(api, namespace, "alone"), "QuorumMet")[0] == "True"


def test_a_running_job_costs_no_write_but_its_progress(hub, site_1, namespace, operator, python):
    api, there = Api(hub), Api(site_1)
    uid = api.create(manifest(namespace, "rest", python.pod_template))["metadata"]["uid"]
    at_work(api, namespace, "rest", 2)
    time.sleep(5)

    def versions():
        found = {}
        for site in (api, there):
            for kind in ("Secret", "ConfigMap", "Service", "PersistentVolumeClaim"):
                for one in site.all("v1", kind, namespace, f"diloco.dev/job-uid={uid}"):
                    found[kind, one["metadata"]["name"]] = one["metadata"]["resourceVersion"]
        return found

    before, job = versions(), job_of(api, namespace, "rest")["metadata"]["resourceVersion"]
    writes = 0
    for _ in range(40):
        time.sleep(0.5)
        now = job_of(api, namespace, "rest")["metadata"]["resourceVersion"]
        writes, job = writes + (now != job), now
    assert versions() == before
    assert writes <= 1, "progress is written every half minute"


def test_a_namespace_is_deleted_with_its_running_job(hub, site_1, namespace, operator, python):
    api, there = Api(hub), Api(site_1)
    uid = api.create(manifest(namespace, "within", python.pod_template))["metadata"]["uid"]
    at_work(api, namespace, "within", 2)
    api.delete("v1", "Namespace", None, namespace)
    wait_until("the site's objects gone", lambda: owned(there, namespace, uid) == {}, 60)
    workloads.wait_until_gone(api, "v1", "Namespace", None, namespace)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: None, "SecretMissing"),
        (lambda text: text.replace("https://", "http://"), "SecretInvalid"),
        (lambda text: text.replace("client-key-data", "client-key"), "SecretInvalid"),
    ],
    ids=["no Secret", "no https", "a key in a file"],
)
def test_a_site_with_a_bad_kubeconfig_says_so_and_the_hub_goes_on(
    hub, site_1, namespace, operator, python, change, reason
):
    api = Api(hub)
    api.delete("v1", "Secret", namespace, "site-1")
    text = change(site_1.kubeconfig.read_text())
    if text is not None:
        api.create(kubeconfig_secret(site_1, namespace, "site-1", text))
    uid = api.create(manifest(namespace, "bad", python.pod_template))["metadata"]["uid"]

    def told():
        status, found, message = condition(site_of(job_of(api, namespace, "bad"), "site-1"), "Reachable")
        return message if (status, found) == ("False", reason) else None

    message = wait_until(f"site-1 says {reason}", told, 10)
    assert "site-1" in message
    wait_until("a Learner at the hub", lambda: learners(api, namespace, uid), 60)
    api.apply(kubeconfig_secret(site_1, namespace, "site-1"))
    wait_until(
        "site-1 is reachable",
        lambda: condition(site_of(job_of(api, namespace, "bad"), "site-1"), "Reachable")[0] == "True",
        10,
    )


def test_an_operator_that_ends_gives_its_lease_to_the_next_one(hub, namespace, operator):
    lease = Api(hub).get("coordination.k8s.io/v1", "Lease", namespace, "diloco-operator")
    assert lease["spec"]["holderIdentity"]
    assert operator.ask("healthz") == "ok\n"
    assert operator.end() == 0
    lease = Api(hub).get("coordination.k8s.io/v1", "Lease", namespace, "diloco-operator")
    assert lease["spec"]["holderIdentity"] == ""
    begun = time.monotonic()
    operator.start()
    assert time.monotonic() - begun < 10

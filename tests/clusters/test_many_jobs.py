"""Two hundred jobs come and go: nothing is left of them among the operator's series, nor on the cluster.

Their Synchronizers wait for disks that nobody provides, so that no pod of them runs on this small machine; the operator
makes, tells and removes everything it would else.
"""

import os

import pytest
from prometheus_client.parser import text_string_to_metric_families

from clusters import workloads
from clusters.api import Api, wait_until
from clusters.operator_process import GROUP, OperatorProcess, condition, job_of, seconds_until
from clusters.pythons import REPOSITORY

pytestmark = pytest.mark.timeout(900)
JOBS = 200


@pytest.fixture
def operator(clusters, tmp_path):
    """(the operator, the hub's API, the namespace it looks after)."""
    hub, name = Api(clusters.hub), f"many-{os.getpid()}"
    for namespace in (name, f"{name}-own"):
        hub.apply(workloads.namespace(namespace))
    crd = f"{REPOSITORY}/crds/dilocojobs.diloco.dev.yaml"
    workloads.kubectl(clusters.hub, "apply", "--server-side", "--force-conflicts", "-f", crd)
    process = OperatorProcess(clusters, name, f"{name}-own", "registry.test/trainer:1", tmp_path)
    try:
        process.start()
        yield process, hub, name
    finally:
        delete_jobs(hub, name)
        process.end()
        print(process.log.read_text()[-8000:])
        for namespace in (name, f"{name}-own"):
            hub.delete("v1", "Namespace", None, namespace)


def job(namespace, number):
    return {
        "apiVersion": GROUP,
        "kind": "DiLoCoJob",
        "metadata": {"name": f"job-{number}", "namespace": namespace},
        "spec": {
            "train": {"data": {"uri": "{stdlib}/[a-c]*.py"}},
            "budget": {"outerRounds": 100},
            "learners": {"replicas": 2},
            "synchronizer": {"storage": {"size": "1Gi", "storageClassName": "nobody-provides"}},
            "sites": [{"name": "hub", "nodePools": [{"name": "cpu", "device": "cpu"}]}],
        },
    }


def delete_jobs(hub, namespace):
    for one in hub.all(GROUP, "DiLoCoJob", namespace):
        hub.delete(GROUP, "DiLoCoJob", namespace, one["metadata"]["name"])
    wait_until("no job left", lambda: not hub.all(GROUP, "DiLoCoJob", namespace), 300)


def series(operator):
    """Names with labels of all that a scrape would get."""
    families = text_string_to_metric_families(operator.ask("metrics"))
    return {(one.name, tuple(sorted(one.labels.items()))) for family in families for one in family.samples}


def of_jobs(found, namespace):
    return {dict(labels)["diloco_job"] for _, labels in found if dict(labels).get("job_namespace") == namespace}


def test_nothing_is_left_of_two_hundred_jobs(operator, figure):
    process, hub, namespace = operator
    hub.create(job(namespace, JOBS))  # one before the count begins: calls to an API are told from the first on
    wait_until("it is accepted", lambda: condition(job_of(hub, namespace, f"job-{JOBS}"), "Accepted")[0] == "True", 60)
    delete_jobs(hub, namespace)
    wait_until("its series gone", lambda: of_jobs(series(process), namespace) == set(), 30)
    before = series(process)
    for number in range(JOBS):
        hub.create(job(namespace, number))

    def all_told():
        waiting = [one for one in hub.all("v1", "Pod", namespace) if one["status"]["phase"] == "Pending"]
        return len(of_jobs(series(process), namespace)) == JOBS == len(waiting)

    taken = seconds_until("series and a pod of every job", all_told, 300)
    during = series(process)
    assert len(during) > len(before) + 10 * JOBS
    begun = seconds_until("no job left", lambda: delete_jobs(hub, namespace) is None, 400)
    wait_until("the series of before", lambda: series(process) == before, 60)
    figure(f"{JOBS} jobs: {len(before)} series before, {len(during)} when all were there, after {taken:.0f} s; "
           f"deleted in {begun:.0f} s, {len(series(process))} series left")  # fmt: skip
    for version, kind in (
        ("v1", "Pod"), ("apps/v1", "Deployment"), ("v1", "Service"), ("v1", "Secret"), ("v1", "PersistentVolumeClaim"),
    ):  # fmt: skip
        wait_until(f"no {kind} left", lambda v=version, k=kind: hub.all(v, k, namespace) == [], 120)

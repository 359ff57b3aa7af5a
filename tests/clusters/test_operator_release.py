"""The operator's pod where it has rights in single namespaces only: its own next life, and the end of a namespace."""

import pytest

from clusters import faults, workloads
from clusters.api import wait_until
from clusters.installation import CRD
from clusters.operator_process import owned, seconds_until
from clusters.release import Release

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def run(clusters, python):
    run = Release(clusters, "scoped", python)
    run.prepare()
    crds = {"install": False}  # as the set of clusters has it
    workloads.kubectl(clusters.hub, "apply", "--server-side", "--force-conflicts", "-f", str(CRD))
    try:
        run.install(python, scope="namespaces", namespaces=[run.name], crds=crds)
        yield run
    finally:
        run.take_down()


def test_the_next_process_of_the_operators_container_does_not_wait_for_the_last_ones_lease(run):
    def holder():
        lease = run.hub.get("coordination.k8s.io/v1", "Lease", run.own, "diloco-operator")
        return lease["spec"]["holderIdentity"] if lease else ""

    first = wait_until("the operator to hold its Lease", holder, 120)
    (pod,) = run.operator_pods()
    assert first.startswith(f"{pod['metadata']['name']}_{pod['metadata']['uid']}-")
    faults.kill_container(run.clusters.hub, pod)
    taken = seconds_until("the next one to hold it", lambda: holder() != first, 60)
    print(f"held by the container's next process {taken:.1f} s after the last one was killed")
    (again,) = run.operator_pods()
    assert again["metadata"]["uid"] == pod["metadata"]["uid"]
    assert "waiting for the lease" not in run.log()


def test_a_namespace_goes_with_its_job_and_nothing_is_left_at_the_site(run, python):
    """Its Role goes with it, at the latest when no pod is left there: the job is torn down and let go before."""
    uid = run.create_job("within", python, ["hub", "site-1"])
    run.at_work("within", [1, 1])
    assert run.job("within")["metadata"]["finalizers"] == ["diloco.dev/teardown"]
    run.hub.delete("v1", "Namespace", None, run.name)
    let_go = seconds_until("the job let go", lambda: not held(run.job("within")), 60)
    assert owned(run.site, run.name, uid) == {}, "it is let go when nothing of it is left"
    gone = seconds_until("the namespace gone", lambda: not run.hub.get("v1", "Namespace", None, run.name), 120)
    print(f"the job was let go {let_go:.1f} s after the deletion began, the namespace gone {gone:.1f} s later")
    assert "to let the job go" not in run.log()


def held(job):
    return job is not None and bool(job["metadata"].get("finalizers"))

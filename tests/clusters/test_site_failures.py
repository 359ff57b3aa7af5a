"""Sites that are away, and the end of a job in the midst of them, on one running job; all pods real.

Expected as in test_failures.py: nobody else notices, nothing is replaced that is heard, everything converges.
"""

import time

import pytest

from clusters import charts, faults, workloads
from clusters.api import Api, path_of, wait_until
from clusters.endless_job import EVERYBODY, JOB, at_site, check_fenced, check_others, endless, incarnations, whole
from clusters.operator_process import GROUP, condition, owned, pods, site_of
from diloco_api.exit_codes import ExitCode

pytestmark = pytest.mark.timeout(600)


def test_a_site_without_its_api_server_trains_on(run, scene):
    site = run.layout.site("site-1")
    faults.stop(site, "kube-apiserver")
    run.wait_for(
        "the site is not known to be reachable",
        JOB,
        lambda job: condition(site_of(job, "site-1"), "Reachable")[0] != "True",
        60,
    )
    scene.wait_for_steps(EVERYBODY)
    faults.start(site, "kube-apiserver")
    whole(run)
    check_others(scene, replaced=False)


def test_a_site_whose_api_the_hub_cannot_reach_keeps_its_learners(run, scene):
    site = run.layout.site("site-1")
    before = incarnations(run)
    begun = time.monotonic()
    faults.cut(site, "api")
    run.wait_for(
        "the site is called unreachable",
        JOB,
        lambda job: condition(site_of(job, "site-1"), "Reachable")[0] == "False",
        240,
    )
    scene.tell(f"Reachable=False after {time.monotonic() - begun:.0f} s")
    time.sleep(10)  # what would be done about it would be done by now
    assert incarnations(run) == before
    faults.heal(site, "api")
    whole(run, cooling={"site-1"})
    check_others(scene, replaced=False)


def test_learners_of_a_lost_site_move_and_their_predecessors_are_fenced(run, scene):
    """The site's API and its pods are cut off; the pods come back first, and meet the Synchronizer before the operator.

    What they were about to write is refused: they end by the code that says so, before anybody could delete them.
    """
    site, lost, before = run.layout.site("site-2"), at_site(scene, "site-2"), incarnations(run)
    old_pods = [scene.place_of(index)[1] for index in sorted(lost)]
    begun = time.monotonic()
    for kind in ("api", "pods"):
        faults.cut(site, kind)

    def moved(job):
        rows = job["status"]["learnerStatuses"]
        return all(row["site"] == "site-1" and row["state"] == "Running" for row in rows)

    run.wait_for("all at site-1", JOB, moved, 400)
    scene.tell(f"moved and at work after {time.monotonic() - begun:.0f} s")
    after = incarnations(run)
    assert after == {index: before[index] + (index in lost) for index in EVERYBODY}
    there = Api(site)
    assert [phase_of(there, run.namespace, name) for name in old_pods] == ["Running"] * len(lost)
    healed_at, refused = time.monotonic(), scene.progress.fenced_updates
    faults.heal(site, "pods")
    for name in old_pods:
        ended = workloads.wait_for_pod(there, run.namespace, name, "Failed", timeout_seconds=90)
        state = ended["status"]["containerStatuses"][0]["state"]["terminated"]
        assert state["exitCode"] == ExitCode.FENCED
        assert "is fenced: incarnation" in workloads.logs(there, run.namespace, name)
        assert "deletionTimestamp" not in ended["metadata"]
    refused = scene.progress.fenced_updates - refused
    scene.tell(f"both ended, fenced, {time.monotonic() - healed_at:.0f} s after healing; {refused} updates refused")
    faults.heal(site, "api")
    whole(run)
    for index in lost:
        check_fenced(scene, index, before[index])
    check_others(scene, *lost)


def phase_of(api, namespace, name):
    return api.get("v1", "Pod", namespace, name)["status"]["phase"]


def test_a_job_deleted_while_a_site_is_down_goes_when_the_site_is_back(run, healed, figure):
    whole(run)
    job, site = run.job(JOB), run.layout.site("site-1")
    uid = job["metadata"]["uid"]
    faults.cut(site, "api")
    run.hub.request("DELETE", path_of(GROUP, "DiLoCoJob", run.namespace, JOB))
    time.sleep(30)
    assert run.hub.get(GROUP, "DiLoCoJob", run.namespace, JOB) is not None, "it waits for the site"
    assert owned(Api(site), run.namespace, uid)
    faults.heal(site, "api")
    begun = time.monotonic()
    wait_until("the job gone", lambda: run.hub.get(GROUP, "DiLoCoJob", run.namespace, JOB) is None, 120)
    figure(f"gone {time.monotonic() - begun:.0f} s after the site was back")
    for one in run.sites[1:]:
        assert owned(Api(one), run.namespace, uid) == {}


def test_a_namespace_is_deleted_with_a_job_in_it(run, healed, figure):
    """By an operator of the whole cluster: one of single namespaces loses its rights there with the namespace."""
    charts.install_operator(run.layout.hub, run.own_namespace, run.python.image)
    uid = run.hub.create(run.example(JOB, endless))["metadata"]["uid"]
    sites = [Api(site) for site in run.sites[1:]]
    wait_until("Learners at both sites", lambda: all(pods(site, run.namespace, uid) for site in sites), 200)
    begun = time.monotonic()
    run.hub.delete("v1", "Namespace", None, run.namespace)
    for site in sites:
        wait_until("nothing left at a site", lambda site=site: owned(site, run.namespace, uid) == {}, 120)
    figure(f"nothing left at the sites {time.monotonic() - begun:.0f} s after the namespace was deleted")
    workloads.wait_until_gone(run.hub, "v1", "Namespace", None, run.namespace)

"""Sites that are away, and the end of a job in the midst of them, on one running job; all pods real.

Expected as in test_failures.py: nobody else notices, nothing is replaced that is heard, everything converges.
"""

import time

import pytest

from clusters import charts, faults, workloads
from clusters.api import Api, path_of, wait_until
from clusters.endless_job import EVERYBODY, JOB, check_others, endless, incarnations, whole
from clusters.operator_process import GROUP, condition, owned, pods, site_of

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


def test_a_job_deleted_while_a_site_is_down_goes_when_the_site_is_back(run, healed, figure):
    whole(run, cooling={"site-1"})
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

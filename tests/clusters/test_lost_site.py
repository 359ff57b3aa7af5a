"""A site that is lost with all its Learners, on a running job; all pods real.

Expected as in test_failures.py; the deadline is that of every job.
"""

import time

import pytest

from clusters import faults, workloads
from clusters.api import Api
from clusters.endless_job import EVERYBODY, JOB, at_site, check_fenced, check_others, incarnations, whole
from diloco_api.exit_codes import ExitCode

pytestmark = pytest.mark.timeout(600)


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

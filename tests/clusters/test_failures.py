"""One failure after the other on one running job of four Learners at two sites, all pods real.

Each time: the other Learners' steps go on, no pod but the failed one is ended, restarted or deleted (by watches and by
the API servers' audit logs), a replacement comes within two seconds of when the loss could be seen (none where the
Learner is still heard), its predecessor is fenced, and in the end all is well again. Deadlines are those of every job.
"""

import time

import pytest

from clusters import cgroups, faults, node, workloads
from clusters.api import Api, wait_until
from clusters.endless_job import (
    EVERYBODY,
    JOB,
    REPLACED_WITHIN_SECONDS,
    STANDSTILL_SECONDS,
    at_site,
    check_audit,
    check_fenced,
    check_never_paused,
    check_others,
    incarnations,
    whole,
)
from clusters.operator_process import condition, pods, site_of
from clusters.scene import Scene

pytestmark = pytest.mark.timeout(600)


def test_a_deleted_learner_pod_is_replaced(run, scene):
    site, name = scene.place_of(0)
    Api(run.layout.site(site)).delete("v1", "Pod", run.namespace, name)
    taken = scene.replacement(0)
    scene.tell(f"replacement {taken:.2f} s after the pod was being deleted")
    assert taken < REPLACED_WITHIN_SECONDS
    check_fenced(scene, 0, old=1)
    whole(run)
    check_others(scene, 0)


def test_a_killed_learner_process_is_replaced(run, scene):
    site, _ = scene.place_of(1)
    faults.kill_container(run.layout.site(site), scene.pod_of(1))
    taken = scene.replacement(1)
    scene.tell(f"replacement {taken:.2f} s after the pod was over")
    assert taken < REPLACED_WITHIN_SECONDS
    check_fenced(scene, 1, old=1)
    row = whole(run)["status"]["learnerStatuses"][1]
    assert (row["site"], row["restarts"], row["restartsCounted"]) == (site, 1, 1)
    check_others(scene, 1)


def test_learners_train_on_while_the_synchronizer_pod_is_replaced(run, scene):
    before, outer_steps = {index: scene.learner(index) for index in EVERYBODY}, scene.progress.outer_steps
    (pod,) = [pod for pod in pods(run.hub, run.namespace, scene.uid) if "synchronizer" in pod]
    begun = time.monotonic()
    run.hub.delete("v1", "Pod", run.namespace, pod)
    wait_until("the next one serves", lambda: scene.progress.served_seconds < time.monotonic() - begun, 120)
    scene.tell(f"served again after {time.monotonic() - begun:.1f} s")
    wait_until("outer steps go on", lambda: scene.progress.outer_steps > outer_steps, 60)
    check_never_paused(scene, before)
    whole(run)
    assert scene.disturbed() == {pod}
    assert len(scene.new()) == 1
    check_audit(scene, {pod})


def test_an_operator_that_is_killed_finds_what_was_lost_meanwhile(run, scene):
    (operator,) = run.operator_pods()
    old = incarnations(run)[2]
    site, name = scene.place_of(2)
    faults.kill_container(run.layout.hub, operator)
    Api(run.layout.site(site)).delete("v1", "Pod", run.namespace, name)
    taken = scene.replacement(2, 90)
    scene.tell(f"operator killed, its next container has replaced a pod after {taken:.1f} s")
    check_fenced(scene, 2, old)
    whole(run)
    check_others(scene, 2)
    (again,) = run.operator_pods()
    assert again["metadata"]["uid"] == operator["metadata"]["uid"]
    assert again["status"]["containerStatuses"][0]["restartCount"] == 1


def test_learners_that_do_not_reach_the_synchronizer_are_left_alone(run, scene):
    cut_off = at_site(scene, "site-2")
    before = {index: scene.learner(index) for index in cut_off}
    begun = time.monotonic()
    faults.cut(run.layout.site("site-2"), "pods")

    def told(job):
        _, reason, message = condition(site_of(job, "site-2"), "SynchronizerReachable")
        return message if reason == "TCPFailure" else None

    text = run.wait_for("the site says which step fails", JOB, told, 150)
    scene.tell(f"SynchronizerReachable=False/TCPFailure after {time.monotonic() - begun:.0f} s: {text}")
    assert text.startswith(f"{run.layout.hub.address}:")
    faults.heal(run.layout.site("site-2"), "pods")
    whole(run)
    check_never_paused(scene, before)
    assert (scene.disturbed(), scene.new()) == (set(), set())
    check_audit(scene, set())
    others = {index: scene.standstill(index) for index in EVERYBODY - cut_off}
    assert max(others.values()) < STANDSTILL_SECONDS, others


def test_on_a_node_that_is_not_ready_only_the_silent_learner_is_replaced(run, scene):
    """Its kubelet stopped: its Learners train on, then one of them is killed; the kubelet comes back last."""
    site, old = run.layout.site("site-2"), incarnations(run)
    heard, killed = sorted(at_site(scene, "site-2"))
    begun, doomed = time.monotonic(), scene.pod_of(killed)
    faults.stop(site, "kubelet")
    for index in (heard, killed):
        wait_until("its pods are not ready", lambda i=index: workloads.condition(scene.pod_of(i), "Ready") == "False")
    scene.tell(f"the cluster told it {time.monotonic() - begun:.0f} s after the kubelet's end")
    time.sleep(10)  # what would be done about it would be done by now
    assert incarnations(run) == old
    faults.kill_container(site, doomed)
    wait_until("a replacement", scene.new, 90, every_seconds=0.1)
    (new,) = [pod for pod in scene.pods.values() if pod.uid not in scene.known]
    taken = new.appeared - scene.node_and_learner_lost(killed, old[killed])
    scene.tell(f"replacement {taken:.2f} s after it and its node were known to be lost")
    assert new.index == killed
    assert taken < REPLACED_WITHIN_SECONDS
    faults.start(site, "kubelet")
    check_fenced(scene, killed, old[killed])
    whole(run)
    check_others(scene, killed)


@pytest.fixture
def whole_before(run, healed):
    """All Learners have a node before there is another one."""
    whole(run, 400)


def test_a_learner_of_a_lost_node_goes_to_another_node_of_its_site(run, whole_before, second_node, figure):
    """Two real nodes at the site, each with kubelet, containerd and one Learner; all of one node is killed."""
    site, api = second_node.site, Api(second_node.site)
    node.taint(api, site.node(0).name, "test/full=true:NoSchedule")
    with Scene(run, JOB) as earlier:
        moved = min(at_site(earlier, site.name))
        api.delete("v1", "Pod", run.namespace, earlier.place_of(moved)[1])
        earlier.replacement(moved)
        whole(run)
    node.taint(api, site.node(0).name)
    with Scene(run, JOB, tell=figure) as scene:
        old, pod = incarnations(run)[moved], scene.pod_of(moved)
        assert pod["spec"]["nodeName"] == second_node.name
        for component in node.components(second_node):
            faults.stop(site, component.name)
        cgroups.kill(second_node.cgroup)
        wait_until("a replacement", scene.new, 90, every_seconds=0.1)
        (new,) = [story for story in scene.pods.values() if story.uid not in scene.known]
        taken = new.appeared - scene.node_and_learner_lost(moved, old)
        scene.tell(f"replacement {taken:.2f} s after it and its node were known to be lost")
        assert (new.index, new.site) == (moved, site.name)
        assert taken < REPLACED_WITHIN_SECONDS
        check_fenced(scene, moved, old)
        assert scene.pod_of(moved)["spec"]["nodeName"] == site.node(0).name
        assert api.get("v1", "Pod", run.namespace, pod["metadata"]["name"]) is not None, "nobody can say that it ended"
        check_others(scene, moved)

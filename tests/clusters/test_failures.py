"""One failure after the other on one running job of four Learners at two sites, all pods real.

Each time: the other Learners' steps go on, no pod but the failed one is ended, restarted or deleted, a replacement
comes within two seconds of when the loss could be seen (none where the Learner is still heard), its predecessor is
fenced, and in the end all is well again. Deadlines are those of every job.
"""

import time

import pytest

from clusters import charts, faults, workloads
from clusters.api import Api, path_of, wait_until
from clusters.operator_process import GROUP, condition, owned, pods, site_of
from clusters.scene import Scene
from diloco_api.progress import LearnerState

pytestmark = pytest.mark.timeout(600)
JOB = "multi-site"
REPLACED_WITHIN_SECONDS = 2.0
STANDSTILL_SECONDS = 20.0
"""Steps are told by heartbeats every 5 s; the machine is small."""
EVERYBODY = {0, 1, 2, 3}


def endless(job):
    """A small model for a long time, by processes that leave the machine some room."""
    job["spec"]["budget"] = {"outerRounds": 1_000_000}
    job["spec"]["algorithm"] = {"preset": "DecoupledDiLoCo", "fragments": 4, "syncEvery": 100}
    job["spec"]["train"]["model"] = {"layers": 1, "hidden": 64, "heads": 2}
    pod = job["spec"]["learners"]["template"]["spec"]
    limited = pod["containers"][0] | {"resources": {"limits": {"cpu": "400m", "memory": "2Gi"}}}
    job["spec"]["learners"]["template"] = {"spec": pod | {"containers": [limited]}}


@pytest.fixture(scope="module")
def run(installation):
    """The installation, with a job at work that does not end by itself."""

    installation.hub.create(installation.example(JOB, endless))
    return installation


@pytest.fixture
def scene(run, healed):
    """The job whole, and eyes on it."""
    whole(run, 400)
    with Scene(run, JOB) as opened:
        yield opened


def whole(run, timeout_seconds=180):
    """Wait until four Learners are at work, nothing is left of older ones, and nothing is held against any site."""

    def all_is_well(job):
        status = job.get("status", {})
        rows = status.get("learnerStatuses", [])
        if [row["state"] for row in rows] != ["Running"] * 4 or condition(job, "Degraded")[0] != "False":
            return None
        for name in ("site-1", "site-2"):
            kinds = ["Reachable", "Eligible"] + ["SynchronizerReachable"] * any(row["site"] == name for row in rows)
            if any(condition(site_of(job, name), kind)[0] != "True" for kind in kinds):
                return None
        there = {name for site in run.sites for name in pods(Api(site), run.namespace, job["metadata"]["uid"])}
        learners = {name for name in there if "synchronizer" not in name}
        return job if learners == {row["podName"] for row in rows} else None

    return run.wait_for("the job whole", JOB, all_is_well, timeout_seconds)


def check_others(scene, *failed, replaced=True):
    """Everybody but the failed Learners went on undisturbed."""
    lost = {pod.name for pod in scene.pods.values() if pod.uid in scene.known and pod.index in failed}
    assert scene.disturbed() == (lost if replaced else set())
    assert len(scene.new()) == (len(failed) if replaced else 0), scene.new()
    still = {index: round(scene.standstill(index), 1) for index in EVERYBODY - set(failed)}
    print(f"longest time without news of a further step: {still}")
    assert max(still.values()) < STANDSTILL_SECONDS


def check_fenced(scene, index, old):
    """The predecessor is out, the successor in."""
    wait_until(
        "the successor is heard and the predecessor is not",
        lambda: scene.learner(index).live and scene.learner(index).incarnation > old and scene.learner(index, old).gone,
        120,
    )


def check_never_paused(scene, before):
    """Learners that could not be heard for a while trained all the time, by their own accounts of their seconds."""
    scene.wait_for_steps(set(before))
    for index, known in before.items():
        now = scene.learner(index)
        spent = {state: now.state_seconds[state] - known.state_seconds.get(state, 0.0) for state in now.state_seconds}
        training = spent.pop(LearnerState.TRAINING)
        print(
            f"Learner {index}: {now.step - known.step} steps, {training:.1f} s training, else {sum(spent.values()):.1f}"
        )
        assert (now.incarnation, now.step > known.step) == (known.incarnation, True)
        assert sum(spent.values()) < 0.1 * training


def at_site(scene, site):
    rows = scene.installation.job(JOB)["status"]["learnerStatuses"]
    return {row["index"] for row in rows if row["site"] == site}


def incarnations(run):
    return {row["index"]: row["incarnation"] for row in run.job(JOB)["status"]["learnerStatuses"]}


def test_a_deleted_learner_pod_is_replaced(run, scene):
    site, name = scene.place_of(0)
    Api(run.layout.site(site)).delete("v1", "Pod", run.namespace, name)
    taken = scene.replacement(0)
    print(f"replacement {taken:.2f} s after the pod was being deleted")
    assert taken < REPLACED_WITHIN_SECONDS
    check_fenced(scene, 0, old=1)
    whole(run)
    check_others(scene, 0)


def test_a_killed_learner_process_is_replaced(run, scene):
    site, _ = scene.place_of(1)
    faults.kill_container(run.layout.site(site), scene.pod_of(1))
    taken = scene.replacement(1)
    print(f"replacement {taken:.2f} s after the pod was over")
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
    print(f"served again after {time.monotonic() - begun:.1f} s")
    wait_until("outer steps go on", lambda: scene.progress.outer_steps > outer_steps, 60)
    check_never_paused(scene, before)
    whole(run)
    assert scene.disturbed() == {pod}
    assert len(scene.new()) == 1


def test_an_operator_that_is_killed_finds_what_was_lost_meanwhile(run, scene):
    (operator,) = run.operator_pods()
    old = incarnations(run)[2]
    site, name = scene.place_of(2)
    faults.kill_container(run.layout.hub, operator)
    Api(run.layout.site(site)).delete("v1", "Pod", run.namespace, name)
    taken = scene.replacement(2, 90)
    print(f"operator killed, its next container has replaced a pod after {taken:.1f} s")
    check_fenced(scene, 2, old)
    whole(run)
    check_others(scene, 2)
    (again,) = run.operator_pods()
    assert again["metadata"]["uid"] == operator["metadata"]["uid"]
    assert again["status"]["containerStatuses"][0]["restartCount"] == 1


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
    print(f"Reachable=False after {time.monotonic() - begun:.0f} s")
    time.sleep(10)  # what would be done about it would be done by now
    assert incarnations(run) == before
    faults.heal(site, "api")
    whole(run)
    check_others(scene, replaced=False)


def test_learners_that_do_not_reach_the_synchronizer_are_left_alone(run, scene):
    cut_off = at_site(scene, "site-2")
    before = {index: scene.learner(index) for index in cut_off}
    begun = time.monotonic()
    faults.cut(run.layout.site("site-2"), "pods")
    run.wait_for(
        "the site is called silent",
        JOB,
        lambda job: condition(site_of(job, "site-2"), "SynchronizerReachable")[1] == "HeartbeatsStale",
        120,
    )
    print(f"SynchronizerReachable=False after {time.monotonic() - begun:.0f} s")
    faults.heal(run.layout.site("site-2"), "pods")
    whole(run)
    check_never_paused(scene, before)
    assert (scene.disturbed(), scene.new()) == (set(), set())
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
    print(f"the cluster told it {time.monotonic() - begun:.0f} s after the kubelet's end")
    time.sleep(10)  # what would be done about it would be done by now
    assert incarnations(run) == old
    faults.kill_container(site, doomed)
    wait_until("a replacement", scene.new, 90, every_seconds=0.1)
    (new,) = [pod for pod in scene.pods.values() if pod.uid not in scene.known]
    taken = new.appeared - scene.unheard[(killed, old[killed])]
    print(f"replacement {taken:.2f} s after it was told to be dead")
    assert new.index == killed
    assert taken < REPLACED_WITHIN_SECONDS
    faults.start(site, "kubelet")
    check_fenced(scene, killed, old[killed])
    whole(run)
    check_others(scene, killed)


def test_learners_of_a_lost_site_move_and_their_predecessors_are_fenced(run, scene):
    lost, before = at_site(scene, "site-2"), incarnations(run)
    begun = time.monotonic()
    faults.cut(run.layout.site("site-2"), "all")

    def moved(job):
        rows = job["status"]["learnerStatuses"]
        return all(row["site"] == "site-1" and row["state"] == "Running" for row in rows)

    run.wait_for("all at site-1", JOB, moved, 400)
    print(f"moved and at work after {time.monotonic() - begun:.0f} s")
    after = incarnations(run)
    assert after == {index: before[index] + (index in lost) for index in EVERYBODY}
    faults.heal(run.layout.site("site-2"), "all")
    whole(run)
    for index in lost:
        check_fenced(scene, index, before[index])
    check_others(scene, *lost)


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


def test_a_job_deleted_while_a_site_is_down_goes_when_the_site_is_back(run, healed):
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
    print(f"gone {time.monotonic() - begun:.0f} s after the site was back")
    for one in run.sites[1:]:
        assert owned(Api(one), run.namespace, uid) == {}


def test_a_namespace_is_deleted_with_a_job_in_it(run, healed):
    """By an operator of the whole cluster: one of single namespaces loses its rights there with the namespace."""
    charts.install_operator(run.layout.hub, run.own_namespace, run.python.image)
    uid = run.hub.create(run.example(JOB, endless))["metadata"]["uid"]
    sites = [Api(site) for site in run.sites[1:]]
    wait_until("Learners at both sites", lambda: all(pods(site, run.namespace, uid) for site in sites), 200)
    begun = time.monotonic()
    run.hub.delete("v1", "Namespace", None, run.namespace)
    for site in sites:
        wait_until("nothing left at a site", lambda site=site: owned(site, run.namespace, uid) == {}, 120)
    print(f"nothing left at the sites {time.monotonic() - begun:.0f} s after the namespace was deleted")
    workloads.wait_until_gone(run.hub, "v1", "Namespace", None, run.namespace)

"""A job of four Learners at two sites that does not end by itself, and what is expected of it around a failure."""

from collections.abc import Collection

from clusters import pace
from clusters.api import Api, Object, wait_until
from clusters.installation import Installation
from clusters.operator_process import condition, pods, site_of
from clusters.scene import Scene
from diloco_api.progress import LearnerProgress, LearnerState

JOB = "multi-site"
EVERYBODY = frozenset({0, 1, 2, 3})
REPLACED_WITHIN_SECONDS = 2.0
STANDSTILL_SECONDS = 20.0
"""Steps are told by heartbeats every 5 s; the machine is small."""


def endless(job: Object) -> None:
    """A small model for a long time, by processes that leave the machine some room."""
    job["spec"]["budget"] = {"outerRounds": 1_000_000}
    job["spec"]["algorithm"] = {"preset": "DecoupledDiLoCo", "fragments": 4, "syncEvery": 100}
    job["spec"]["train"]["model"] = {"layers": 1, "hidden": 64, "heads": 2}
    job["spec"]["learners"]["template"] = limited(job["spec"]["learners"]["template"])


def limited(template: Object) -> Object:
    """A pod template whose container takes little of the machine once it has started (pace.py)."""
    container = template["spec"]["containers"][0]
    resources = {"requests": {"cpu": "20m"}, "limits": {"cpu": pace.LIMIT, "memory": "2Gi"}}
    return {"spec": template["spec"] | {"containers": [container | {"resources": resources}]}}


def whole(run: Installation, timeout_seconds: float = 180, *, cooling: Collection[str] = ()) -> Object:
    """Wait until four Learners are at work, nothing is left of older ones, and nothing is held against any site.

    Sites that are `cooling` are those that have just come back: they may not yet be Eligible.
    """

    def all_is_well(job: Object) -> Object | None:
        status = job.get("status", {})
        rows = status.get("learnerStatuses", [])
        if [row["state"] for row in rows] != ["Running"] * 4 or condition(job, "Degraded")[0] != "False":
            return None
        for name in ("site-1", "site-2"):
            kinds = ["Reachable"] + ["Eligible"] * (name not in cooling)
            kinds += ["SynchronizerReachable"] * any(row["site"] == name for row in rows)
            if any(condition(site_of(job, name), kind)[0] != "True" for kind in kinds):
                return None
        there = {name for site in run.sites for name in pods(Api(site), run.namespace, job["metadata"]["uid"])}
        learners = {name for name in there if "synchronizer" not in name}
        return job if learners == {row["podName"] for row in rows} else None

    found: Object = run.wait_for("the job whole", JOB, all_is_well, timeout_seconds)
    return found


def check_others(scene: Scene, *failed: int, replaced: bool = True) -> None:
    """Everybody but the failed Learners went on undisturbed, and the API servers know of no write to another pod."""
    lost = {pod.name for pod in scene.pods.values() if pod.uid in scene.known and pod.index in failed}
    assert scene.disturbed() == (lost if replaced else set())
    assert len(scene.new()) == (len(failed) if replaced else 0), scene.new()
    check_audit(scene, lost if replaced else set())
    still = {index: round(scene.standstill(index), 1) for index in sorted(EVERYBODY - set(failed))}
    scene.tell(f"longest time without news of a further step: {still}")
    assert max(still.values()) < STANDSTILL_SECONDS


def check_audit(scene: Scene, lost: set[str]) -> None:
    """Nobody made any pod but the new ones, deleted any but the lost ones, or restarted a container."""
    assert scene.restarted() == set()
    writes = scene.audit.pod_writes()
    assert writes.created == scene.new()
    assert writes.deleted <= lost
    assert writes.changed == set()


def check_fenced(scene: Scene, index: int, old: int) -> None:
    """The predecessor is out, the successor in."""
    wait_until(
        "the successor is heard and the predecessor is not",
        lambda: scene.learner(index).live and scene.learner(index).incarnation > old and scene.learner(index, old).gone,
        120,
    )


def check_never_paused(scene: Scene, before: dict[int, LearnerProgress]) -> None:
    """Learners that could not be heard for a while trained all the time, by their own accounts of their seconds."""
    scene.wait_for_steps(set(before))
    for index, known in before.items():
        now = scene.learner(index)
        spent = {state: now.state_seconds[state] - known.state_seconds.get(state, 0.0) for state in now.state_seconds}
        training, steps = spent.pop(LearnerState.TRAINING), now.step - known.step
        scene.tell(f"Learner {index}: {steps} steps, {training:.1f} s training, else {sum(spent.values()):.1f} s")
        assert (now.incarnation, now.step > known.step) == (known.incarnation, True)
        assert sum(spent.values()) < 0.1 * training


def at_site(scene: Scene, site: str) -> set[int]:
    rows = scene.installation.job(JOB)["status"]["learnerStatuses"]
    return {row["index"] for row in rows if row["site"] == site}


def incarnations(run: Installation) -> dict[int, int]:
    return {row["index"]: row["incarnation"] for row in run.job(JOB)["status"]["learnerStatuses"]}

"""Whose objects a job's are: those with its uid that the installation made which accepted it."""

from dataclasses import replace

from diloco_api import names
from diloco_operator.planning.types import Apply, CreatePod, Delete
from fakes.fleet import POLICY, Fleet, running_fleet

ELSEWHERE = replace(POLICY, origin="elsewhere")


def foreign(fleet: Fleet, **fields: object) -> str:
    """A pod of Learner 0 with the job's uid that another installation made at site-1; its name."""
    pod = replace(fleet.learner(0), name="foreign", uid="foreign", origin="elsewhere", **fields)  # type: ignore[arg-type]
    fleet.clusters["site-1"].pods[pod.name] = pod
    return pod.name


def test_a_pod_of_another_installation_is_neither_adopted_nor_removed() -> None:
    fleet = running_fleet()
    name = foreign(fleet, incarnation=7)
    planned = fleet.step()
    assert planned.actions == ()
    fleet.settle(3)
    assert name in fleet.clusters["site-1"].pods
    assert fleet.row(0).incarnation == 1


def test_a_pod_of_ours_that_the_status_does_not_know_is_adopted() -> None:
    fleet = running_fleet()
    name = foreign(fleet, incarnation=7)
    pods = fleet.clusters["site-1"].pods
    pods[name] = replace(pods[name], origin="here")
    fleet.step()
    assert fleet.row(0).incarnation == 7


def test_objects_of_another_installation_are_not_the_jobs() -> None:
    fleet = running_fleet()
    config = "ConfigMap", names.config_name("toy", fleet.job.metadata.uid)
    objects = fleet.clusters["site-1"].objects
    objects[config] = replace(objects[config], origin="elsewhere")
    actions = fleet.step().actions
    assert [(action.site, action.key) for action in actions if isinstance(action, Apply)] == [("site-1", config)]
    fleet = running_fleet()
    fleet.clusters["site-1"].objects["Secret", "theirs"] = replace(objects[config], origin="elsewhere")
    assert fleet.step().actions == ()


def test_an_installation_that_was_made_anew_goes_on_with_the_jobs_of_its_predecessor() -> None:
    fleet = running_fleet()
    fleet.policy = ELSEWHERE
    assert fleet.step().actions == ()
    fleet.finish(fleet.learner(0), 137)
    for _ in range(20):
        fleet.step()
    (created,) = (name for _, name in fleet.created if name.endswith("-0-2"))
    assert fleet.clusters["site-1"].pods[created].origin == "here"


def test_a_deleted_job_takes_along_what_was_made_for_it_and_nothing_else() -> None:
    fleet = running_fleet()
    name = foreign(fleet)
    fleet.policy = ELSEWHERE
    metadata = fleet.job.metadata.model_copy(update={"deletion_timestamp": "2027-01-15T08:00:00Z"})
    fleet.job = fleet.job.model_copy(update={"metadata": metadata})
    removed = [action.name for action in fleet.step().actions if isinstance(action, Delete)]
    assert len(removed) == 4
    for _ in range(5):
        fleet.reap()
        planned = fleet.step()
    assert planned.finished
    assert [set(cluster.pods) for cluster in fleet.clusters.values()] == [set(), {name}, set()]


def test_a_new_job_is_marked_with_the_installation_that_accepts_it() -> None:
    fleet = running_fleet()
    assert fleet.job.status.resolved is not None
    assert fleet.job.status.resolved.origin == "here"
    fleet = Fleet(policy=ELSEWHERE)
    fleet.settle(3)
    fleet.serve()
    fleet.settle(2)
    made = [m for cluster in fleet.clusters.values() for m in cluster.manifests.values()]
    assert {m["metadata"]["labels"][names.LABEL_ORIGIN] for m in made} == {"elsewhere"}
    assert any(isinstance(action, CreatePod) for action in fleet.step().actions) or fleet.created

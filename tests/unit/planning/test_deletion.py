"""Jobs that are held by nothing any more: because they have ended, or because their namespace is being deleted."""

from diloco_api import names
from diloco_api.progress import Phase
from diloco_operator.planning.types import Delete
from fakes.fleet import Fleet, running_fleet


def ending_fleet() -> Fleet:
    fleet = running_fleet()
    fleet.add_synchronizer_pod()
    fleet.namespace_ends = True
    return fleet


def test_in_a_namespace_that_ends_the_sites_are_emptied_before_the_job_is_deleted() -> None:
    fleet = ending_fleet()
    removed = [action for action in fleet.step().actions if isinstance(action, Delete)]
    assert {action.site for action in removed} == {"site-1", "site-2"}
    assert len(removed) == 4, "the Learners; what they read goes after them"


def test_a_job_in_a_namespace_that_ends_is_let_go_as_soon_as_its_sites_are_empty() -> None:
    fleet = ending_fleet()
    fleet.step()
    assert names.FINALIZER in fleet.job.metadata.finalizers, "Learners are ending there"
    fleet.reap()
    fleet.step()
    planned = fleet.step()
    assert (planned.finalizer, planned.finished) == ("remove", True)
    assert fleet.hub.pods, "what is at the hub goes with the namespace"
    assert fleet.hub.objects
    assert fleet.step().actions == ()


def test_in_a_namespace_that_ends_a_site_that_is_away_is_waited_for() -> None:
    fleet = ending_fleet()
    fleet.clusters["site-2"].down = "Timeout"
    for _ in range(3):
        fleet.step(300)
        fleet.reap()
    assert names.FINALIZER in fleet.job.metadata.finalizers
    assert not fleet.clusters["site-1"].pods


def test_a_job_that_has_ended_is_let_go_when_nothing_of_it_is_left_but_its_data() -> None:
    fleet = running_fleet()
    fleet.serve(Phase.COMPLETE)
    for index in range(4):
        fleet.finish(fleet.learner(index), 0)
    for _ in range(2):
        fleet.step()
    fleet.clusters["site-2"].down = "Timeout"
    for _ in range(4):
        fleet.step()
        fleet.reap()
    assert fleet.condition("Complete").status == "True"
    assert names.FINALIZER in fleet.job.metadata.finalizers, "a site is away"
    fleet.clusters["site-2"].down = ""
    status = fleet.job.status
    for _ in range(4):
        fleet.step()
        fleet.reap()
    assert fleet.job.metadata.finalizers == []
    assert fleet.job.status == status
    assert [kind for kind, _ in fleet.hub.objects] == ["PersistentVolumeClaim"]
    planned = fleet.step()
    assert (planned.actions, planned.finalizer, planned.finished) == ((), "keep", True)

"""A job that merely starts is not degraded; one that has lost a Learner, or waits for too long, is."""

import pytest

from diloco_api.status import LearnerStatus
from diloco_operator.planning.clock import to_text
from diloco_operator.planning.newcomers import newcomers
from diloco_operator.planning.types import PodView
from fakes.fleet import Fleet, running_fleet

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("state", "fields", "age_seconds", "on_its_way"),
    [
        ("Pending", {}, None, True),
        ("Pending", {}, 299, True),
        ("Starting", {}, 299, True),
        ("Starting", {}, 300, False),
        ("Pending", {"restarts": 1}, 1, False),  # a replacement is missing from the loss on
        ("Starting", {"running_since": to_text(NOW - 5)}, 9, False),  # it was at work once
        ("BackOff", {}, None, False),  # its first incarnation is over
    ],
)
def test_a_first_incarnation_is_on_its_way_until_its_pod_is_old(
    state: str, fields: dict[str, object], age_seconds: float | None, on_its_way: bool
) -> None:
    row = LearnerStatus.model_validate(
        {"index": 3, "site": "a", "incarnation": 1, "pod_name": "p", "state": state, **fields}
    )
    created = NOW if age_seconds is None else NOW - age_seconds
    pods = [PodView("another" if age_seconds is None else "p", "u", "learner", 3, 1, "Pending", created_at=created)]
    assert newcomers([row], pods, 300, NOW) == ({3} if on_its_way else set())


def begun() -> Fleet:
    """Two of four Learners are at work, which is a quorum; the pods of the others have only just been made."""
    fleet = Fleet()
    fleet.settle(3)
    fleet.serve()
    while len(fleet.clusters["site-2"].pods) < 2:
        fleet.step()
    for pod in list(fleet.clusters["site-1"].pods.values()):
        fleet.change(pod, phase="Running")
    fleet.beat()
    fleet.step()
    assert fleet.condition("QuorumMet").status == "True"
    return fleet


def test_a_job_with_its_first_learners_at_work_is_starting() -> None:
    fleet = begun()
    assert fleet.condition("Degraded").status == "False"
    assert (fleet.job.status.phase, fleet.job.status.learners.summary) == ("Starting", "2/4")
    fleet.settle()
    assert (fleet.job.status.phase, fleet.job.status.learners.summary) == ("Running", "4/4")


def test_learners_that_take_too_long_to_begin_are_missing() -> None:
    fleet = begun()
    fleet.pass_time(310)
    assert (fleet.condition("Degraded").status, fleet.condition("Degraded").reason) == ("True", "LearnersMissing")
    assert fleet.condition("Degraded").message == "not at work: Learner 1, 3"
    assert fleet.job.status.phase == "Degraded"


def test_one_that_was_lost_while_others_begin_is_missing() -> None:
    fleet = begun()
    fleet.finish(fleet.learner(0), 1, "error: no luck")
    fleet.step()
    assert fleet.condition("Degraded").message == "not at work: Learner 0"


def test_a_job_that_grows_goes_on_running() -> None:
    fleet = running_fleet()
    fleet.pass_time(400)
    fleet.edit({"learners.replicas": 6})
    fleet.step()
    assert (fleet.job.status.phase, fleet.condition("Degraded").status) == ("Running", "False")
    assert fleet.job.status.learners.summary == "4/6"


def test_the_event_of_a_replacement_says_which_where_and_why() -> None:
    fleet = running_fleet()
    fleet.finish(fleet.learner(1), 1, "error: no luck")
    messages = [event.message for event in fleet.step().events if event.reason == "LearnerStarted"]
    assert messages == ["Learner 1 starts as incarnation 2 at site site-2: AppError"]

"""What `diloco status` shows of a job's status."""

import io

import pytest
from rich.console import Console, RenderableType

from diloco_cli.cluster import BadCredentials, ClusterError, Document
from diloco_cli.job_status import draw_job, draw_jobs, jobs_path, read_job
from fakes.clusters import FakeCluster

NOW = "2026-01-01T00:00:00Z"


def condition(kind: str, status: str, reason: str, message: str = "") -> Document:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": NOW}


JOB: Document = {
    "metadata": {"name": "demo", "namespace": "jobs"},
    "status": {
        "phase": "Degraded",
        "conditions": [
            condition("Accepted", "True", "Valid"),
            condition("QuorumMet", "False", "TooFewLearners", "1 of 2 Learners are heard"),
            condition("Degraded", "True", "LearnersMissing"),
            condition("SomethingNewer", "False", "Unheard"),
        ],
        "progress": {"percent": 42, "tokens": 1_230_000, "outerSteps": 80, "outerRounds": 9, "etaSeconds": 80,
                     "lastUpdatedTime": NOW},
        "learners": {"desired": 2, "summary": "1/2"},
        "siteSummary": "1/2",
        "goodput": {"capacity": "0.8750", "accepted": "0.8000", "uptime": "1.0000"},
        "sites": [
            {"name": "hub", "desired": 1, "ready": 1, "conditions": [condition("Reachable", "True", "Connected")]},
            {"name": "far", "desired": 1, "lastContactTime": NOW,
             "conditions": [condition("Reachable", "False", "TLSFailure", "unknown authority")]},
        ],
        "learnerStatuses": [
            {"index": 0, "site": "hub", "incarnation": 1, "podName": "demo-0-1", "state": "Running"},
            {"index": 1, "site": "far", "incarnation": 3, "podName": "demo-1-3", "state": "BackOff", "restarts": 2,
             "reason": "OOMKilled", "message": "exit code 137"},
        ],
        "fromANewerOperator": {"x": 1},
    },
}  # fmt: skip


def text(drawn: RenderableType, width: int = 200) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(drawn)
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


def test_jobs_are_listed_with_what_matters_first() -> None:
    fresh = {"metadata": {"name": "another", "namespace": "jobs"}}
    assert text(draw_jobs([JOB, fresh], with_namespace=True)) == [
        "namespace job phase progress Learners sites rounds left goodput",
        "jobs another not seen by an operator yet - - - - - -",
        "jobs demo Degraded 42 % 1/2 1/2 9 1 min 20 s 87.5 %",
    ]
    assert text(draw_jobs([JOB], with_namespace=False))[0].startswith("job phase")


def test_one_job_is_shown_with_its_sites_and_learners_and_what_is_not_as_it_should_be() -> None:
    lines = text(draw_job(JOB))
    assert lines[0] == "demo: Degraded"
    assert lines[1].startswith("42 %, 1 min 20 s left; round 9, 80 outer steps; 1.23M tokens merged; goodput 87.5 %")
    assert lines[2:5] == [
        "QuorumMet=False TooFewLearners: 1 of 2 Learners are heard",
        "Degraded=True LearnersMissing",
        "SomethingNewer=False Unheard",
    ]
    assert f"far 1 0 0 Reachable=False TLSFailure: unknown authority {NOW}" in lines
    assert "hub 1 1 0 -" in lines
    assert "1 BackOff far 3 2 demo-1-3 OOMKilled: exit code 137" in lines


def test_what_a_finished_job_came_to_is_said() -> None:
    job = {"metadata": JOB["metadata"], "status": {"phase": "Complete", "conditions": [
        condition("Complete", "True", "TokenBudgetReached"), condition("Degraded", "False", "Finished")]}}  # fmt: skip
    assert text(draw_job(job)) == ["demo: Complete", "Complete=True TokenBudgetReached"]


def test_names_and_messages_are_shown_as_they_are_and_not_as_markup() -> None:
    job = {
        "metadata": JOB["metadata"],
        "status": {"conditions": [condition("Accepted", "False", "X", "[bold]a[/bold]")]},
    }
    assert text(draw_job(job))[-1] == "Accepted=False X: [bold]a[/bold]"


def test_a_job_that_is_not_there_and_an_api_that_is_not_there_are_told_apart() -> None:
    with pytest.raises(BadCredentials, match="there is no job demo in namespace jobs"):
        read_job(FakeCluster(), "jobs", "demo")
    absent = ClusterError("https://x: the server could not find the requested resource", 404)
    with pytest.raises(ClusterError, match="DiLoCoJob is not installed there"):
        read_job(FakeCluster({("GET", jobs_path("jobs", "demo")): absent}), "jobs", "demo")

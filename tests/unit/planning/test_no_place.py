"""Sites that turn Learners away in ways of their own, again and again: each is told, and another site takes over."""

from dataclasses import replace

import pytest

from diloco_api.reach import Failure, Unreached, unreached_line
from diloco_operator.planning.classify import FailureClass, classify
from diloco_operator.planning.types import Ended, Refusal
from diloco_operator.planning.views import pod_view
from fakes.fleet import POLICY, Fleet, fleet_job, never_heard_fleet, running_fleet

COOL_DOWN = POLICY.timeouts.site_cool_down_seconds
TCP = unreached_line(str(Unreached(Failure.TCP, "192.0.2.11:31400: no answer")))
WEBHOOK = Refusal("ServerError", "failed calling webhook: connection refused")


def lasting(fleet: Fleet, seconds: float) -> None:
    """Passes in which pods start."""
    for _ in range(int(seconds / 10)):
        fleet.run_all()
        fleet.pass_time(10)


# --- creations that fail -------------------------------------------------------------------------------------------


def test_a_site_that_cannot_create_pods_is_told_at_once_and_left_after_its_time() -> None:
    fleet = Fleet()
    fleet.settle(3)
    fleet.serve()
    fleet.clusters["site-2"].refuse = WEBHOOK
    fleet.settle(4)
    assert (fleet.row(1).state, fleet.row(1).reason) == ("Pending", "NotCreated")
    told = "site-2: Learner 1 in pool default: NotCreated: ServerError: failed calling webhook: connection refused"
    assert fleet.condition("Degraded").message == told, "the other one is not tried after that"
    fleet.pass_time(2 * POLICY.timeouts.config_timeout_seconds + 40)
    lasting(fleet, 30)
    assert set(fleet.where().values()) == {"site-1"}
    assert [fleet.row(index).state for index in range(4)] == ["Running"] * 4
    assert fleet.row(1).restarts_counted == 0
    assert fleet.site_condition("site-2", "Eligible") == ("False", "ConfigError")


def test_a_creation_that_failed_for_a_moment_is_no_loss() -> None:
    fleet = running_fleet()
    fleet.finish(fleet.learner(1), 137)
    fleet.clusters["site-2"].refuse = WEBHOOK
    fleet.pass_time(30)
    fleet.clusters["site-2"].refusals.clear()  # one of another Learner ended the batch before
    fleet.step()
    assert fleet.row(1).state == "Pending"
    fleet.clusters["site-2"].refuse = None
    fleet.settle(3)
    assert (fleet.row(1).state, fleet.row(1).incarnation, fleet.row(1).site) == ("Running", 2, "site-2")


def test_waiting_for_quota_takes_no_number_and_tells_nothing_new() -> None:
    fleet = running_fleet(job=fleet_job(sites=1, replicas=2))
    fleet.finish(fleet.learner(1), 137)
    fleet.clusters["site-1"].quota = 2
    fleet.clusters["site-1"].refuse = Refusal("QuotaExceeded", "exceeded quota: pods")
    fleet.pass_time(30)
    fleet.events.clear()
    losses = []
    for _ in range(120):
        fleet.beat()
        losses += fleet.step(30).losses
    assert (fleet.row(1).incarnation, fleet.row(1).restarts) == (2, 1)
    assert (fleet.events, losses) == ([], [])
    fleet.clusters["site-1"].refuse = fleet.clusters["site-1"].quota = None
    lasting(fleet, COOL_DOWN + 20)
    assert (fleet.row(1).state, fleet.row(1).incarnation) == ("Running", 2)


def test_those_that_were_not_even_tried_where_others_were_refused_are_no_losses() -> None:
    fleet = running_fleet(job=fleet_job(sites=1, replicas=3))
    for index in (1, 2):
        fleet.finish(fleet.learner(index), 137)
    fleet.clusters["site-1"].refuse = Refusal("QuotaExceeded", "exceeded quota: pods")
    losses = []
    for _ in range(60):
        fleet.beat()
        losses += fleet.step(30).losses
    assert sorted((loss.index, loss.reason) for loss in losses) == [(1, "AppError"), (2, "AppError")]
    assert [fleet.row(index).incarnation for index in range(3)] == [1, 2, 2]


# --- the way to the Synchronizer ----------------------------------------------------------------------------------


def test_where_logs_cannot_be_read_those_that_are_never_heard_move_uncounted_too() -> None:
    fleet = never_heard_fleet("site-2")
    fleet.clusters["site-2"].log_problem = "Forbidden"
    fleet.pass_time(200, every=5)
    assert all(c.type != "SynchronizerReachable" for c in fleet.site("site-2").conditions), "they may still be starting"
    fleet.pass_time(150, every=5)
    assert fleet.site_condition("site-2", "SynchronizerReachable") == ("False", "HeartbeatsStale")
    fleet.pass_time(300, every=5)
    lasting(fleet, 30)
    assert set(fleet.where().values()) == {"site-1"}
    assert [fleet.row(index).restarts_counted for index in range(4)] == [0] * 4


def test_a_site_that_stays_cut_off_is_not_called_eligible_between_two_tries() -> None:
    fleet = never_heard_fleet("site-1", job=fleet_job(sites=1, replicas=3))
    for _ in range(400):
        fleet.clusters["site-1"].logs = dict.fromkeys(fleet.clusters["site-1"].pods, TCP)
        fleet.run_all()
        fleet.pass_time(10)
    assert fleet.events.count("SiteIneligible") == 1
    assert "SiteEligible" not in fleet.events
    active = [row.state for row in fleet.job.status.learner_statuses if row.state != "BackOff"]
    assert len(active) <= 1


# --- nodes --------------------------------------------------------------------------------------------------------


def test_full_pools_are_remembered_until_the_next_one_has_had_its_time_too() -> None:
    pools = [{"name": "a"}, {"name": "b"}]
    full = {"name": "site-1", "kubeconfigSecretRef": {"name": "kube-1"}, "nodePools": pools, "learners": {"weight": 2}}
    other = {"name": "site-2", "kubeconfigSecretRef": {"name": "kube-2"}}
    fleet = running_fleet(job=fleet_job({"sites": [full, other]}, replicas=2))
    index = next(index for index, site in fleet.where().items() if site == "site-1")
    fleet.finish(fleet.learner(index), 137)
    fleet.step()
    for _ in range(80):
        fleet.wait("site-1", unscheduled="Unschedulable", unscheduled_message="no")
        fleet.pass_time(10)
    lasting(fleet, 20)
    assert (fleet.row(index).site, fleet.row(index).state) == ("site-2", "Running")


@pytest.mark.parametrize(
    ("reason", "disruption"), [("UnexpectedAdmissionError", ""), ("Evicted", "TerminationByKubelet")]
)
def test_a_site_whose_nodes_turn_a_learner_away_is_left_in_the_end(reason: str, disruption: str) -> None:
    fleet = running_fleet()
    for _ in range(200):
        row = fleet.row(1)
        if row.site == "site-2" and row.pod_name in fleet.clusters["site-2"].pods:
            fleet.finish(fleet.learner(1), 137)
            fleet.change(fleet.learner(1), pod_reason=reason, disruption=disruption)
        fleet.pass_time(10)
    lasting(fleet, 20)
    assert (fleet.row(1).site, fleet.row(1).state, fleet.row(1).restarts_counted) == ("site-1", "Running", 0)
    assert fleet.row(1).incarnation <= 6


def test_one_that_is_heard_on_a_silent_node_outlives_a_moment_without_synchronizer() -> None:
    fleet = running_fleet()
    pod = fleet.change(fleet.learner(0), node_silent=True)
    fleet.change(pod, deleting=True, delete_by=fleet.now + 30)
    fleet.pass_time(20)
    fleet.phase = None
    fleet.step()
    assert fleet.row(0).incarnation == 1
    fleet.serve()
    fleet.pass_time(20)
    assert (fleet.row(0).state, fleet.row(0).incarnation) == ("Running", 1)


@pytest.mark.parametrize(
    ("status", "taken"),
    [
        ({"reason": "Terminated"}, True),
        ({"reason": "NodeShutdown"}, True),
        ({"reason": "Evicted"}, False),
        ({}, False),
    ],
)
def test_a_kubelets_own_word_tells_shutdown_and_pressure_apart(status: dict[str, str], taken: bool) -> None:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
    manifest = {
        "metadata": {"name": "p", "uid": "u", "labels": {}},
        "status": {"phase": "Failed", "conditions": [condition], **status},
    }
    view = replace(pod_view(manifest, 0.0), ended=Ended(143))
    verdict = classify(view, None)
    assert (verdict.kind, verdict.counts, verdict.taken) == (FailureClass.DISRUPTION, False, taken)


# --- what is counted ----------------------------------------------------------------------------------------------


def test_learners_that_leave_a_lost_site_are_losses_once() -> None:
    fleet = running_fleet()
    fleet.clusters["site-2"].cut = True
    fleet.clusters["site-2"].down = "TCPFailure"
    losses = []
    for _ in range(60):
        fleet.beat()
        losses += fleet.step(10).losses
        fleet.run_all()
    assert sorted((loss.index, loss.site, loss.reason, loss.counted) for loss in losses) == [
        (1, "site-2", "SiteUnreachable", False), (3, "site-2", "SiteUnreachable", False),
    ]  # fmt: skip


# --- ends ---------------------------------------------------------------------------------------------------------


def test_an_ended_job_does_not_ask_a_site_that_is_away_again_and_again() -> None:
    fleet = running_fleet()
    fleet.clusters["site-2"].down = "TCPFailure"
    fleet.edit({"failurePolicy.maxRestarts": 0})
    fleet.finish(fleet.learner(0), 64, "error: it is wrong")
    for _ in range(20):
        planned = fleet.step(5)
        fleet.reap()
    assert fleet.condition("Failed").status == "True"
    assert (planned.finished, planned.requeue_after) == (False, None)
    fleet.clusters["site-2"].down = ""
    for _ in range(5):
        planned = fleet.step(5)
        fleet.reap()
    assert planned.finished

"""Scenes from the life of a job on several clusters, planned pass by pass in a fleet of plain values."""

from dataclasses import replace

import pytest

from diloco_api import names
from diloco_api.states import SITE_CONDITION_REASONS, Reason, SiteConditionType
from diloco_operator.planning.types import Apply, CreatePod, Refusal
from fakes.fleet import POLICY, Fleet, fleet_job, running_fleet

LOST = POLICY.timeouts.site_lost_after_seconds
COOL_DOWN = POLICY.timeouts.site_cool_down_seconds


# --- start --------------------------------------------------------------------------------------------------------


def test_nothing_is_made_before_the_finalizer_was_seen() -> None:
    fleet = Fleet()
    first = fleet.step()
    assert (first.finalizer, first.actions) == ("add", ())
    assert fleet.condition("Accepted").status == "True"
    second = fleet.step()
    assert second.finalizer == "keep"
    assert ("Deployment", "hub") in {(a.key[0], a.site) for a in second.actions if isinstance(a, Apply)}


def test_a_job_that_is_not_accepted_needs_no_finalizer() -> None:
    fleet = Fleet(job=fleet_job({"learners.min": 9}))
    assert fleet.step().finalizer == "keep"
    assert fleet.condition("Accepted").reason == "InvalidSpec"


def test_a_finalizer_somebody_took_away_comes_back_before_anything_else_is_done() -> None:
    fleet = running_fleet()
    fleet.finish(fleet.learner(0), 137)
    fleet.job = fleet.job.model_copy(
        update={"metadata": fleet.job.metadata.model_copy(update={"finalizers": ["other"]})}
    )
    planned = fleet.step()
    assert (planned.finalizer, planned.actions) == ("add", ())
    fleet.step()
    assert len(fleet.created) == 1


def test_learners_are_spread_over_the_sites_and_the_hub_has_the_synchronizer_alone() -> None:
    fleet = running_fleet()
    assert fleet.where() == {0: "site-1", 1: "site-2", 2: "site-1", 3: "site-2"}
    assert [row.state for row in fleet.job.status.learner_statuses] == ["Running"] * 4
    assert {kind for kind, _ in fleet.hub.objects} == {
        "ConfigMap", "Secret", "Service", "PersistentVolumeClaim", "Deployment", "PodDisruptionBudget", "NetworkPolicy",
    }  # fmt: skip
    assert {kind for kind, _ in fleet.clusters["site-1"].objects} == {"ConfigMap", "Secret", "NetworkPolicy"}
    assert (fleet.job.status.learners.summary, fleet.job.status.site_summary) == ("4/4", "3/3")
    assert fleet.site("site-1").cluster_uid == "uid-of-site-1"
    for kind in ("Reachable", "Eligible", "SynchronizerReachable"):
        assert fleet.site_condition("site-2", kind)[0] == "True"


def test_learners_of_other_sites_wait_until_the_address_is_known() -> None:
    fleet = Fleet(nodes=())
    fleet.settle(3)
    fleet.serve()
    fleet.settle(3)
    assert fleet.created == []
    assert fleet.condition("SynchronizerReady").reason == "AddressPending"
    assert not any(name.endswith("address") for _, name in fleet.clusters["site-1"].objects)
    fleet.nodes = ("192.0.2.11", "192.0.2.10")
    fleet.settle(3)
    assert len(fleet.created) == 4
    assert fleet.condition("SynchronizerReady").reason == "Ready"
    address = next(m for (k, n), m in fleet.clusters["site-1"].manifests.items() if n.endswith("-address"))
    assert address["data"]["addresses"] == "192.0.2.10:31400\n192.0.2.11:31400\n"


def test_a_known_address_that_cannot_be_seen_just_now_is_kept() -> None:
    fleet = running_fleet()
    before = dict(fleet.clusters["site-1"].objects)
    fleet.nodes = ()
    assert fleet.step().actions == ()
    assert fleet.clusters["site-1"].objects == before
    assert fleet.condition("SynchronizerReady").reason == "Ready"
    fleet.nodes = ("192.0.2.99",)
    assert {a.key[0] for a in fleet.step().actions if isinstance(a, Apply)} == {"ConfigMap", "NetworkPolicy"}


def test_at_rest_there_is_no_action_and_no_write() -> None:
    fleet = running_fleet()
    for _ in range(60):
        fleet.beat()
        planned = fleet.step(seconds=5)
        assert (planned.actions, planned.events) == ((), ())
    assert fleet.writes == 0


# --- placement ----------------------------------------------------------------------------------------------------


def test_a_replacement_stays_at_its_site() -> None:
    fleet = running_fleet()
    fleet.finish(fleet.learner(1), 137)
    fleet.settle(3)
    assert fleet.row(1).incarnation == 2
    assert [site for site, _ in fleet.created] == ["site-2"]


def sited(*settings: dict[str, object], replicas: int) -> Fleet:
    sites = [
        {"name": f"site-{n}", "kubeconfigSecretRef": {"name": f"kube-{n}"}, "learners": learners}
        for n, learners in enumerate(settings, 1)
    ]
    return running_fleet(job=fleet_job({"sites": sites}, replicas=replicas))


def test_weights_minima_and_maxima_of_sites_are_kept() -> None:
    def counts(fleet: Fleet) -> list[int]:
        return [site.ready for site in fleet.job.status.sites if site.name != "hub"]

    assert counts(sited({"weight": 2}, {"weight": 1}, replicas=6)) == [4, 2]
    assert counts(sited({"weight": 1, "max": 1}, {}, replicas=5)) == [1, 4]
    assert counts(sited({"weight": 9}, {"min": 3}, replicas=4)) == [1, 3]
    assert counts(sited({"weight": 0}, {"max": 3}, replicas=4)) == [1, 3]


def test_learners_are_spread_over_the_node_pools_of_a_site() -> None:
    pools = [{"name": "a"}, {"name": "b", "device": "cpu"}]
    site = {"name": "site-1", "kubeconfigSecretRef": {"name": "kube-1"}, "nodePools": pools}
    fleet = running_fleet(job=fleet_job({"sites": [site]}, replicas=4))
    assert [row.pool for row in fleet.job.status.learner_statuses] == ["a", "b", "a", "b"]


# --- pods that cannot run -----------------------------------------------------------------------------------------


def test_a_learner_no_node_takes_goes_to_another_site_after_its_time_and_touches_no_other() -> None:
    fleet = running_fleet()
    fleet.finish(fleet.learner(1), 137)
    fleet.step()
    fleet.wait("site-2", unscheduled="Unschedulable", unscheduled_message="0/3 nodes: 3 Insufficient nvidia.com/gpu")
    fleet.step()
    assert fleet.condition("Degraded").reason == "ReplacementUnschedulable"
    assert fleet.condition("Degraded").message == (
        "site-2: Learner 1 in pool default: Unschedulable: 0/3 nodes: 3 Insufficient nvidia.com/gpu"
    )
    written = fleet.writes
    fleet.wait("site-2", unscheduled_message="0/4 nodes: 4 Insufficient nvidia.com/gpu")
    fleet.pass_time(280)
    assert fleet.row(1).incarnation == 2
    assert fleet.writes == written
    fleet.pass_time(30)
    assert (fleet.row(1).site, fleet.row(1).incarnation) == ("site-1", 3)
    assert fleet.site_condition("site-2", "Eligible") == ("False", "NoFit")
    assert [name for _, name in fleet.deleted] == ["toy-0a1b2c3d-1-1", "toy-0a1b2c3d-1-2"]
    assert "LearnerMoved" in fleet.events
    assert [fleet.row(index).incarnation for index in (0, 2, 3)] == [1, 1, 1]


def test_a_full_node_pool_is_left_for_another_one_of_the_site() -> None:
    pools = [{"name": "a"}, {"name": "b"}]
    site = {"name": "site-1", "kubeconfigSecretRef": {"name": "kube-1"}, "nodePools": pools}
    fleet = running_fleet(job=fleet_job({"sites": [site]}, replicas=2))
    fleet.finish(fleet.learner(0), 137)
    fleet.step()
    assert fleet.row(0).pool == "a"
    fleet.wait("site-1", unscheduled="Unschedulable", unscheduled_message="no")
    fleet.pass_time(320)
    assert (fleet.row(0).site, fleet.row(0).pool, fleet.row(0).incarnation) == ("site-1", "b", 3)
    assert fleet.site("site-1").full_pools == ["a"]
    assert fleet.site_condition("site-1", "Eligible") == ("True", "Ok")


def test_where_no_other_place_takes_it_a_pod_that_waits_is_left_to_wait() -> None:
    fleet = running_fleet(job=fleet_job(sites=1, replicas=2))
    fleet.finish(fleet.learner(1), 137)
    fleet.step()
    fleet.wait("site-1", unscheduled="Unschedulable", unscheduled_message="no room")
    fleet.pass_time(600)
    assert fleet.condition("Degraded").message == "site-1: NoFit: pool default: no room"
    written = fleet.writes
    fleet.pass_time(1200, every=25)
    assert fleet.row(1).incarnation == 2
    assert fleet.writes == written
    fleet.wait("site-1", unscheduled="", unscheduled_message="")
    fleet.settle()
    assert fleet.row(1).state == "Running"
    assert fleet.site_condition("site-1", "Eligible") == ("True", "Ok")
    assert fleet.condition("Degraded").reason == "AsDesired"


def test_a_gate_is_a_queue_and_not_a_lack_of_room() -> None:
    fleet = running_fleet()
    fleet.finish(fleet.learner(1), 137)
    fleet.step()
    fleet.wait("site-2", unscheduled="SchedulingGated", unscheduled_message="by Kueue")
    fleet.pass_time(3000, every=25)
    assert (fleet.row(1).incarnation, fleet.row(1).reason) == (2, "SchedulingGated")
    assert fleet.site_condition("site-2", "Eligible") == ("True", "Ok")


def test_an_image_that_cannot_be_pulled_in_one_site_is_told_at_once_and_left_after_its_time() -> None:
    fleet = running_fleet()
    fleet.finish(fleet.learner(1), 137)
    fleet.step()
    for word in ("ErrImagePull", "ImagePullBackOff", "ErrImagePull"):
        fleet.wait("site-2", waiting=word, waiting_message=f"{word}: not found at https://me:hunter2@reg/x")
        fleet.pass_time(30)
    assert fleet.condition("Degraded").reason == "ImagePullFailed"
    assert "hunter2" not in fleet.job.model_dump_json()
    assert fleet.row(1).message == "ErrImagePull: not found at https://<user>@reg/x"
    assert fleet.row(1).incarnation == 2
    fleet.pass_time(60)
    assert (fleet.row(1).site, fleet.row(1).incarnation) == ("site-1", 3)
    assert fleet.site_condition("site-2", "Eligible") == ("False", "ImagePullFailed")
    assert fleet.condition("Degraded").message.startswith("site-2: ImagePullFailed: ErrImagePull")


def test_a_missing_config_map_is_named() -> None:
    fleet = running_fleet()
    fleet.finish(fleet.learner(1), 137)
    fleet.step()
    fleet.wait("site-2", waiting="CreateContainerConfigError", waiting_message='configmap "x" not found')
    fleet.step()
    assert fleet.condition("Degraded").reason == "SiteRefuses"
    assert 'site-2: Learner 1 in pool default: ConfigError: CreateContainerConfigError: configmap "x" not found' in (
        fleet.condition("Degraded").message
    )


@pytest.mark.parametrize(
    ("refusal", "reason", "told"),
    [
        (Refusal("NamespaceMissing", 'namespaces "x" not found'), "NamespaceMissing", "SiteRefuses"),
        (Refusal("QuotaExceeded", "exceeded quota: gpus"), "NoQuota", "QuotaExceeded"),
        (Refusal("PodSecurityDenied", "violates PodSecurity"), "PodSecurityDenied", "SiteRefuses"),
        (Refusal("Forbidden", "pods is forbidden"), "Forbidden", "SiteRefuses"),
    ],
    ids=lambda value: str(value),
)
def test_a_site_that_refuses_pods_is_no_place_and_the_others_go_on(refusal: Refusal, reason: str, told: str) -> None:
    fleet = Fleet()
    fleet.clusters["site-2"].refuse = refusal
    fleet.settle(3)
    fleet.serve()
    fleet.settle(6)
    assert set(fleet.where().values()) == {"site-1"}
    assert fleet.site_condition("site-2", "Eligible") == ("False", reason)
    assert fleet.condition("Degraded").reason == told
    assert fleet.condition("Degraded").message == f"site-2: {reason}: {refusal.message}"
    assert fleet.job.status.learners.summary == "4/4"
    assert fleet.events.count("SiteIneligible") == 1


def test_creations_stop_at_the_first_denial_and_begin_again_with_one() -> None:
    fleet = Fleet(job=fleet_job(sites=1, replicas=12))
    fleet.clusters["site-1"].quota = 5
    fleet.settle(3)
    fleet.serve()
    fleet.settle(4)
    assert len(fleet.created) == 5
    assert fleet.job.status.learners.summary == "5/12"
    attempts: list[int] = []
    for _ in range(60):
        fleet.beat()
        planned = fleet.step(seconds=5)
        attempts.append(sum(isinstance(action, CreatePod) for action in planned.actions))
    assert sum(attempts) <= 300 / COOL_DOWN + 1
    assert max(attempts) == 1
    fleet.clusters["site-1"].quota = None
    fleet.pass_time(COOL_DOWN + 10, every=5)
    fleet.settle()
    assert len(fleet.created) == 12


@pytest.mark.parametrize("reason", ["Timeout", "TooManyRequests", "ServerError"])
def test_a_creation_that_was_not_answered_is_tried_again_under_its_name(reason: str) -> None:
    fleet = running_fleet()
    fleet.finish(fleet.learner(1), 137)
    fleet.clusters["site-2"].refuse = Refusal(reason, "no answer")
    fleet.pass_time(30)
    assert (fleet.row(1).state, fleet.row(1).incarnation) == ("Pending", 2)
    fleet.clusters["site-2"].refuse = None
    fleet.step()
    assert fleet.created == [("site-2", "toy-0a1b2c3d-1-2")]


def test_a_full_node_pool_of_a_site_that_is_full_itself_is_left_all_the_same() -> None:
    pools = [{"name": "a"}, {"name": "b"}]
    site = {**SITE_1, "nodePools": pools, "learners": {"max": 2}}
    fleet = running_fleet(job=fleet_job({"sites": [site]}, replicas=2))
    fleet.finish(fleet.learner(0), 137)
    fleet.step()
    fleet.wait("site-1", unscheduled="Unschedulable", unscheduled_message="no")
    fleet.pass_time(320)
    assert (fleet.row(0).pool, fleet.row(0).incarnation) == ("b", 3)


def test_a_site_without_learners_is_left_empty() -> None:
    site = {**SITE_2, "learners": {"max": 0}}
    fleet = running_fleet(job=fleet_job({"sites": [SITE_1, site]}, replicas=2))
    assert fleet.clusters["site-2"].objects == {}
    lose(fleet, "site-1")
    fleet.pass_time(300)
    assert fleet.created == []


# --- nodes --------------------------------------------------------------------------------------------------------


def test_a_learner_on_a_silent_node_is_kept_as_long_as_it_is_heard() -> None:
    fleet = running_fleet()
    pod = fleet.change(fleet.learner(0), node_silent=True)
    fleet.pass_time(60)
    fleet.change(pod, deleting=True, delete_by=fleet.now + 30, disruption="DeletionByTaintManager")
    fleet.pass_time(300)
    assert fleet.created == []
    assert fleet.row(0).state == "Running"
    fleet.change(pod, node_silent=False)
    fleet.step()
    assert fleet.row(0).incarnation == 2


def test_a_learner_that_is_silent_with_its_node_is_replaced_before_its_pod_goes() -> None:
    fleet = running_fleet()
    lost = fleet.learner(0)
    fleet.change(lost, node_silent=True)
    for _ in range(4):
        fleet.heard = {key: at if key == (0, 1) else fleet.now for key, at in fleet.heard.items()}
        fleet.step(seconds=10)
    assert (fleet.row(0).incarnation, fleet.row(0).site) == (2, "site-1")
    assert [name for _, name in fleet.created] == ["toy-0a1b2c3d-0-2"]
    assert fleet.row(0).restarts_counted == 0


def test_a_synchronizer_that_has_just_started_has_not_heard_anybody_yet() -> None:
    fleet = running_fleet()
    fleet.change(fleet.learner(0), node_silent=True)
    fleet.phase = None
    fleet.pass_time(60)
    fleet.serve()
    for _ in range(2):
        fleet.heard = {key: at if key == (0, 1) else fleet.now for key, at in fleet.heard.items()}
        fleet.step(seconds=10)
    assert fleet.created == []


def test_the_next_look_is_when_a_silent_learner_will_be_dead() -> None:
    fleet = running_fleet()
    assert fleet.step(5).requeue_after == POLICY.poll_seconds
    assert fleet.step(22).requeue_after == pytest.approx(POLICY.timeouts.dead_after_seconds - 27 + 0.1)


def test_a_device_that_cannot_be_used_counts_and_makes_the_site_ineligible() -> None:
    fleet = running_fleet()
    fleet.finish(fleet.learner(1), 70, "error: no CUDA device: driver 535, torch 2.9+cu130")
    fleet.settle(3)
    assert fleet.row(1).site == "site-1"
    assert fleet.row(1).restarts_counted == 1
    assert fleet.site_condition("site-2", "Eligible") == ("False", "ConfigError")
    assert "driver 535" in fleet.condition("Degraded").message


def test_a_learner_that_is_about_to_meet_the_broken_device_proves_nothing_one_that_works_does() -> None:
    fleet = running_fleet(job=fleet_job(sites=1, replicas=2))
    for _ in range(3):
        fleet.finish(fleet.learner(1), 70, "error: no CUDA device")
        fleet.pass_time(90)  # until it may be tried again, and is
        fleet.run_all()
        fleet.pass_time(30)
        assert fleet.learner(1).phase == "Running"
        assert fleet.site_condition("site-1", "Eligible") == ("False", "ConfigError")
    assert "SiteEligible" not in fleet.events
    fleet.pass_time(40)
    assert fleet.site_condition("site-1", "Eligible")[0] == "True"


def test_a_certificate_that_does_not_fit_is_told_at_the_site() -> None:
    fleet = running_fleet()
    fleet.clusters["site-2"].cut = True
    fleet.pass_time(40)
    for index in (1, 3):
        fleet.finish(fleet.learner(index), 84, "error: the certificate CN=synchronizer is signed by another CA")
    fleet.step()
    assert fleet.site_condition("site-2", "SynchronizerReachable")[0] == "False"


# --- sites --------------------------------------------------------------------------------------------------------


def test_a_site_whose_api_is_away_keeps_its_learners_as_long_as_they_are_heard() -> None:
    fleet = running_fleet()
    fleet.clusters["site-2"].down = "TCPFailure"
    fleet.pass_time(20)
    assert fleet.site_condition("site-2", "Reachable") == ("Unknown", "TCPFailure")
    fleet.pass_time(3600, every=25)
    assert fleet.site_condition("site-2", "Reachable") == ("False", "TCPFailure")
    assert fleet.created == []
    assert [fleet.row(index).state for index in range(4)] == ["Running"] * 4
    assert fleet.condition("Degraded").reason == "SiteUnreachable"
    assert fleet.site("site-2").ready == 2
    assert fleet.events.count("SiteUnreachable") == 1
    fleet.clusters["site-2"].down = ""
    fleet.step()
    assert fleet.site_condition("site-2", "Reachable") == ("True", "Connected")
    assert fleet.condition("Degraded").reason == "AsDesired"


def test_a_slow_answer_is_not_called_a_lost_site() -> None:
    fleet = running_fleet()
    for _ in range(20):
        fleet.clusters["site-2"].down = "Timeout"
        fleet.pass_time(8, every=4)
        fleet.clusters["site-2"].down = ""
        fleet.pass_time(10)
    assert (fleet.created, fleet.deleted, fleet.writes) == ([], [], 0)


def test_short_outages_move_nobody() -> None:
    fleet = running_fleet()
    for _ in range(20):
        fleet.clusters["site-2"].down, fleet.clusters["site-2"].cut = "Timeout", True
        fleet.pass_time(LOST - 30)
        fleet.clusters["site-2"].down, fleet.clusters["site-2"].cut = "", False
        fleet.pass_time(40)
    assert (fleet.created, fleet.deleted) == ([], [])
    assert [fleet.row(index).incarnation for index in range(4)] == [1] * 4


def lose(fleet: Fleet, name: str) -> None:
    fleet.clusters[name].down, fleet.clusters[name].cut = "Timeout", True


def heal(fleet: Fleet, name: str) -> None:
    fleet.clusters[name].down, fleet.clusters[name].cut = "", False


def test_learners_of_a_lost_site_move_after_the_grace_and_not_before() -> None:
    fleet = running_fleet()
    lose(fleet, "site-2")
    fleet.pass_time(LOST - 10)
    assert fleet.created == []
    fleet.pass_time(10)
    assert sorted(fleet.created) == [("site-1", "toy-0a1b2c3d-1-2"), ("site-1", "toy-0a1b2c3d-3-2")]
    fleet.run_all()
    fleet.step()
    assert [fleet.row(index).incarnation for index in (0, 2)] == [1, 1]
    assert fleet.job.status.learners.summary == "4/4"


def test_after_healing_the_older_incarnations_go_and_the_site_cools_down() -> None:
    fleet = running_fleet()
    lose(fleet, "site-2")
    fleet.pass_time(LOST + 30)
    fleet.run_all()
    fleet.created.clear()
    heal(fleet, "site-2")
    fleet.step()
    assert sorted(fleet.deleted) == [("site-2", "toy-0a1b2c3d-1-1"), ("site-2", "toy-0a1b2c3d-3-1")]
    assert fleet.site_condition("site-2", "Eligible") == ("False", "CoolingDown")
    fleet.finish(fleet.learner(1), 137)
    fleet.step()
    assert fleet.created == [("site-1", "toy-0a1b2c3d-1-3")]
    fleet.reap()
    fleet.run_all()
    fleet.pass_time(COOL_DOWN + 10)
    assert fleet.site_condition("site-2", "Eligible") == ("True", "Ok")
    assert [row.state for row in fleet.job.status.learner_statuses].count("Running") == 4


def test_a_lost_site_without_another_place_keeps_its_learners_as_unknown() -> None:
    fleet = running_fleet(job=fleet_job(sites=1, replicas=2))
    lose(fleet, "site-1")
    fleet.pass_time(600)
    assert fleet.created == []
    assert [fleet.row(index).state for index in range(2)] == ["Unknown"] * 2
    assert fleet.condition("QuorumMet").reason == "AllSitesUnreachable"
    assert (fleet.site("site-1").desired, fleet.site("site-1").ready) == (2, 2)
    heal(fleet, "site-1")
    fleet.pass_time(20)
    assert [(fleet.row(index).state, fleet.row(index).incarnation) for index in range(2)] == [("Running", 1)] * 2


def test_an_operator_that_has_just_started_gives_no_site_up() -> None:
    fleet = running_fleet()
    lose(fleet, "site-2")
    fleet.pass_time(100)
    fleet.now += 3600  # it was away
    fleet.begun_at = fleet.now
    fleet.clusters["site-2"].last_contact = None
    fleet.pass_time(LOST - 20)
    assert fleet.created == []
    fleet.pass_time(60)
    assert len(fleet.created) == 2


def test_a_synchronizer_that_has_just_started_is_no_witness() -> None:
    fleet = running_fleet()
    lose(fleet, "site-2")
    fleet.phase = None
    fleet.pass_time(300)
    fleet.serve()
    fleet.pass_time(LOST - 20)
    assert fleet.created == []
    fleet.pass_time(60)
    assert len(fleet.created) == 2


def test_another_cluster_behind_the_same_credentials_is_not_used() -> None:
    fleet = running_fleet()
    fleet.clusters["site-2"].uid = "another"
    fleet.clusters["site-2"].pods.clear()
    planned = fleet.step()
    assert planned.actions == ()
    assert fleet.site_condition("site-2", "Reachable") == ("False", "ClusterIdentityChanged")
    assert fleet.row(1).incarnation == 1


def test_two_names_for_one_namespace_are_one_site() -> None:
    fleet = Fleet()
    fleet.clusters["site-2"].uid = "uid-of-site-1"
    fleet.settle(3)
    fleet.serve()
    fleet.settle()
    assert set(fleet.where().values()) == {"site-1"}
    assert fleet.site_condition("site-2", "Reachable") == ("False", "SameCluster")


def test_a_site_that_is_silent_but_for_its_api_is_told_and_left_alone() -> None:
    fleet = running_fleet()
    fleet.clusters["site-2"].cut = True
    fleet.pass_time(3600, every=25)
    assert (fleet.created, fleet.deleted) == ([], [])
    assert fleet.site_condition("site-2", "SynchronizerReachable") == ("False", "HeartbeatsStale")


def test_learners_that_took_their_leave_are_no_silence() -> None:
    fleet = running_fleet()
    fleet.left = {(1, 1), (3, 1)}
    fleet.step()
    assert fleet.site_condition("site-2", "SynchronizerReachable") == ("True", "Connected")


@pytest.mark.parametrize("problem", ["SecretMissing", "SecretInvalid"])
def test_bad_credentials_of_one_site_leave_the_others_alone(problem: str) -> None:
    fleet = Fleet()
    fleet.clusters["site-2"].credentials = problem
    fleet.settle(3)
    fleet.serve()
    fleet.settle()
    assert fleet.job.status.learners.summary == "4/4"
    assert set(fleet.where().values()) == {"site-1"}
    assert fleet.site_condition("site-2", "Reachable") == ("False", problem)
    assert fleet.condition("Degraded").message == f"site-2: {problem}: it does not answer"


def test_a_job_without_usable_credentials_is_not_accepted_until_there_are_some() -> None:
    fleet = Fleet(job=fleet_job(sites=1))
    fleet.clusters["site-1"].credentials = "SecretMissing"
    assert fleet.step().finalizer == "keep"
    assert fleet.condition("Accepted").reason == "CredentialsInvalid"
    assert fleet.condition("Accepted").message == "site-1: SecretMissing: it does not answer"
    fleet.clusters["site-1"].credentials = ""
    fleet.step()
    assert fleet.condition("Accepted").status == "True"


def test_a_site_taken_out_of_the_spec_is_drained() -> None:
    fleet = running_fleet()
    document = fleet.job.model_dump(mode="json", by_alias=True, exclude_none=True)
    fleet.edit({"sites": document["spec"]["sites"][:1]})
    fleet.settle(3)
    fleet.reap()
    fleet.settle(3)
    assert set(fleet.where().values()) == {"site-1"}
    assert (fleet.site("site-2").secret_name, fleet.site("site-2").namespace) == ("kube-2", "default")
    assert (fleet.site("hub").secret_name, fleet.site("hub").namespace) == ("", "")
    assert fleet.clusters["site-2"].pods == {}
    assert fleet.clusters["site-2"].objects == {}
    assert [fleet.row(index).restarts_counted for index in range(4)] == [0] * 4


def test_a_site_put_into_the_spec_takes_learners_that_wait() -> None:
    fleet = running_fleet(job=fleet_job({"sites": [{**SITE_1, "learners": {"max": 4}}]}, sites=1, replicas=4))
    fleet.clusters["site-2"] = replace(fleet.clusters["site-1"], name="site-2", uid="two", pods={}, objects={})
    fleet.edit({"sites": [{**SITE_1, "learners": {"max": 4}}, SITE_2], "learners.replicas": 6, "learners.max": 6})
    fleet.settle()
    assert [fleet.where()[index] for index in (4, 5)] == ["site-2"] * 2


SITE_1 = {"name": "site-1", "kubeconfigSecretRef": {"name": "kube-1"}}
SITE_2 = {"name": "site-2", "kubeconfigSecretRef": {"name": "kube-2"}}


# --- the Synchronizer ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        ('pods "x" is forbidden: violates PodSecurity "restricted:latest"', "PodSecurityDenied"),
        ('pods "x" is forbidden: exceeded quota: q', "QuotaExceeded"),
    ],
)
def test_why_the_synchronizer_has_no_pod_is_told(problem: str, reason: str) -> None:
    fleet = Fleet()
    fleet.settle(2)
    key = next(key for key in fleet.hub.objects if key[0] == "Deployment")
    fleet.hub.objects[key] = replace(fleet.hub.objects[key], problem=problem)
    fleet.step()
    assert fleet.condition("SynchronizerReady").reason == reason
    assert fleet.condition("SynchronizerReady").message == problem


def test_an_image_of_the_synchronizer_that_cannot_be_pulled_is_told() -> None:
    fleet = Fleet()
    fleet.settle(2)
    fleet.add_synchronizer_pod(phase="Pending", waiting="ImagePullBackOff", waiting_message="no such image")
    fleet.step()
    assert fleet.condition("SynchronizerReady").reason == "ImagePullFailed"


# --- an older CRD -------------------------------------------------------------------------------------------------


def test_with_an_older_crd_nothing_is_done_but_saying_so() -> None:
    fleet = running_fleet()
    fleet.crd_problem = "status.sites[].conditions"
    fleet.finish(fleet.learner(0), 137)
    for _ in range(5):
        assert fleet.step().actions == ()
    assert fleet.condition("Accepted").reason == "CRDOutdated"
    assert fleet.events == ["CRDOutdated"]
    fleet.crd_problem = ""
    fleet.step()
    assert fleet.condition("Accepted").status == "True"
    assert fleet.row(0).incarnation == 2


# --- deletion -----------------------------------------------------------------------------------------------------


def delete(fleet: Fleet) -> None:
    stamp = "2027-01-15T08:00:00Z"
    fleet.now = 1_800_000_000.0
    metadata = fleet.job.metadata.model_copy(update={"deletion_timestamp": stamp})
    fleet.job = fleet.job.model_copy(update={"metadata": metadata})


def test_a_deleted_job_loses_its_learners_then_its_synchronizer_then_its_finalizer() -> None:
    fleet = running_fleet()
    fleet.add_synchronizer_pod()
    delete(fleet)
    fleet.step()
    assert {site for site, _ in fleet.deleted} == {"site-1", "site-2"}
    assert ("Deployment", names.synchronizer_name("toy", fleet.job.metadata.uid)) in fleet.hub.objects
    fleet.reap()
    fleet.step()
    assert {kind for kind, _ in fleet.hub.objects} == {"PersistentVolumeClaim"}
    assert fleet.job.metadata.finalizers == [names.FINALIZER]
    fleet.hub.pods.clear()
    last = fleet.step()
    assert (last.finalizer, last.finished, last.events) == ("remove", True, ())
    assert fleet.writes == 0


def test_a_deleted_job_waits_for_a_site_that_is_away_but_not_for_ever() -> None:
    fleet = running_fleet()
    fleet.clusters["site-2"].down = "Timeout"
    delete(fleet)
    fleet.step()
    fleet.reap()
    for _ in range(59):
        fleet.hub.pods.clear()
        planned = fleet.step(seconds=10)
        assert (planned.finalizer, planned.finished) == ("keep", False)
    last = fleet.step(seconds=10)
    assert (last.finalizer, last.finished) == ("remove", True)
    assert [event.reason for event in last.events] == ["SiteLeftBehind"]
    assert last.events[0].message.startswith("site site-2 was not reached within 600 s")


def test_a_deleted_job_does_not_wait_for_a_pod_on_a_lost_node_that_no_kubelet_ends() -> None:
    fleet = running_fleet()
    fleet.change(fleet.learner(1), node_silent=True)
    delete(fleet)
    fleet.step()
    fleet.reap()
    assert fleet.step(seconds=55).finalizer == "keep", "its grace period, and a margin, are not over"
    fleet.hub.pods.clear()
    fleet.pass_time(30)
    assert fleet.job.metadata.finalizers == []
    assert {kind for kind, _ in fleet.hub.objects} == {"PersistentVolumeClaim"}


def test_a_site_that_comes_back_while_the_job_is_being_deleted_is_cleaned() -> None:
    fleet = running_fleet()
    fleet.clusters["site-2"].down = "Timeout"
    delete(fleet)
    fleet.pass_time(100)
    fleet.reap()
    fleet.clusters["site-2"].down = ""
    fleet.step()
    fleet.reap()
    fleet.pass_time(30)
    assert (fleet.clusters["site-2"].pods, fleet.clusters["site-2"].objects) == ({}, {})
    assert fleet.job.metadata.finalizers == []


def test_a_site_that_was_never_reached_is_not_waited_for() -> None:
    fleet = Fleet()
    fleet.clusters["site-2"].credentials = "SecretMissing"
    fleet.settle(3)
    fleet.serve()
    fleet.settle()
    delete(fleet)
    fleet.step()
    fleet.reap()
    fleet.pass_time(30)
    assert fleet.job.metadata.finalizers == []
    assert "SiteLeftBehind" not in fleet.events


def test_a_deleted_job_nothing_was_made_for_may_go_at_once() -> None:
    fleet = Fleet()
    delete(fleet)
    planned = fleet.step()
    assert (planned.finalizer, planned.actions, planned.finished) == ("keep", (), True)


# --- everything ---------------------------------------------------------------------------------------------------


def test_every_condition_of_a_site_keeps_to_its_reasons() -> None:
    fleet = running_fleet()
    lose(fleet, "site-2")
    fleet.pass_time(300)
    heal(fleet, "site-2")
    fleet.pass_time(300)
    for site in fleet.job.status.sites:
        for condition in site.conditions:
            allowed = SITE_CONDITION_REASONS[SiteConditionType(condition.type)][condition.status != "True"]
            assert Reason(condition.reason) in allowed

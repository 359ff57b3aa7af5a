"""Scenes from the life of a job, planned pass by pass in a world of plain values."""

from dataclasses import replace

import pytest

from builders import job
from diloco_api.progress import LearnerProgress, LearnerState, Phase
from diloco_api.timeouts import Timeouts
from diloco_operator.planning.clean_up import teardown
from diloco_operator.planning.clock import to_seconds
from diloco_operator.planning.steps import step_patience
from diloco_operator.planning.types import Apply, CreatePod, Delete, Drain, Ended, SiteView, Stop
from fakes.world import POLICY, World, running_world


def kinds(actions: object) -> list[str]:
    return [type(action).__name__ for action in actions]  # type: ignore[attr-defined]


# --- start --------------------------------------------------------------------------------------------------------


def test_no_learner_starts_before_the_synchronizer_was_heard() -> None:
    world = World()
    first = world.step()
    assert {action.key[0] for action in first.actions if isinstance(action, Apply)} == {
        "ConfigMap",
        "Secret",
        "PersistentVolumeClaim",
        "Deployment",
    }
    world.step()
    assert world.created == []
    assert world.condition("SynchronizerReady") == ("False", "Pending")
    world.serve()
    world.step()
    assert [name.rsplit("-", 2)[1:] for name in world.created] == [["0", "1"], ["1", "1"], ["2", "1"]]


def test_an_incarnation_is_in_the_status_that_is_written_before_its_pod_is_created() -> None:
    world = World()
    world.step()
    world.serve()
    planned = world.plan()
    created = [a for a in planned.actions if isinstance(a, CreatePod)]
    assert {a.name for a in created} == {row.pod_name for row in planned.status.learner_statuses}
    assert planned.status != world.job.status
    for pod in created:
        secret = next(a for a in planned.actions if isinstance(a, Apply) and a.key == ("Secret", pod.name))
        assert planned.actions.index(secret) < planned.actions.index(pod)


def test_a_crash_between_commit_and_create_creates_the_same_incarnation() -> None:
    world = World()
    world.step()
    world.serve()
    world.step(crash=True)
    assert world.created == []
    world.step()
    assert [name.rsplit("-", 1)[1] for name in world.created] == ["1", "1", "1"]
    assert world.row(0) == ("Pending", 1, 0, 0)


def test_a_committed_incarnation_the_synchronizer_knows_is_not_created_again() -> None:
    world = World()
    world.step()
    world.serve()
    world.step(crash=True)
    world.heard[0, 1] = world.now  # it ran, was admitted, and vanished before anybody looked
    world.step()
    assert sorted(name.rsplit("-", 2)[1:] for name in world.created) == [["0", "2"], ["1", "1"], ["2", "1"]]


def test_a_committed_incarnation_is_not_created_late_while_the_synchronizer_cannot_be_asked() -> None:
    world = World()
    world.step()
    world.serve()
    world.step(crash=True)
    world.phase = None
    world.step()
    assert world.created == []
    world.serve()
    world.step()
    assert len(world.created) == 3


def test_an_invalid_job_is_rejected_with_its_field_and_nothing_is_created() -> None:
    world = World(job=job({"learners.min": 5}))
    planned = world.step()
    assert planned.actions == ()
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    assert world.job.status.conditions[0].message == "spec.learners.replicas: 3: must not be below learners.min (5)"
    assert world.job.status.phase == "Rejected"
    assert world.step().status is world.job.status


def test_what_acceptance_resolved_survives_other_configuration() -> None:
    world = running_world()
    resolved = world.job.status.resolved
    world.policy = replace(POLICY, ports=replace(POLICY.ports, synchronizer=1), image="trainer:2")
    world.step()
    assert world.job.status.resolved == resolved


# --- rest ---------------------------------------------------------------------------------------------------------


def test_at_rest_there_is_no_action_and_no_write() -> None:
    world = running_world()
    for _ in range(100):
        world.heard = dict.fromkeys(world.heard, world.now)
        before = world.job.status
        planned = world.step(seconds=20)
        assert planned.actions == ()
        assert planned.status is before
        assert planned.events == ()


def test_nothing_is_done_while_the_site_cannot_be_reached_and_its_counts_stay() -> None:
    world = running_world()
    world.site_down = True
    planned = world.step()
    assert planned.actions == ()
    assert planned.status.sites[0].reason == "Timeout"
    assert planned.status.sites[0].ready == 3
    assert [world.row(index)[:2] for index in range(3)] == [("Running", 1)] * 3


def test_an_unreachable_synchronizer_is_no_reason_to_end_or_start_anything() -> None:
    world = running_world()
    world.phase = None
    for _ in range(100):
        assert world.step(seconds=60).actions == ()
    assert world.condition("SynchronizerReady") == ("False", "RestoringState")
    assert [world.row(index)[:2] for index in range(3)] == [("Running", 1)] * 3


# --- loss ---------------------------------------------------------------------------------------------------------


def test_one_killed_learner_gets_one_replacement_at_once() -> None:
    world = running_world()
    world.finish(world.learner(1), 137)
    planned = world.step()
    assert [name.rsplit("-", 2)[1:] for name in world.created] == [["1", "2"]]
    assert world.row(1) == ("Pending", 2, 1, 1)
    assert [event.reason for event in planned.events] == ["LearnerAppError", "LearnerStarted"]
    assert planned.events[0].message == "Learner 1 (incarnation 1) was lost: killed by signal 9 (SIGKILL)"
    assert world.condition("Degraded") == ("True", "LearnersMissing")
    world.settle()
    assert len(world.created) == 1
    assert world.condition("Degraded") == ("False", "AsDesired")
    assert {name.rsplit("-", 2)[1:][1] for name in world.pods if world.pods[name].index == 1} == {"2"}


def test_a_learner_is_replaced_while_the_synchronizer_is_away() -> None:
    world = running_world()
    world.phase = None
    world.finish(world.learner(1), 137)
    world.step()
    assert [name.rsplit("-", 2)[1:] for name in world.created] == [["1", "2"]]


def test_the_secret_of_a_replaced_incarnation_is_deleted_and_the_new_one_is_there_first() -> None:
    world = running_world()
    old = world.learner(1)
    world.finish(old, 137)
    planned = world.step()
    assert any(isinstance(a, Delete) and (a.kind, a.name) == ("Secret", old.name) for a in planned.actions)
    secrets = {name for kind, name in world.objects if kind == "Secret" and not name.endswith("synchronizer")}
    assert secrets == {world.learner(index).name for index in range(3)}


@pytest.mark.parametrize(
    ("how", "reason", "counted"),
    [
        ("vanished", "PodLost", 0),
        ("deleted", "Disruption", 0),
        ("evicted", "Disruption", 0),
        ("exit 1", "AppError", 1),
        ("exit 83", "Orphaned", 0),
        ("exit 0", "Left", 0),
    ],
)
def test_every_loss_is_replaced_and_counted_by_whose_fault_it_was(how: str, reason: str, counted: int) -> None:
    world = running_world()
    pod = world.learner(1)
    match how.split():
        case ["vanished"]:
            del world.pods[pod.name]
        case ["deleted"]:
            world.change(pod, deleting=True, delete_by=world.now + 30)
        case ["evicted"]:
            world.finish(pod, 143, pod_reason="Evicted")
        case ["exit", code]:
            world.finish(pod, int(code))
    planned = world.step()
    assert world.row(1) == ("Pending", 2, 1, counted)
    assert planned.events[0].reason == f"Learner{reason}"


def test_a_learner_that_fails_in_a_row_waits_longer_and_longer_and_is_parked_in_the_end() -> None:
    world = running_world(job=job({"failurePolicy.maxRestarts": 3}))
    waits, began = [], 0.0
    for _ in range(4):
        world.run_all()
        world.finish(world.learner(1), 1)
        began = world.now
        before = len(world.created)
        while len(world.created) == before and world.row(1)[0] != "Parked":
            world.step(seconds=0.5)
        waits.append(world.now - began)
    assert waits[0] == 0.5
    assert 8 <= waits[1] <= 11
    assert 16 <= waits[2] <= 21
    assert world.row(1) == ("Parked", 4, 3, 4)
    assert world.condition("Degraded") == ("True", "LearnerParked")
    assert world.condition("QuorumMet") == ("True", "EnoughLearners")
    assert world.step().actions == ()


def test_a_long_healthy_run_makes_the_next_replacement_immediate_again() -> None:
    world = running_world()
    for _ in range(2):
        world.finish(world.learner(1), 1)
        world.step()
        world.settle()
        world.settle(12)
    world.finish(world.learner(1), 1, ran=POLICY.healthy_after_seconds)
    before = len(world.created)
    world.step()
    assert len(world.created) == before + 1


def test_a_raised_restart_budget_brings_a_parked_learner_back() -> None:
    world = running_world(job=job({"failurePolicy.maxRestarts": 0}))
    world.finish(world.learner(1), 1)
    world.step()
    assert world.row(1)[0] == "Parked"
    spec = world.job.spec.model_copy(
        update={"failure_policy": job({"failurePolicy.maxRestarts": 5}).spec.failure_policy}
    )
    world.job = world.job.model_copy(update={"spec": spec})
    world.step()
    assert world.row(1)[:2] == ("Pending", 2)


def test_the_job_fails_only_when_fewer_than_min_are_left() -> None:
    world = running_world(job=job({"failurePolicy.maxRestarts": 0, "learners.min": 2}))
    world.finish(world.learner(0), 1)
    world.step()
    assert world.row(0)[0] == "Parked"
    assert not any(c.type == "Failed" for c in world.job.status.conditions)
    world.finish(world.learner(1), 1)
    world.step()
    assert world.condition("Failed") == ("True", "RestartBudgetExhausted")
    assert world.learner(2).deleting


def test_a_fatal_exit_code_of_a_learner_fails_the_job_with_its_words() -> None:
    world = running_world()
    world.finish(world.learner(1), 65, "loading\nerror: text/*.txt: no such file\n")
    planned = world.step()
    assert world.condition("Failed") == ("True", "FatalExitCode")
    assert planned.events[-1].message == "the job is Failed: Learner 1: text/*.txt: no such file"


def test_a_pod_stuck_in_deletion_takes_no_room_and_is_not_waited_for() -> None:
    world = running_world()
    world.change(world.learner(1), deleting=True, delete_by=world.now + 30)
    world.step()
    world.settle()
    assert world.row(1)[:2] == ("Running", 2)
    for _ in range(20):
        world.heard = dict.fromkeys(world.heard, world.now)
        assert world.step(seconds=20).actions == ()


def test_live_pods_that_a_lost_status_does_not_know_are_adopted_not_doubled() -> None:
    world = running_world()
    world.finish(world.learner(1), 1)
    world.settle()
    world.created.clear()
    status = world.job.status.model_copy(update={"learner_statuses": []})
    world.job = world.job.model_copy(update={"status": status})
    world.settle()
    assert world.created == []
    assert [world.row(index)[:2] for index in range(3)] == [("Running", 1), ("Running", 2), ("Running", 1)]


def test_failures_of_an_earlier_run_do_not_delay_replacements_in_this_one() -> None:
    world = running_world()
    for _ in range(3):
        world.finish(world.learner(1), 1)
        world.settle(40)
    world.pods.clear()
    world.fresh_start = True
    world.settle()
    incarnation = world.row(1)[1]
    world.finish(world.learner(1), 1)
    world.step()
    assert world.row(1)[:2] == ("Pending", incarnation + 1)


# --- silence ------------------------------------------------------------------------------------------------------


def test_a_silent_learner_is_replaced_only_after_the_synchronizer_served_for_the_stall_timeout() -> None:
    world = running_world()
    silent = (1, 1)
    for seconds in range(0, 590, 10):
        world.heard = {key: at if key == silent else world.now for key, at in world.heard.items()}
        world.step(seconds=10)
        assert world.row(1)[:2] == ("Running" if seconds < 20 else "Stalled", 1), seconds
    world.served_since = world.now - 100  # it was restarted meanwhile
    for _ in range(40):
        world.heard = {key: at if key == silent else world.now for key, at in world.heard.items()}
        world.step(seconds=10)
    assert world.row(1)[:2] == ("Stalled", 1)
    for _ in range(20):
        world.heard = {key: at if key == silent else world.now for key, at in world.heard.items()}
        world.step(seconds=10)
    assert world.row(1)[1] == 2
    assert [p.deleting for p in world.pods.values() if (p.index, p.incarnation) == silent] == [True]


def test_a_learner_that_has_said_goodbye_is_not_called_silent_while_its_pod_ends() -> None:
    world = running_world()
    world.gone.add((1, 1))
    world.step()
    assert world.row(1)[:2] == ("Running", 1)


def test_a_site_that_is_silent_as_a_whole_is_no_reason_to_delete() -> None:
    world = running_world(policy=replace(POLICY, loopback=False))
    for _ in range(30):
        assert world.step(seconds=60).actions == ()
    assert [world.row(index)[:2] for index in range(3)] == [("Stalled", 1)] * 3


def test_a_learner_that_never_joins_is_replaced_after_the_stall_timeout() -> None:
    world = running_world()
    world.finish(world.learner(1), 1)
    world.step()
    world.change(world.learner(1), phase="Running", age_seconds=601.0)
    world.served_since = world.now - 700
    world.step()
    assert world.row(1) == ("BackOff", 2, 1, 2)
    assert world.learner(1).deleting


def test_a_learner_that_beats_but_takes_no_step_for_the_stall_timeout_is_replaced() -> None:
    world = running_world()
    world.frozen[1, 1] = 7
    for _ in range(59):
        world.heard = dict.fromkeys(world.heard, world.now)
        before = world.job.status
        assert world.step(seconds=10).status is before
    for _ in range(3):
        world.heard = dict.fromkeys(world.heard, world.now)
        planned = world.step(seconds=10)
        if planned.events:
            break
    assert planned.events[0].message == (
        "Learner 1 (incarnation 1) was lost: heard, but without a step for longer than 600 s"
    )
    assert [world.row(index)[1] for index in range(3)] == [1, 2, 1]
    assert [p.deleting for p in world.pods.values() if (p.index, p.incarnation) == (1, 1)] == [True]


@pytest.mark.parametrize("state", [LearnerState.INIT, LearnerState.RESTORE, LearnerState.DRAIN])
def test_a_learner_that_need_not_step_is_not_called_stalled(state: LearnerState) -> None:
    world = running_world()
    world.frozen, world.state = {(index, 1): 7 for index in range(3)}, state
    for _ in range(100):
        world.heard = dict.fromkeys(world.heard, world.now)
        assert world.step(seconds=20).actions == ()


def test_time_in_which_the_synchronizer_was_not_heard_is_not_held_against_a_learner() -> None:
    world = running_world()
    world.frozen[1, 1] = 7
    for turn in range(100):
        world.phase = None if turn % 20 == 19 else Phase.RUNNING
        world.heard = dict.fromkeys(world.heard, world.now)
        assert world.step(seconds=20).actions == ()


def test_a_slow_learner_has_twenty_of_its_own_steps_before_it_is_called_stalled() -> None:
    def learner(seconds: float | None) -> LearnerProgress:
        return LearnerProgress(
            index=0, incarnation=1, site="local", live=True, heartbeat_age_seconds=0, state=LearnerState.TRAINING,
            step=1, token_clock=1, step_seconds=seconds,
        )  # fmt: skip

    slow, fast, new = learner(100.0), learner(50.0), learner(None)
    progress = World(phase=Phase.RUNNING).observe().progress
    assert progress is not None
    progress = progress.model_copy(update={"learners": [slow, fast, fast, new]})
    assert [step_patience(each, progress, 600) for each in (slow, fast, new)] == [2000, 1000, 1000]


@pytest.mark.parametrize("how", ["vanished", "deleted", "stalled"])
def test_a_long_healthy_run_resets_the_back_off_however_it_ended(how: str) -> None:
    world = running_world()
    for _ in range(3):
        world.finish(world.learner(1), 1)
        world.settle(60)
    failures = [row.failures for row in world.job.status.learner_statuses]
    assert failures[1] == 3
    for _ in range(40):
        world.heard = dict.fromkeys(world.heard, world.now)
        world.step(seconds=20)
    pod = world.change(world.learner(1), age_seconds=800.0)
    if how == "stalled":
        world.frozen[1, pod.incarnation] = 7
        for _ in range(32):
            world.heard = dict.fromkeys(world.heard, world.now)
            world.step(seconds=20)
            if world.row(1)[0] == "Running":
                world.change(world.learner(1), age_seconds=world.learner(1).age_seconds + 20)
    else:
        take_away(world, how)
    before = len(world.created)
    world.step()
    assert len(world.created) == before + (0 if how == "stalled" else 1)
    assert world.row(1)[1] == pod.incarnation + 1
    assert failures_of(world, 1) == (1 if how == "stalled" else 0)


def failures_of(world: World, index: int) -> int:
    return next(row.failures for row in world.job.status.learner_statuses if row.index == index)


@pytest.mark.parametrize("how", ["vanished", "deleted", "preempted"])
def test_a_learner_at_work_that_is_taken_away_again_and_again_is_replaced_at_once(how: str) -> None:
    world = running_world()
    for _ in range(4):
        take_away(world, how)
        before = len(world.created)
        world.step()
        assert len(world.created) == before + 1
        assert failures_of(world, 1) == 0
        world.settle(60)
        assert world.row(1)[0] == "Running"


@pytest.mark.parametrize("how", ["deleted", "preempted", "out of memory"])
def test_one_that_is_taken_away_before_it_was_at_work_waits_for_the_next(how: str) -> None:
    """And one that a node had no room for: it would be given the same pod at once."""
    world = running_world()
    if how != "out of memory":
        world.finish(world.learner(1), 1)
        world.step()
    take_away(world, how)
    world.step()
    if how == "out of memory":
        world.settle(60)
        take_away(world, how)
        world.step()
    assert failures_of(world, 1) == 2
    assert world.row(1)[0] == "BackOff"


def take_away(world: World, how: str) -> None:
    pod = world.learner(1)
    match how:
        case "vanished":
            del world.pods[pod.name]
        case "deleted":
            world.change(pod, deleting=True, delete_by=world.now + 30)
        case "preempted":
            world.finish(pod, 137)
            world.change(pod, pod_reason="DisruptionTarget", disruption="PreemptionByScheduler")
        case _:
            world.finish(pod, 137)
            world.change(pod, pod_reason="DisruptionTarget", disruption="TerminationByKubelet")


# --- ends ---------------------------------------------------------------------------------------------------------


def test_complete_is_written_when_learners_have_left_and_the_synchronizer_goes_last() -> None:
    world = running_world()
    world.add_synchronizer_pod()
    world.serve(Phase.COMPLETE)
    first = world.step()
    assert kinds(first.actions) == []
    assert world.condition("Progressing") == ("False", "Finished")
    for index in range(3):
        world.finish(world.learner(index), 0)
    second = world.step()
    assert world.condition("Complete") == ("True", "TokenBudgetReached")
    assert [a.kind for a in second.actions if isinstance(a, Delete)] == ["Pod"] * 3
    world.phase = None
    third = world.step()
    assert tuple(sorted({a.kind for a in third.actions} - {"ConfigMap"})) == ("Deployment", "Secret")
    assert not third.finished
    del world.pods["sync-1"]
    last = world.step()
    assert last.finished
    assert last.requeue_after is None
    assert {kind for kind, _ in world.objects} == {"PersistentVolumeClaim"}
    assert [world.row(index)[0] for index in range(3)] == ["Succeeded"] * 3


def test_learners_that_do_not_leave_a_complete_job_are_deleted_after_three_heartbeats() -> None:
    world = running_world(policy=replace(POLICY, timeouts=Timeouts(heartbeat_seconds=5.0)))
    world.serve(Phase.COMPLETE)
    world.step()
    assert world.step(seconds=14).actions == ()
    assert kinds(world.step(seconds=2).actions) == ["Delete"] * 3
    world.reap()
    world.step()
    assert world.condition("Complete") == ("True", "TokenBudgetReached")


def test_a_learner_that_ended_well_in_the_closing_round_is_never_created_again() -> None:
    world = running_world()
    world.serve(Phase.CLOSING)
    world.finish(world.learner(1), 0)
    for _ in range(5):
        world.step(seconds=100)
        world.heard = dict.fromkeys(world.heard, world.now)
    assert world.row(1) == ("Succeeded", 1, 0, 0)
    assert world.created == []


def test_a_good_end_is_not_judged_until_the_synchronizer_can_be_asked() -> None:
    world = running_world()
    world.phase = None
    world.finish(world.learner(1), 0)
    assert world.step().actions == ()
    assert world.row(1) == ("Running", 1, 0, 0)


@pytest.mark.parametrize("final", ["Complete", "Failed"])
def test_an_ended_job_is_never_written_again_and_nothing_comes_back(final: str) -> None:
    world = running_world()
    if final == "Complete":
        world.serve(Phase.COMPLETE)
    else:
        world.finish(world.learner(0), 64)
    for _ in range(30):
        world.step()
        world.reap()
    assert world.condition(final)[0] == "True"
    status, created = world.job.status, list(world.created)
    world.serve(Phase.RUNNING)
    world.fresh_start = True
    for _ in range(3):
        assert world.step().status is status
    assert world.created == created


def test_a_drained_run_ends_stopped_and_the_next_one_resumes_with_new_incarnations() -> None:
    world = running_world()
    world.stop = Stop.DRAIN
    assert world.step().actions == (Drain(),)
    world.serve(Phase.DRAINING)
    assert world.step().actions == ()
    world.serve(Phase.STOPPED)
    world.finish(world.learner(0), 0)
    world.finish(world.learner(1), 0)
    world.step()
    world.finish(world.learner(2), 0)
    for _ in range(5):
        planned = world.step()
        world.phase = None
    assert planned.finished
    assert world.job.status.phase == "Stopped"
    assert [world.row(index) for index in range(3)] == [("Stopped", 1, 0, 0)] * 3
    assert {kind for kind, _ in world.objects} == {"PersistentVolumeClaim"}

    world.stop, world.fresh_start = Stop.NO, True
    world.step()
    assert world.job.status.execution_attempt == 2
    assert world.created == []
    world.serve()
    world.settle()
    assert [world.row(index) for index in range(3)] == [("Running", 2, 1, 0)] * 3
    assert world.job.status.phase == "Running"


def test_a_drain_nobody_answers_ends_after_the_grace_period_and_says_so() -> None:
    world = running_world()
    world.add_synchronizer_pod(waiting="CrashLoopBackOff")
    world.phase = None
    world.step(seconds=100)
    world.stop = Stop.DRAIN
    for _ in range(29):
        assert kinds(world.step().actions) == []
    world.step()
    planned = world.step()
    assert kinds(planned.actions) == ["Delete"] * 3
    assert [event.reason for event in planned.events] == ["DrainUnanswered"]
    for _ in range(5):
        world.reap()
        planned = world.step()
        assert planned.events == ()
        world.pods.pop("sync-1", None)
    assert planned.finished
    assert world.condition("Progressing") == ("False", "Stopped")
    told = next(c for c in world.job.status.conditions if c.type == "Progressing")
    assert told.message == "the Synchronizer has not answered for 30 s: what was not merged by then is lost"


def test_a_drain_is_asked_again_of_a_synchronizer_that_was_restarted_and_has_its_time() -> None:
    world = running_world()
    world.stop = Stop.DRAIN
    world.step()
    world.serve(Phase.DRAINING)
    world.step()
    world.phase = None
    for _ in range(20):
        assert world.step().actions == ()
    world.serve(Phase.RUNNING)
    assert world.step().actions == (Drain(),)
    world.serve(Phase.DRAINING)
    assert world.step(seconds=100).actions == ()
    world.phase = None
    assert world.step(seconds=20).actions == ()


def test_the_synchronizer_stays_until_no_site_that_can_be_reached_has_a_learner() -> None:
    world = running_world()
    here = replace(world.observe().sites[0], pods=())
    there = SiteView("other", pods=tuple(world.pods.values()))
    first = teardown([here, there], spare_learners=False)
    assert {(a.site, a.kind) for a in first if isinstance(a, Delete)} == {("other", "Pod")}
    last = teardown([here, SiteView("other", unreachable="Timeout")], spare_learners=False)
    assert {a.kind for a in last if isinstance(a, Delete)} == {"ConfigMap", "Secret", "Deployment"}


def test_a_job_is_never_called_starting_while_it_finishes() -> None:
    world = running_world()
    world.serve(Phase.CLOSING)
    world.gone |= set(world.heard)
    assert world.step().live.phase == "Running"
    world.serve(Phase.COMPLETE)
    assert world.step().live.phase == "Running"
    for index in range(3):
        world.finish(world.learner(index), 0)
    assert world.step().live.phase == "Complete"


def test_a_stop_before_the_synchronizer_was_ever_heard_is_immediate() -> None:
    world = World()
    world.step()
    world.stop = Stop.DRAIN
    world.step()
    assert world.step().finished
    assert world.job.status.phase == "Stopped"


def test_no_learner_is_replaced_while_the_run_is_being_stopped() -> None:
    world = running_world()
    world.stop = Stop.DRAIN
    world.step()
    world.finish(world.learner(1), 137)
    world.serve(Phase.DRAINING)
    world.step(seconds=100)
    assert world.created == []


def test_a_start_after_a_crash_of_everything_takes_new_incarnations_uncounted() -> None:
    world = running_world()
    world.pods.clear()
    world.objects = {key: value for key, value in world.objects.items() if key[0] == "PersistentVolumeClaim"}
    world.phase, world.fresh_start = None, True
    world.step()
    assert world.created == []
    assert world.condition("SynchronizerReady") == ("False", "Pending")
    world.serve()
    world.step()
    assert [world.row(index) for index in range(3)] == [("Pending", 2, 1, 0)] * 3
    assert world.job.status.execution_attempt == 2


# --- the Synchronizer ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "reason"), [(64, "FatalExitCode"), (65, "FatalExitCode"), (66, "FatalExitCode"), (68, "StateLost")]
)
def test_a_users_mistake_of_the_synchronizer_fails_the_job_with_its_words(code: int, reason: str) -> None:
    world = World()
    world.step()
    world.add_synchronizer_pod(
        waiting="CrashLoopBackOff", last_ended=Ended(code, message="error: it is wrong"), restarts=1
    )
    planned = world.step()
    assert world.condition("Failed") == ("True", reason)
    assert planned.events[-1].message == "the job is Failed: Synchronizer: it is wrong"
    assert world.created == []


def test_a_port_that_is_taken_for_a_moment_after_a_crash_does_not_fail_the_job() -> None:
    world = running_world()
    world.phase = None
    world.add_synchronizer_pod(waiting="CrashLoopBackOff", last_ended=Ended(66, message="error: in use"), restarts=1)
    world.step()
    assert world.condition("SynchronizerReady") == ("False", "RestoringState")
    world.step(seconds=61)
    assert world.condition("SynchronizerReady") == ("False", "CrashLoop")
    world.step()
    assert world.condition("Failed") == ("True", "FatalExitCode")


def test_a_synchronizer_that_crashes_before_it_ever_served_fails_the_job_in_the_end() -> None:
    world = World()
    world.step()
    pod = world.add_synchronizer_pod(waiting="CrashLoopBackOff", last_ended=Ended(1, message="boom"), restarts=10)
    world.step()
    assert world.condition("SynchronizerReady") == ("False", "CrashLoop")
    world.change(pod, restarts=11)
    world.step()
    assert world.condition("Failed") == ("True", "RestartBudgetExhausted")


# --- scale --------------------------------------------------------------------------------------------------------


def scaled(world: World, replicas: int) -> None:
    learners = world.job.spec.learners.model_copy(update={"replicas": replicas})
    spec = world.job.spec.model_copy(update={"learners": learners})
    world.job = world.job.model_copy(update={"spec": spec})


def test_scaling_down_removes_the_highest_index_uncounted_and_up_again_takes_a_new_incarnation() -> None:
    world = running_world()
    scaled(world, 2)
    world.step()
    assert world.row(2) == ("Stopped", 1, 0, 0)
    assert world.learner(2).deleting
    world.reap()
    world.step()
    assert world.job.status.learners.summary == "2/2"
    scaled(world, 4)
    world.settle()
    assert [world.row(index)[:2] for index in range(4)] == [
        ("Running", 1),
        ("Running", 1),
        ("Running", 2),
        ("Running", 1),
    ]


def test_scaling_down_gives_up_a_learner_that_does_not_run_before_one_that_does() -> None:
    world = running_world()
    world.finish(world.learner(0), 1)
    world.step()
    scaled(world, 2)
    world.step()
    assert [world.row(index)[0] for index in range(3)] == ["Stopped", "Running", "Running"]


def test_a_run_config_change_is_applied_without_touching_any_pod() -> None:
    world = running_world()
    world.policy = replace(POLICY, timeouts=Timeouts(heartbeat_seconds=1.0))
    planned = world.step()
    assert [action.key for action in planned.actions if isinstance(action, Apply)] == [
        ("ConfigMap", "toy-0a1b2c3d-config")
    ]
    assert kinds(planned.actions) == ["Apply"]


def test_a_synchronous_job_never_has_more_learners_than_it_was_accepted_with() -> None:
    world = running_world(job=job(preset="DiLoCo"))
    scaled(world, 5)
    for _ in range(5):
        world.step()
        world.run_all()
    assert [(row.index, row.state) for row in world.job.status.learner_statuses] == [
        (0, "Running"), (1, "Running"), (2, "Running"),
    ]  # fmt: skip
    assert world.job.status.learners.summary == "3/3"
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    assert world.job.status.conditions[0].message == (
        "spec.learners.replicas: 5: must not exceed learners.replicas at acceptance: "
        "DiLoCo and StreamingDiLoCo divide the work by it (3)"
    )
    scaled(world, 2)
    world.step()
    assert world.row(2)[0] == "Stopped"
    scaled(world, 3)
    world.reap()
    world.settle()
    assert world.row(2)[:2] == ("Running", 2)
    assert world.condition("Accepted") == ("True", "Valid")


# --- goodput ------------------------------------------------------------------------------------------------------


def window(world: World) -> float:
    return float(world.job.status.goodput.window_seconds)


@pytest.mark.parametrize("how", ["Complete", "Failed", "Stopped"])
def test_the_seconds_before_an_end_are_counted_and_none_after_it(how: str) -> None:
    world = running_world()
    for _ in range(3):
        world.heard = dict.fromkeys(world.heard, world.now)
        world.step(seconds=20)
    began = to_seconds(world.job.status.start_time or "")
    match how:
        case "Complete":
            world.serve(Phase.COMPLETE)
        case "Failed":
            world.finish(world.learner(0), 64)
        case "Stopped":
            world.stop = Stop.NOW
    world.heard = dict.fromkeys(world.heard, world.now)
    world.step(seconds=7)
    assert window(world) == world.now - began
    assert float(world.job.status.goodput.wanted_seconds) == 3 * window(world)
    before = window(world)
    for _ in range(10):
        world.reap()
        world.step(seconds=5)
    assert window(world) == before


def test_time_between_two_runs_is_not_counted() -> None:
    world = running_world()
    world.step(seconds=10)
    world.stop = Stop.NOW
    world.step(seconds=1)
    before = window(world)
    world.reap()
    world.step()
    world.pods.clear()
    world.stop, world.fresh_start, world.phase = Stop.NO, True, None
    world.step(seconds=1000)
    assert window(world) == before
    world.serve()
    world.step(seconds=3)
    assert window(world) == before + 3

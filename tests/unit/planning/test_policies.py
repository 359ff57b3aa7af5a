"""Small policies: back-off, placement, conditions, what is worth a write."""

import pytest

from diloco_api.states import ConditionType, Reason
from diloco_api.status import JobStatus, LearnerStatus, ProgressStatus
from diloco_operator.planning.backoff import JITTER, backoff_seconds, failures_in_a_row
from diloco_operator.planning.clock import to_seconds, to_text
from diloco_operator.planning.conditions import degraded, find, with_condition
from diloco_operator.planning.place import Room, choose, wanted_indices
from diloco_operator.planning.status import summary_phase, worth_writing
from diloco_operator.planning.types import OperatorPolicy

POLICY = OperatorPolicy(image="x")
NOW = 1_800_000_000.0


def row(index: int, state: str = "Running", **fields: object) -> LearnerStatus:
    return LearnerStatus.model_validate(
        {"index": index, "site": "local", "incarnation": 1, "pod_name": f"p-{index}", "state": state, **fields}
    )


# --- back-off -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failures", "full"), [(1, 0), (2, 10), (3, 20), (4, 40), (5, 80), (7, 320), (8, 360), (50, 360)]
)
def test_waits_double_up_to_the_cap_less_the_jitter(failures: int, full: float) -> None:
    waits = {backoff_seconds(failures, f"uid/{index}/1", POLICY) for index in range(100)}
    assert all(full * (1 - JITTER) <= wait <= full for wait in waits)
    assert len(waits) == (1 if full == 0 else 100)


def test_a_wait_is_the_same_whenever_it_is_asked_for() -> None:
    assert backoff_seconds(5, "uid/0/3", POLICY) == backoff_seconds(5, "uid/0/3", POLICY)


def test_a_healthy_run_begins_the_count_anew() -> None:
    assert failures_in_a_row(7, POLICY.healthy_after_seconds - 1, POLICY) == 8
    assert failures_in_a_row(7, POLICY.healthy_after_seconds, POLICY) == 1


# --- placement ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("states", "replicas", "highest_first", "wanted"),
    [
        ({}, 3, False, {0, 1, 2}),
        ({0: "Running", 2: "Running"}, 3, False, {0, 1, 2}),
        ({0: "Running", 1: "Running", 2: "Running"}, 2, False, {0, 1}),
        ({0: "Pending", 1: "Running", 2: "Running"}, 2, False, {1, 2}),
        ({0: "BackOff", 1: "Running", 2: "Pending"}, 1, False, {1}),
        ({0: "Pending", 1: "Running", 2: "Running"}, 2, True, {0, 1}),
        ({0: "Stopped", 1: "Running"}, 2, False, {0, 1}),
        ({0: "Parked", 1: "Running"}, 2, False, {0, 1}),
    ],
)
def test_which_indices_a_job_shall_have(
    states: dict[int, str], replicas: int, highest_first: bool, wanted: set[int]
) -> None:
    rows = [row(index, state) for index, state in states.items()]
    assert wanted_indices(rows, replicas, highest_first) == wanted


ROOMS = [Room("a", 0), Room("b", 1), Room("c", 2)]


@pytest.mark.parametrize(
    ("rooms", "load", "stay", "chosen"),
    [
        (ROOMS, {}, None, "a"),
        (ROOMS, {"a": 1}, None, "b"),
        (ROOMS, {"a": 1, "b": 1}, None, "c"),
        (ROOMS, {"b": 5}, "b", "b"),
        (ROOMS[:1] + ROOMS[2:], {"a": 9}, "b", "c"),
        ([], {}, "b", None),
        ([Room("a", 0, most=2), Room("b", 1)], {"a": 2, "b": 9}, "a", "b"),
        ([Room("a", 0, most=2)], {"a": 2}, None, None),
        ([Room("a", 0), Room("b", 1, least=2)], {"b": 1}, None, "b"),
        ([Room("a", 0), Room("b", 1, least=2)], {"b": 2}, None, "a"),
        ([Room("b", 1, least=1), Room("a", 0, least=1)], {}, None, "a"),
        ([Room("a", 0, weight=3), Room("b", 1)], {"a": 1}, None, "a"),
        ([Room("a", 0, weight=0), Room("b", 1)], {"b": 50}, None, "b"),
        ([Room("a", 0, weight=0)], {}, None, "a"),
    ],
)
def test_where_an_incarnation_goes(
    rooms: list[Room], load: dict[str, int], stay: str | None, chosen: str | None
) -> None:
    found = choose(rooms, {(site, ""): count for site, count in load.items()}, stay)
    assert found == (None if chosen is None else (chosen, ""))


@pytest.mark.parametrize(
    ("full", "probing", "load", "leave", "chosen"),
    [
        ((), False, {}, None, "p"),
        ((), False, {"p": 1}, None, "q"),
        (("p",), False, {"q": 9}, None, "q"),
        (("p", "q"), False, {}, None, None),
        (("p", "q"), True, {"p": 1}, None, "q"),
        ((), False, {"q": 5}, ("a", "p"), "q"),
        (("q",), False, {}, ("a", "p"), None),
    ],
)
def test_in_which_node_pool_it_goes(
    full: tuple[str, ...], probing: bool, load: dict[str, int], leave: tuple[str, str] | None, chosen: str | None
) -> None:
    room = Room("a", pools=("p", "q"), full=frozenset(full), probing=probing)
    found = choose([room], {("a", pool): count for pool, count in load.items()}, leave=leave)
    assert found == (None if chosen is None else ("a", chosen))


# --- conditions ---------------------------------------------------------------------------------------------------


def test_the_time_of_a_condition_changes_only_when_its_status_flips() -> None:
    kind, generation = ConditionType.PROGRESSING, 2
    first = with_condition([], kind, False, Reason.WAITING_FOR_QUORUM, now=NOW, generation=1)
    same = with_condition(first, kind, False, Reason.NO_OUTER_STEP_SINCE, now=NOW + 50, generation=generation)
    flipped = with_condition(same, kind, True, Reason.OUTER_STEP_ADVANCING, now=NOW + 60, generation=generation)
    times = [found.last_transition_time for (found,) in (first, same, flipped)]
    assert times == [to_text(NOW), to_text(NOW), to_text(NOW + 60)]
    assert flipped[0].observed_generation == generation


def test_a_reason_that_does_not_belong_to_a_condition_is_refused() -> None:
    with pytest.raises(ValueError, match="no reason for Complete"):
        with_condition([], ConditionType.COMPLETE, True, Reason.READY, now=NOW, generation=1)


def test_conditions_stand_in_one_order_whatever_is_set_first() -> None:
    found = with_condition([], ConditionType.FAILED, True, Reason.STATE_LOST, now=NOW, generation=1)
    found = with_condition(found, ConditionType.ACCEPTED, True, Reason.VALID, now=NOW, generation=1)
    assert [condition.type for condition in found] == ["Accepted", "Failed"]
    assert find(found, ConditionType.DEGRADED) is None


@pytest.mark.parametrize(
    ("states", "on_their_way", "reason"),
    [
        (["Running", "Running"], set(), Reason.AS_DESIRED),
        (["Pending", "Starting"], {0, 1}, Reason.AS_DESIRED),
        (["Pending", "Starting"], {0}, Reason.LEARNERS_MISSING),
        (["Running", "Starting"], {1}, Reason.AS_DESIRED),
        (["Running", "BackOff"], set(), Reason.LEARNERS_MISSING),
        (["BackOff", "Parked"], set(), Reason.LEARNER_PARKED),
        (["Running", "Succeeded"], set(), Reason.AS_DESIRED),
    ],
)
def test_degraded(states: list[str], on_their_way: set[int], reason: Reason) -> None:
    rows = [row(index, state) for index, state in enumerate(states)]
    assert degraded(rows, frozenset(on_their_way))[1] is reason


def test_the_summary_of_a_job_without_conditions_is_rejected_only_if_it_was() -> None:
    assert summary_phase([], starting=False) == "Rejected"
    accepted = with_condition([], ConditionType.ACCEPTED, True, Reason.VALID, now=NOW, generation=1)
    assert summary_phase(accepted, starting=False) == "Starting"


def test_a_job_whose_first_learners_are_at_work_is_starting_until_all_are() -> None:
    found = with_condition([], ConditionType.ACCEPTED, True, Reason.VALID, now=NOW, generation=1)
    found = with_condition(found, ConditionType.QUORUM_MET, True, Reason.ENOUGH_LEARNERS, now=NOW, generation=1)
    assert summary_phase(found, starting=True) == "Starting"
    assert summary_phase(found, starting=False) == "Running"
    found = with_condition(found, ConditionType.DEGRADED, True, Reason.LEARNERS_MISSING, now=NOW, generation=1)
    assert summary_phase(found, starting=True) == "Degraded", "what is wrong comes first"


# --- writes -------------------------------------------------------------------------------------------------------


def status(tokens: int, at: float, **fields: object) -> JobStatus:
    progress = ProgressStatus(percent=1, tokens=tokens, outer_steps=1, outer_rounds=1, last_updated_time=to_text(at))
    return JobStatus.model_validate({"progress": progress.model_dump(), **fields})


@pytest.mark.parametrize(
    ("new", "written"),
    [
        (status(1, NOW + 40), False),
        (status(2, NOW + 10), False),
        (status(2, NOW + 30), True),
        (status(1, NOW + 1, phase="Degraded"), True),
        (status(1, NOW + 10, goodput={"capacity": "0.5"}), False),
    ],
    ids=["nothing-new", "too-soon", "half-a-minute", "transition", "goodput-alone"],
)
def test_what_is_worth_a_write(new: JobStatus, written: bool) -> None:
    old = status(1, NOW)
    assert new.progress is not None
    now = to_seconds(new.progress.last_updated_time)
    assert worth_writing(old, new, now, 30.0) is (new if written else old)

"""Small policies: back-off, placement, conditions, what is worth a write, goodput."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diloco_api.progress import LearnerProgress, LearnerState, Phase, Progress, TokenTotals
from diloco_api.states import ConditionType, Reason
from diloco_api.status import GoodputStatus, JobStatus, LearnerStatus, ProgressStatus
from diloco_operator.planning.backoff import JITTER, backoff_seconds, failures_in_a_row
from diloco_operator.planning.clock import to_seconds, to_text
from diloco_operator.planning.conditions import degraded, find, with_condition
from diloco_operator.planning.goodput import goodput_status, ideal_rate, shares
from diloco_operator.planning.place import Room, choose, wanted_indices
from diloco_operator.planning.status import summary_phase, worth_writing
from diloco_operator.planning.types import OperatorPolicy

POLICY = OperatorPolicy(image="x")
NOW = 1_800_000_000.0
STEP_TOKENS = 10


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


# --- goodput ------------------------------------------------------------------------------------------------------


def progress(learners: list[tuple[float, float]], merged: float = 0.0, uptime: float = 0.0) -> Progress:
    """learners: (seconds training, seconds of an inner step of 10 tokens)."""
    rows = [
        LearnerProgress(
            index=index,
            incarnation=1,
            site="local",
            live=True,
            heartbeat_age_seconds=0.0,
            step=int(training / step),
            token_clock=STEP_TOKENS * int(training / step),
            state=LearnerState.TRAINING,
            step_seconds=step,
            state_seconds={LearnerState.TRAINING: training},
        )
        for index, (training, step) in enumerate(learners)
    ]
    return Progress(
        job_uid="u", epoch=0, phase=Phase.RUNNING, served_seconds=1, uptime_seconds=uptime, budget_tokens=1, percent=0,
        outer_steps=1, outer_rounds=1, tokens=TokenTotals(merged=merged), learners=rows,
    )  # fmt: skip


def test_one_of_four_learners_lost_for_a_quarter_of_the_time_costs_a_sixteenth() -> None:
    found = shares(progress([(100, 1), (100, 1), (100, 1), (75, 1)]), STEP_TOKENS, window=100, wanted=400)
    assert found.capacity == 0.9375


def test_accepted_work_is_measured_against_undisturbed_learners() -> None:
    found = shares(progress([(100, 1), (100, 1)], merged=1500, uptime=90), STEP_TOKENS, window=100, wanted=200)
    assert (found.accepted, found.uptime) == (0.75, 0.9)


def test_a_rate_is_of_one_moment_not_of_a_newer_token_clock_and_older_seconds() -> None:
    rows = progress([(100, 1), (100, 1)], merged=1500)
    for learner in rows.learners:
        learner.token_clock += 5000  # of a contribution newer than the heartbeat
    assert shares(rows, STEP_TOKENS, window=100, wanted=200).accepted == 0.75


def test_a_learner_that_has_hardly_trained_says_nothing_about_the_rate() -> None:
    rows = progress([(100, 1), (100, 1), (1, 0.01)], merged=1500)
    found = shares(rows, STEP_TOKENS, window=100, wanted=201)
    assert found.accepted == pytest.approx(1500 / (3000 / 201 * 201))
    rows = progress([(100, 1), (100, 1), (0.1, 0.01)], merged=1000)
    assert shares(rows, STEP_TOKENS, window=100, wanted=200.1).accepted == pytest.approx(1000 / 2100)


def test_what_learners_have_trained_was_wanted_although_a_killed_operator_has_not_counted_it() -> None:
    found = shares(progress([(100, 1), (100, 1)], merged=2000), STEP_TOKENS, window=70, wanted=140)
    assert (found.capacity, found.accepted) == (1.0, 1.0)


learners = st.lists(st.tuples(st.floats(0.01, 1e5), st.floats(1e-3, 1e3)), min_size=1, max_size=12)


@given(learners, st.floats(0, 1.2), st.floats(0.1, 10))
def test_accepted_is_at_most_capacity_and_that_at_most_one(
    rows: list[tuple[float, float]], merged: float, wanted: float
) -> None:
    training = sum(seconds for seconds, _ in rows)
    tokens = progress(rows, merged=merged * sum(STEP_TOKENS * int(seconds / step) for seconds, step in rows))
    found = shares(tokens, STEP_TOKENS, window=1.0, wanted=wanted * training)
    assert found.capacity is not None
    assert 0 <= (found.accepted or 0.0) <= found.capacity + 1e-9
    assert found.capacity <= 1 + 1e-9


def test_the_ideal_rate_leaves_out_a_straggler() -> None:
    assert ideal_rate([10.0, 10.1, 9.9, 2.0]) == pytest.approx(10.0)
    assert ideal_rate([10.0, 10.1, 9.9, 30.0]) == pytest.approx(15.0)
    assert ideal_rate([]) is None


def test_time_is_counted_in_the_status_and_no_second_twice_however_often_it_is_looked_at() -> None:
    counted = GoodputStatus(accounted_time=to_text(NOW))
    for step in range(1, 101):
        counted = goodput_status(counted, None, STEP_TOKENS, 4, NOW + step * 0.37, running=True)
    assert float(counted.window_seconds) == 37
    assert float(counted.wanted_seconds) == 148


def test_time_in_which_the_job_did_not_run_is_not_wanted() -> None:
    before = GoodputStatus(window_seconds="10", wanted_seconds="30", accounted_time=to_text(NOW))
    after = goodput_status(before, None, STEP_TOKENS, 3, NOW + 1000, running=False)
    assert (float(after.window_seconds), float(after.wanted_seconds)) == (10, 30)
    assert after.accounted_time == to_text(NOW + 1000)


def test_the_shares_stay_while_the_synchronizer_is_away() -> None:
    before = GoodputStatus(capacity="0.9000", window_seconds="10", wanted_seconds="30", accounted_time=to_text(NOW))
    assert goodput_status(before, None, STEP_TOKENS, 3, NOW + 5, running=True).capacity == "0.9000"


def test_what_a_killed_operator_has_not_written_is_made_up_for_by_what_the_synchronizer_has_served() -> None:
    before = GoodputStatus(window_seconds="70", wanted_seconds="210", accounted_time=to_text(NOW))
    heard = progress([(90, 1)], uptime=80).model_copy(update={"total_served_seconds": 95.0})
    after = goodput_status(before, heard, STEP_TOKENS, 3, NOW + 1000, running=False)
    assert (float(after.window_seconds), float(after.wanted_seconds)) == (95, 285)
    again = goodput_status(after, heard, STEP_TOKENS, 3, NOW + 1002, running=True)
    assert float(again.window_seconds) == 97

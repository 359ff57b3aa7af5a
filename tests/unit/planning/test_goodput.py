"""The totals of a job and the shares that are taken of them."""

import pytest

from diloco_api.progress import LearnerProgress, LearnerState, Phase, Progress, TokenTotals
from diloco_api.status import GoodputStatus, LearnerStatus
from diloco_operator.planning.clock import to_text
from diloco_operator.planning.goodput import Period, goodput_status, ideal_rate
from diloco_operator.planning.weights import CPU, Weight

NOW = 1_800_000_000.0
STEP_TOKENS = 10
ROW = {"incarnation": 1, "site": "local", "pod_name": "p", "state": "Running"}


def period(now: float, replicas: int = 2, **fields: object) -> Period:
    rows = {index: LearnerStatus.model_validate({"index": index, **ROW}) for index in range(replicas)}
    base = {"running": True, "excluded": False, "before": rows, "after": rows, "wanted": frozenset(rows)}
    weights = dict.fromkeys(rows, Weight(1, CPU))
    return Period(now=now, weights=weights, heartbeat_seconds=5.0, **{**base, **fields})  # type: ignore[arg-type]


def progress(learners: list[tuple[float, float]], **fields: object) -> Progress:
    """learners: (seconds training, seconds of an inner step)."""
    rows = [
        LearnerProgress(
            index=index, incarnation=1, site="local", live=True, heartbeat_age_seconds=0.0, step=int(training / step),
            token_clock=STEP_TOKENS * int(training / step), state=LearnerState.TRAINING, step_seconds=step,
            state_seconds={LearnerState.TRAINING: training},
        )
        for index, (training, step) in enumerate(learners)
    ]  # fmt: skip
    return Progress(
        job_uid="u", epoch=0, phase=Phase.RUNNING, served_seconds=1, uptime_seconds=0, budget_tokens=1, percent=0,
        outer_steps=1, outer_rounds=1, tokens=TokenTotals(), learners=rows,
    ).model_copy(update=fields)  # fmt: skip


ENDED = {0: LearnerStatus.model_validate({"index": 0, **ROW, "state": "Succeeded"})}
BEGUN = GoodputStatus(accounted_time=to_text(NOW))


def after_100_seconds(learners: list[tuple[float, float]], **fields: object) -> GoodputStatus:
    return goodput_status(BEGUN, progress(learners, **fields), STEP_TOKENS, period(NOW + 100, len(learners)))


def test_accepted_work_is_measured_against_undisturbed_learners() -> None:
    found = after_100_seconds([(100, 1), (100, 1)], tokens=TokenTotals(merged=1500), uptime_seconds=90.0)
    assert (found.capacity, found.accepted, found.uptime) == ("1.0000", "0.7500", "0.9000")
    assert found.ideal_tokens_per_second == "10"


def test_a_straggler_does_not_lower_what_is_ideal() -> None:
    found = after_100_seconds([(100, 1), (100, 1), (100, 1), (100, 4)], tokens=TokenTotals(merged=3250))
    assert float(found.accepted) == pytest.approx(0.8125)


def test_a_rate_is_of_one_moment_not_of_a_newer_token_clock_and_older_seconds() -> None:
    heard = progress([(100, 1), (100, 1)], tokens=TokenTotals(merged=1500))
    for learner in heard.learners:
        learner.token_clock += 5000  # of a contribution newer than the heartbeat
    assert goodput_status(BEGUN, heard, STEP_TOKENS, period(NOW + 100)).accepted == "0.7500"


@pytest.mark.parametrize(("fast", "ideal"), [(10.0, 1200 / 120), (1.0, 1020 / 101)], ids=["counts", "says-little"])
def test_a_learner_that_has_hardly_trained_says_nothing_about_the_rate(fast: float, ideal: float) -> None:
    found = after_100_seconds([(100, 1), (fast, 0.5)])
    rate = sum([10.0, 20.0]) / 2 if fast == 10.0 else ideal
    assert float(found.ideal_tokens_per_second) == pytest.approx(rate, rel=0.01)


def test_the_ideal_rate_leaves_out_a_straggler() -> None:
    assert ideal_rate([10.0, 10.1, 9.9, 2.0]) == pytest.approx(10.0)
    assert ideal_rate([10.0, 10.1, 9.9, 30.0]) == pytest.approx(15.0)
    assert ideal_rate([]) is None


def test_no_second_is_counted_twice_however_often_one_looks() -> None:
    counted = BEGUN
    for step in range(1, 101):
        counted = goodput_status(counted, None, STEP_TOKENS, period(NOW + step * 0.37, 4))
    assert float(counted.window_seconds) == 37
    assert float(counted.wanted_seconds) == 148
    assert sum(row.open_milliseconds for row in counted.heard_times) == 148_000


def test_time_in_which_the_job_was_stopped_is_excluded_and_not_wanted() -> None:
    before = goodput_status(BEGUN, progress([(10, 1), (10, 1)]), STEP_TOKENS, period(NOW + 10))
    after = goodput_status(before, None, STEP_TOKENS, period(NOW + 1000, running=False, excluded=True))
    assert (float(after.window_seconds), float(after.wanted_seconds)) == (10, 20)
    assert after.accounted_time == to_text(NOW + 1000)
    assert [row.milliseconds for row in after.learner_times] == [{"excluded": 990_000, "training": 10_000}] * 2


def test_the_shares_stay_while_the_synchronizer_is_away() -> None:
    before = after_100_seconds([(90, 1), (90, 1)])
    after = goodput_status(before, None, STEP_TOKENS, period(NOW + 150))
    assert after.capacity == before.capacity == "0.9000"
    assert float(after.wanted_seconds) == 300


def test_what_a_killed_operator_has_not_written_is_made_up_for_by_what_synchronizer_and_learners_have_counted() -> None:
    before = goodput_status(BEGUN, progress([(70, 1), (70, 1)]), STEP_TOKENS, period(NOW + 70))
    heard = progress([(90, 1), (90, 1)], uptime_seconds=80.0, total_served_seconds=95.0)
    resumed = goodput_status(before, None, STEP_TOKENS, period(NOW + 1000, running=False, excluded=True))
    after = goodput_status(resumed, heard, STEP_TOKENS, period(NOW + 1000, running=False))
    assert (float(after.window_seconds), float(after.wanted_seconds)) == (95, 190)
    assert float(after.training_seconds) == 180
    again = goodput_status(after, heard, STEP_TOKENS, period(NOW + 1002))
    assert float(again.window_seconds) == 97


def test_the_last_second_of_a_run_counts_as_far_as_it_went() -> None:
    heard = progress([(0.6, 0.01), (0.6, 0.01)], tokens=TokenTotals(merged=1200))
    for learner in heard.learners:
        learner.state = LearnerState.DRAIN
    found = goodput_status(BEGUN, heard, STEP_TOKENS, period(NOW + 0.8, final=True))
    assert (found.capacity, found.accepted, found.wanted_seconds) == ("0.7500", "0.7500", "1.600")


def test_only_learners_that_were_wanted_are_counted() -> None:
    found = goodput_status(BEGUN, None, STEP_TOKENS, period(NOW + 10, 3, wanted=frozenset({0, 1})))
    assert float(found.wanted_seconds) == 20
    assert {row.index for row in found.heard_times} == {0, 1}


def test_where_no_time_is_left_for_what_was_trained_nothing_was_accepted_in_time() -> None:
    found = goodput_status(BEGUN, progress([(0.6, 0.01)], tokens=TokenTotals(merged=600)), STEP_TOKENS, period(
        NOW + 9, 1, before=ENDED, after=ENDED))  # fmt: skip
    assert (found.capacity, found.accepted) == ("0.0000", "0.0000")


def test_before_anything_was_trained_there_is_no_share_of_it() -> None:
    found = after_100_seconds([(0, 1), (0, 1)])
    assert (found.capacity, found.accepted) == ("0.0000", "")

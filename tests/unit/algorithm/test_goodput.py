"""Seconds per state."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diloco_api.progress import LearnerState
from diloco_trainer.algorithm.goodput import PULSE_SECONDS, STILL_SECONDS, StateClock


@given(st.lists(st.tuples(st.sampled_from(list(LearnerState)), st.integers(0, 1000))))
def test_every_second_is_in_exactly_one_state(path: list[tuple[LearnerState, int]]) -> None:
    clock, now, expected = StateClock(5.0), 5.0, dict.fromkeys(LearnerState, 0.0)
    for state, seconds in path:
        expected[clock.state] += seconds
        now += seconds
        clock.enter(state, now)
        assert clock.state is state
        assert clock.totals(now) == expected
        assert sum(clock.totals(now + 3.0).values()) == now + 3.0 - 5.0


def test_time_of_the_present_state_counts_before_it_ends() -> None:
    clock = StateClock(0.0)
    clock.enter(LearnerState.TRAINING, 2.0)
    totals = clock.totals(10.0)
    assert (totals[LearnerState.INIT], totals[LearnerState.TRAINING]) == (2.0, 8.0)
    assert clock.totals(10.0) == totals


def test_clock_that_goes_back_is_refused() -> None:
    clock = StateClock(5.0)
    with pytest.raises(ValueError, match="went back"):
        clock.enter(LearnerState.TRAINING, 4.0)
    with pytest.raises(ValueError, match="went back"):
        clock.totals(4.0)


@pytest.mark.parametrize("first", ["pulse", "enter", "totals"])
def test_a_process_that_stood_still_was_stalled_whichever_thread_wakes_first(first: str) -> None:
    clock = StateClock(0.0)
    clock.enter(LearnerState.TRAINING, 0.0)
    for second in range(11):
        clock.pulse(float(second))
    match first:
        case "pulse":
            clock.pulse(70.0)
        case "enter":
            clock.enter(LearnerState.SYNC_WAIT, 70.0)
        case "totals":
            clock.totals(70.0)
    clock.pulse(70.1)
    totals = clock.totals(72.0)
    assert totals[LearnerState.STALLED] == 70.0 - 10.0 - PULSE_SECONDS
    assert totals[LearnerState.TRAINING] + totals[LearnerState.SYNC_WAIT] == 10.0 + PULSE_SECONDS + 2.0


def test_a_late_sign_of_life_on_a_busy_machine_is_no_standstill() -> None:
    clock = StateClock(0.0)
    for second in (0.0, STILL_SECONDS, 2 * STILL_SECONDS):
        clock.pulse(second)
    assert clock.totals(11.0)[LearnerState.STALLED] == 0.0

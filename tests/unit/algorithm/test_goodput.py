"""Seconds per state."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diloco_api.progress import LearnerState
from diloco_trainer.algorithm.goodput import StateClock


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

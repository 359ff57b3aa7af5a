"""Step schedule and turns."""

import pytest

from diloco_trainer.algorithm.schedule import (
    Pace,
    count_turn,
    due_fragments,
    likely_fragments,
    turn_fragment,
    turn_interval,
)


def test_paper_example_of_two_fragments_every_hundred_steps() -> None:
    """arXiv 2501.18512, section 2.2: offsets 0 and 50 give steps 100, 200, ... and 50, 150, ..."""
    sent = {step: due_fragments(step, 100, 2) for step in range(0, 301) if due_fragments(step, 100, 2)}
    assert sent == {50: (1,), 100: (0,), 150: (1,), 200: (0,), 250: (1,), 300: (0,)}


@pytest.mark.parametrize(("sync_every", "num_fragments"), [(1, 1), (7, 3), (24, 24), (100, 16), (5, 5)])
def test_every_fragment_is_due_once_in_any_h_steps(sync_every: int, num_fragments: int) -> None:
    for first in (1, 3, sync_every + 2):
        due = [p for step in range(first, first + sync_every) for p in due_fragments(step, sync_every, num_fragments)]
        assert sorted(due) == list(range(num_fragments))


def test_nothing_is_due_before_the_first_step() -> None:
    assert due_fragments(0, 4, 2) == ()


def test_turns_go_round_the_fragments() -> None:
    assert [turn_fragment(turn, 3) for turn in range(1, 7)] == [1, 2, 0, 1, 2, 0]


def test_slow_learner_stages_every_fragment_that_may_be_asked_during_its_step() -> None:
    assert likely_fragments(5, 24, step_seconds=3.0, interval_seconds=1.0) == (5, 6, 7, 8, 9)
    assert likely_fragments(5, 3, step_seconds=100.0, interval_seconds=1.0) == (2, 0, 1)
    assert likely_fragments(5, 3, step_seconds=1.0, interval_seconds=0.0) == (2,)


def test_interval_is_h_over_p_median_steps() -> None:
    assert turn_interval(24, 24, 0.5, Pace()) == pytest.approx(0.5)
    assert turn_interval(100, 8, 0.2, Pace(factor=1.25)) == pytest.approx(100 / 8 * 0.2 * 1.25)


def test_pace_is_at_most_eight_times_as_long_and_recovers_within_some_hundred_turns() -> None:
    pace = Pace()
    for _ in range(10_000):
        pace = count_turn(pace, skipped=True)
    assert pace.factor == 8.0
    for _ in range(200):
        pace = count_turn(pace, skipped=False)
    assert pace.factor == 1.0


def test_pace_lengthens_above_five_percent_and_recovers_after_calm_turns() -> None:
    pace = Pace()
    for _ in range(5):
        pace = count_turn(pace, skipped=True)
    assert not pace.lengthened
    pace = count_turn(pace, skipped=True)
    assert pace.lengthened
    for _ in range(100):
        pace = count_turn(pace, skipped=False)
    assert not pace.lengthened
    assert (pace.announced, pace.skipped) == (100, 6)

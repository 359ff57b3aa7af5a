"""How fast Learners train, by their token clocks."""

from diloco_trainer.synchronizer.records import LearnerTotals
from diloco_trainer.synchronizer.roster import Roster


def totals(index: int, clock: int, step_seconds: float | None = None) -> LearnerTotals:
    return LearnerTotals(index, 1, token_clock=clock, step_seconds=step_seconds)


def test_the_step_time_tells_the_rate_until_two_clocks_are_known() -> None:
    roster = Roster(batch_tokens=100)
    roster.admit(totals(0, 0), 0.0)
    assert roster.tokens_per_second([(0, 1)]) == 0.0
    roster.hear(totals(0, 0, step_seconds=0.5), 5.0)
    assert roster.tokens_per_second([(0, 1)]) == 200.0
    roster.hear(totals(0, 2000, step_seconds=0.5), 10.0)
    assert roster.tokens_per_second([(0, 1)]) == 200.0


def test_the_rate_is_that_of_the_last_minute() -> None:
    roster = Roster(batch_tokens=100)
    roster.admit(totals(0, 0), 0.0)
    clock = 0
    for second in range(5, 125, 5):
        clock += 50 if second <= 60 else 500
        roster.hear(totals(0, clock), float(second))
    assert roster.tokens_per_second([(0, 1)]) == 100.0


def test_only_live_learners_count() -> None:
    roster = Roster(batch_tokens=100)
    for index in (0, 1):
        roster.admit(totals(index, 0), 0.0)
        roster.hear(totals(index, 1000), 10.0)
    assert roster.tokens_per_second([(1, 1)]) == 100.0
    assert roster.tokens_per_second([(0, 1), (1, 1), (7, 1)]) == 200.0


def test_totals_are_saved_once() -> None:
    roster = Roster(batch_tokens=100)
    roster.admit(totals(0, 0), 0.0)
    assert roster.take_unsaved() == ()
    roster.hear(totals(0, 10), 1.0)
    assert roster.take_unsaved() == (totals(0, 10),)
    assert roster.take_unsaved() == ()


def test_after_a_restart_the_old_token_clock_does_not_count_as_a_leap() -> None:
    roster = Roster(batch_tokens=100)
    roster.restore(totals(0, 10), 0.0)
    roster.hear(totals(0, 100_000, step_seconds=0.5), 1.0)
    assert roster.tokens_per_second([(0, 1)]) == 200.0
    roster.hear(totals(0, 100_600, step_seconds=0.5), 3.0)
    assert roster.tokens_per_second([(0, 1)]) == 300.0

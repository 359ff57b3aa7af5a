"""Up is what lies within the deadline after a merge or a start."""

from diloco_api.timeouts import Timeouts
from diloco_trainer.synchronizer.uptime import UptimeClock

TIMEOUTS = Timeouts()


def test_a_running_job_is_up_for_a_minute_after_its_start() -> None:
    clock = UptimeClock(0.0, 0.0, 0.0, TIMEOUTS)
    clock.running(True, 10.0)
    assert clock.totals(40.0) == (30.0, 30.0)
    assert clock.totals(110.0) == (100.0, 60.0)


def test_a_merge_makes_it_up_again_from_then_on() -> None:
    clock = UptimeClock(0.0, 0.0, 0.0, TIMEOUTS)
    clock.running(True, 0.0)
    clock.merged(100.0)
    assert clock.totals(150.0) == (150.0, 110.0)


def test_the_deadline_grows_with_the_usual_time_between_merges() -> None:
    clock = UptimeClock(0.0, 0.0, 0.0, TIMEOUTS)
    clock.running(True, 0.0)
    for time in (40.0, 80.0, 120.0):
        clock.merged(time)
    assert clock.deadline_seconds == 120.0
    assert clock.totals(230.0) == (230.0, 230.0)


def test_time_before_and_after_the_run_does_not_count_and_earlier_processes_do() -> None:
    clock = UptimeClock(0.0, 1000.0, 900.0, TIMEOUTS)
    clock.running(True, 10.0)
    clock.running(False, 20.0)
    assert clock.totals(500.0) == (1010.0, 910.0)


def test_looking_often_changes_nothing() -> None:
    often, once = UptimeClock(0.0, 0.0, 0.0, TIMEOUTS), UptimeClock(0.0, 0.0, 0.0, TIMEOUTS)
    for clock in (often, once):
        clock.running(True, 0.0)
    for time in range(200):
        often.totals(float(time))
    assert often.totals(200.0) == once.totals(200.0)


def test_the_deadline_is_that_of_a_round_of_this_job() -> None:
    clock = UptimeClock(0.0, 0.0, 0.0, Timeouts(round_deadline_floor_seconds=10.0, round_deadline_factor=2.0))
    assert clock.deadline_seconds == 10.0
    for time in (0.0, 40.0, 80.0):
        clock.merged(time)
    assert clock.deadline_seconds == 80.0

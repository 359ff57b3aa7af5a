from diloco_cli.drill_plan import DrillPlan, ProcessSeen, Seen, Signal, announcements
from diloco_cli.drills import parse_drill


def seen(started: bool = True, synchronizer: ProcessSeen | None = None, **learners: ProcessSeen) -> Seen:
    return Seen(started, {int(name[1:]): process for name, process in learners.items()}, synchronizer)


def working(pid: int, incarnation: int = 1) -> ProcessSeen:
    return ProcessSeen(pid, incarnation, working=True)


def starting(pid: int, incarnation: int = 2) -> ProcessSeen:
    return ProcessSeen(pid, incarnation, working=False)


def plan(*texts: str) -> DrillPlan:
    return DrillPlan.of([parse_drill(text) for text in texts])


def names(signals: list[Signal]) -> list[tuple[int, str]]:
    return [(signal.pid, signal.name) for signal in signals]


def test_seconds_count_from_the_first_outer_step_not_from_the_start() -> None:
    drill = plan("kill-learner=1@30s")
    assert drill.advance(seen(started=False, L1=working(11)), now=100.0) == []
    assert drill.advance(seen(L1=working(11)), now=120.0) == []
    assert drill.advance(seen(L1=working(11)), now=149.9) == []
    assert names(drill.advance(seen(L1=working(11)), now=150.0)) == [(11, "SIGKILL")]
    assert drill.states[0].struck_seconds == 30.0


def test_a_kill_is_done_once() -> None:
    drill = plan("kill-learner=1@0s")
    assert names(drill.advance(seen(L1=working(11)), now=0.0)) == [(11, "SIGKILL")]
    assert drill.advance(seen(L1=working(11)), now=0.1) == []


def test_a_learner_that_does_not_train_yet_is_struck_as_soon_as_it_does() -> None:
    drill = plan("kill-learner=1@5s")
    drill.advance(seen(), now=0.0)
    assert drill.advance(seen(), now=6.0) == []
    assert drill.advance(seen(L1=starting(12)), now=8.0) == []
    assert names(drill.advance(seen(L1=working(12)), now=9.0)) == [(12, "SIGKILL")]
    assert drill.states[0].struck_seconds == 9.0


def test_replaced_means_that_the_successor_works() -> None:
    drill = plan("kill-learner=1@0s")
    drill.advance(seen(L1=working(11)), now=10.0)
    drill.advance(seen(L1=working(11)), now=10.1)  # not noticed yet
    drill.advance(seen(), now=10.2)
    drill.advance(seen(L1=starting(12)), now=12.0)
    assert drill.states[0].replaced_after_seconds is None
    before = list(drill.states)
    drill.advance(seen(L1=working(12, incarnation=2)), now=17.5)
    assert drill.states[0].replaced_after_seconds == 7.5
    assert list(announcements(before, drill.states)) == ["drill: Learner 1 replaced and at work 7.5 s after the strike"]


def test_a_killed_synchronizer_is_replaced_once_another_process_answers() -> None:
    drill = plan("kill-synchronizer@2s")
    drill.advance(seen(synchronizer=working(5)), now=0.0)
    assert names(drill.advance(seen(synchronizer=working(5)), now=2.0)) == [(5, "SIGKILL")]
    drill.advance(seen(synchronizer=starting(6)), now=3.0)
    assert drill.states[0].replaced_after_seconds is None
    drill.advance(seen(synchronizer=working(6)), now=6.0)
    assert drill.states[0].replaced_after_seconds == 4.0


def test_a_frozen_learner_runs_again_after_the_given_time() -> None:
    drill = plan("freeze-learner=0@1s+5s")
    drill.advance(seen(L0=working(10)), now=0.0)
    assert names(drill.advance(seen(L0=working(10)), now=1.0)) == [(10, "SIGSTOP")]
    assert drill.advance(seen(L0=working(10)), now=5.9) == []
    assert names(drill.advance(seen(L0=working(10)), now=6.0)) == [(10, "SIGCONT")]
    assert drill.advance(seen(L0=working(10)), now=60.0) == []
    assert drill.states[0].replaced_after_seconds is None


def test_a_slowed_learner_runs_a_third_of_the_time_and_ends_running() -> None:
    drill = plan("slow-learner=0@0s+6s")
    running, runs = 0, True
    for tick in range(100):
        for signal in drill.advance(seen(L0=working(10)), now=tick * 0.1):
            runs = signal.name == "SIGCONT"
        if tick < 60:
            running += runs
    assert 18 <= running <= 22
    assert runs
    assert not drill.states[0].stopped


def test_what_is_stopped_when_the_run_ends_is_let_go() -> None:
    drill = plan("freeze-learner=0@0s+50s")
    drill.advance(seen(L0=working(10)), now=0.0)
    assert names(drill.release(seen(L0=working(10)))) == [(10, "SIGCONT")]


def test_no_signal_goes_to_a_process_that_took_the_victims_place() -> None:
    drill = plan("freeze-learner=0@0s+5s")
    drill.advance(seen(L0=working(10)), now=0.0)
    assert drill.release(seen(L0=working(77, incarnation=2))) == []
    assert drill.advance(seen(L0=working(77, incarnation=2)), now=6.0) == []


def test_a_drill_the_run_was_too_short_for_has_no_time() -> None:
    drill = plan("kill-learner=1@30s", "kill-synchronizer@0s")
    drill.advance(seen(L1=working(11), synchronizer=working(5)), now=0.0)
    assert [state.drill.title for state in drill.states if state.struck_seconds is None] == ["kill-learner=1"]


def test_a_process_dies_once_the_next_kill_waits_for_its_successor() -> None:
    drill = plan("kill-learner=1@0s", "kill-learner=1@0s", "freeze-learner=1@0s+5s")
    assert names(drill.advance(seen(L1=working(11)), now=0.0)) == [(11, "SIGKILL")]
    assert drill.advance(seen(L1=working(11)), now=0.5) == []
    assert names(drill.advance(seen(L1=working(12, incarnation=2)), now=7.0)) == [(12, "SIGKILL")]
    assert [state.struck_seconds for state in drill.states] == [0.0, 7.0, None]
    assert drill.states[0].replaced_after_seconds == 7.0


def test_one_drill_at_a_time_stops_a_process_but_a_kill_does_not_wait() -> None:
    drill = plan("slow-learner=1@0s+6s", "freeze-learner=1@1s+2s", "kill-learner=1@3s")
    assert names(drill.advance(seen(L1=working(11)), now=0.0)) == [(11, "SIGSTOP")]
    assert (11, "SIGSTOP") not in names(drill.advance(seen(L1=working(11)), now=1.0))
    assert (11, "SIGKILL") in names(drill.advance(seen(L1=working(11)), now=3.0))
    assert drill.states[1].struck_seconds is None

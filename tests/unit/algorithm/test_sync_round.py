"""Rounds, quorum, turns, membership and the end of a job, event by event on a clock that the test moves."""

from dataclasses import dataclass, field, replace

import pytest

from diloco_trainer.algorithm.events import (
    Admit,
    Announce,
    AnsweredNothing,
    Contributed,
    DrainRequested,
    Effect,
    Event,
    Finish,
    GoneReason,
    Heard,
    Hold,
    Joined,
    Key,
    Left,
    Listening,
    MarkAlive,
    MarkDead,
    MarkGone,
    Merge,
    MergeDone,
    PoolChanged,
    RefusalReason,
    Refuse,
    RejectJoin,
    SkipTurn,
    Start,
    Tick,
    Void,
)
from diloco_trainer.algorithm.quorum import effective_quorum
from diloco_trainer.algorithm.round_state import RoundConfig, RoundState, Stage, admit, initial_state, start
from diloco_trainer.algorithm.sync_round import next_deadline, open_turns, step

DECOUPLED = RoundConfig(
    num_fragments=2,
    sync_every=4,
    sync_delay=2,
    synchronous=False,
    min_quorum=1,
    replicas=2,
    min_learners=1,
    grace_gamma=0.5,
    grace_seconds=None,
    drop_late=False,
    retained_versions=8,
    dead_after=30.0,
    stall_timeout=600.0,
    scheduling_timeout=300.0,
    deadline_floor=60.0,
    deadline_factor=3.0,
    answer_patience=1.0,
    reunion=10.0,
)
SYNCHRONOUS = replace(DECOUPLED, num_fragments=1, synchronous=True, grace_gamma=None)


@dataclass
class Rounds:
    """A driver: sends events at the present time and remembers what was asked for."""

    config: RoundConfig
    now: float = 0.0
    state: RoundState = field(init=False)
    all_effects: list[Effect] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = initial_state(self.config, self.now)

    def send(self, *events: Event) -> list[Effect]:
        out: list[Effect] = []
        for event in events:
            self.state, effects = step(self.state, event, self.now)
            out += effects
        self.all_effects += out
        return out

    def at(self, seconds: float, *events: Event) -> list[Effect]:
        assert seconds >= self.now
        self.now = seconds
        return self.send(*events)

    def join(self, *indices: int, incarnation: int = 1) -> list[Effect]:
        return self.send(*(Joined(index, incarnation) for index in indices))

    def hear(self, *indices: int, step_seconds: float | None = 1.0, drained: bool = False) -> list[Effect]:
        return self.send(*(Heard(index, 1, step_seconds, drained) for index in indices))

    def body(
        self, index: int, fragment: int = 0, *, turn: int, base: int | None = None, sequence: int = 1
    ) -> Contributed:
        version = self.state.rounds[fragment].version if base is None else base
        return Contributed(Key(index, 1, fragment, sequence), turn, version)

    def done(self, merge: Merge, seconds: float = 0.0) -> list[Effect]:
        return self.send(MergeDone(merge.fragment, merge.version, merge.contributions, seconds))


def only(kind: type, effects: list[Effect]) -> list:
    return [effect for effect in effects if isinstance(effect, kind)]


def decoupled(*learners: int, **changes: object) -> Rounds:
    """A running Decoupled job whose Learners take one second a step; turn 1 has been announced at 2 s."""
    rounds = Rounds(replace(DECOUPLED, **changes))
    rounds.join(*learners)
    rounds.hear(*learners)
    rounds.at(2.0, Tick())
    assert only(Announce, rounds.all_effects) == [Announce(1, 1, False, 2.0)]
    return rounds


def synchronous(*learners: int, **changes: object) -> Rounds:
    rounds = Rounds(replace(SYNCHRONOUS, replicas=len(learners), **changes))
    rounds.join(*learners)
    return rounds


# --- membership -------------------------------------------------------------------------------------------------


def test_synchronous_job_starts_when_all_replicas_are_admitted() -> None:
    rounds = Rounds(SYNCHRONOUS)
    assert rounds.join(0) == [Admit(0, 1)]
    assert rounds.join(1) == [Admit(1, 1), Start()]
    assert rounds.state.rounds[0].expected == {(0, 1), (1, 1)}


def test_synchronous_job_starts_with_min_learners_at_the_scheduling_deadline() -> None:
    rounds = Rounds(replace(SYNCHRONOUS, dead_after=1000.0))
    rounds.join(0)
    assert rounds.at(299.9, Tick()) == []
    assert rounds.at(300.0, Tick()) == [Start()]
    assert rounds.state.rounds[0].expected == {(0, 1)}


def test_join_said_twice_admits_once() -> None:
    rounds = Rounds(DECOUPLED)
    assert only(Admit, rounds.join(0)) == [Admit(0, 1)]
    assert rounds.join(0) == []


def test_newer_incarnation_fences_the_older_one_and_older_joins_are_rejected() -> None:
    rounds = Rounds(DECOUPLED)
    rounds.join(0, incarnation=1)
    effects = rounds.join(0, incarnation=2)
    assert effects == [Admit(0, 2), MarkGone(0, 1, GoneReason.FENCED)]
    assert rounds.join(0, incarnation=1) == [RejectJoin(0, 1, newest=2)]


def test_unheard_learner_is_dead_after_thirty_seconds_and_gone_after_the_stall_timeout() -> None:
    rounds = Rounds(DECOUPLED)
    rounds.join(0)
    assert rounds.at(30.0, Tick()) == []
    assert rounds.at(30.1, Tick()) == [MarkDead(0, 1)]
    assert rounds.at(600.0, Tick()) == []
    assert rounds.at(600.1, Tick()) == [MarkGone(0, 1, GoneReason.UNHEARD)]
    assert only(Admit, rounds.join(0)) == [Admit(0, 1)], "heard again after that it joins anew"


def test_dead_learner_that_is_heard_again_is_alive_again() -> None:
    rounds = Rounds(DECOUPLED)
    rounds.join(0)
    rounds.at(40.0, Tick())
    assert rounds.hear(0) == [MarkAlive(0, 1)]
    assert rounds.state.live_whos() == {(0, 1)}


def test_body_of_a_learner_that_left_is_merged_before_the_learner_is_gone() -> None:
    rounds = decoupled(0, 1)
    rounds.send(rounds.body(0, 1, turn=1))
    assert only(MarkGone, rounds.send(Left(0, 1))) == []
    (merge,) = only(Merge, rounds.send(AnsweredNothing(1, 1, 1, 1)))
    assert [key.index for key in merge.contributions] == [0]
    assert rounds.done(merge) == [MarkGone(0, 1, GoneReason.LEFT)]


def test_rejoin_of_a_departing_incarnation_waits_for_its_bodies() -> None:
    rounds = decoupled(0, 1)
    rounds.send(rounds.body(0, 1, turn=1), Left(0, 1))
    assert rounds.join(0) == [RejectJoin(0, 1, newest=1)]


# --- synchronous rounds -----------------------------------------------------------------------------------------


def test_synchronous_round_merges_when_all_expected_answered_in_index_order() -> None:
    rounds = synchronous(0, 1)
    assert rounds.send(rounds.body(1, turn=1)) == []
    (merge,) = rounds.send(rounds.body(0, turn=1))
    assert isinstance(merge, Merge)
    assert (merge.version, [key.index for key in merge.contributions]) == (1, [0, 1])
    rounds.done(merge)
    assert rounds.state.rounds[0].version == 1
    assert rounds.state.rounds[0].expected == {(0, 1), (1, 1)}


def test_resent_body_changes_nothing() -> None:
    rounds = synchronous(0, 1)
    rounds.send(rounds.body(1, turn=1))
    before = rounds.state.rounds[0]
    assert rounds.send(rounds.body(1, turn=1)) == []
    assert rounds.state.rounds[0] == before


def test_dead_learner_no_longer_holds_up_a_synchronous_round() -> None:
    rounds = synchronous(0, 1)
    rounds.at(20.0, Heard(0, 1, 1.0, False))
    rounds.send(rounds.body(0, turn=1))
    effects = rounds.at(30.5, Tick())
    assert effects[0] == MarkDead(1, 1)
    (merge,) = only(Merge, effects)
    assert [key.index for key in merge.contributions] == [0]


def test_synchronous_round_closes_at_the_deadline_without_the_absent() -> None:
    rounds = synchronous(0, 1, dead_after=1000.0)
    rounds.send(rounds.body(0, turn=1))
    assert rounds.at(59.9, Tick()) == []
    (merge,) = rounds.at(60.0, Tick())
    assert merge.reason == "deadline, without learners [1]"


def test_synchronous_deadline_is_three_median_rounds_where_that_is_longer() -> None:
    rounds = synchronous(0, 1, dead_after=1e6)
    rounds.send(rounds.body(0, turn=1))
    (merge,) = rounds.at(50.0, rounds.body(1, turn=1))
    rounds.done(merge)
    rounds.at(100.0, rounds.body(0, turn=2, sequence=2))
    assert rounds.at(249.0, Tick()) == []
    assert only(Merge, rounds.at(250.0, Tick()))


def test_late_synchronous_body_is_held_and_answers_the_next_round() -> None:
    rounds = synchronous(0, 1, dead_after=1000.0)
    rounds.send(rounds.body(0, turn=1))
    (merge,) = rounds.at(60.0, Tick())
    rounds.done(merge)
    late = rounds.body(1, turn=1, base=0)
    assert rounds.send(late) == [Hold(late.key)]
    (merge,) = rounds.send(rounds.body(0, turn=2, sequence=2))
    assert [key.index for key in merge.contributions] == [0, 1]


def test_held_body_alone_starts_no_deadline() -> None:
    rounds = synchronous(0, 1, dead_after=1e6)
    rounds.send(rounds.body(0, turn=1))
    (merge,) = rounds.at(60.0, Tick())
    rounds.done(merge)
    rounds.send(rounds.body(1, turn=1, base=0))
    assert rounds.at(590.0, Tick()) == []


def test_late_body_is_refused_under_the_drop_policy() -> None:
    rounds = synchronous(0, 1, dead_after=1000.0, drop_late=True)
    rounds.send(rounds.body(0, turn=1))
    (merge,) = rounds.at(60.0, Tick())
    rounds.done(merge)
    late = rounds.body(1, turn=1, base=0)
    assert rounds.send(late) == [Refuse(late.key, RefusalReason.DROPPED)]


def test_expected_never_grows_within_a_round_but_a_joiner_in_time_counts() -> None:
    rounds = synchronous(0, 1)
    rounds.join(2)
    assert rounds.state.rounds[0].expected == {(0, 1), (1, 1)}
    rounds.send(rounds.body(2, turn=1), rounds.body(0, turn=1))
    (merge,) = rounds.send(rounds.body(1, turn=1))
    assert [key.index for key in merge.contributions] == [0, 1, 2]
    rounds.done(merge)
    assert rounds.state.rounds[0].expected == {(0, 1), (1, 1), (2, 1)}


def test_joiner_whose_first_body_is_too_late_adopts_and_discards() -> None:
    rounds = synchronous(0, 1)
    rounds.send(rounds.body(0, turn=1))
    (merge,) = rounds.send(rounds.body(1, turn=1))
    rounds.join(2)
    rounds.done(merge)
    late = rounds.body(2, turn=1, base=0)
    assert rounds.send(late) == [Refuse(late.key, RefusalReason.JOINING)]


def test_empty_expected_set_is_refilled_by_the_next_admission() -> None:
    rounds = synchronous(0)
    rounds.at(31.0, Tick())
    assert rounds.state.rounds[0].expected == frozenset()
    rounds.join(0, incarnation=2)
    assert rounds.state.rounds[0].expected == {(0, 2)}


def test_learner_that_left_no_longer_holds_up_a_synchronous_round() -> None:
    rounds = synchronous(0, 1)
    rounds.send(rounds.body(0, turn=1))
    (merge,) = only(Merge, rounds.send(Left(1, 1)))
    assert [key.index for key in merge.contributions] == [0]


def test_body_of_a_learner_that_was_given_up_is_refused() -> None:
    rounds = decoupled(0, 1)
    rounds.send(rounds.body(0, 1, turn=1), Left(0, 1))
    another = rounds.body(0, 0, turn=1)
    assert rounds.send(another) == [Refuse(another.key, RefusalReason.GONE)]


def test_learner_without_work_does_not_hold_up_one_that_still_trains() -> None:
    rounds = synchronous(0, 1)
    rounds.hear(0, drained=True)
    (merge,) = rounds.send(rounds.body(1, turn=1))
    assert [key.index for key in merge.contributions] == [1]


def test_round_that_lost_everyone_waits_for_those_who_come_back() -> None:
    rounds = synchronous(0, 1)
    rounds.at(31.0, Tick())
    assert rounds.state.rounds[0].expected == frozenset()
    rounds.hear(0)
    assert rounds.state.rounds[0].expected == {(0, 1)}
    rounds.hear(1)
    rounds.send(rounds.body(1, turn=1))
    (merge,) = only(Merge, rounds.send(rounds.body(0, turn=1)))
    assert [key.index for key in merge.contributions] == [0, 1]


# --- Decoupled turns --------------------------------------------------------------------------------------------


def test_no_turn_before_a_step_time_is_known_then_one_every_h_over_p_steps() -> None:
    rounds = Rounds(DECOUPLED)
    rounds.join(0)
    assert rounds.at(20.0, Tick()) == []
    rounds.hear(0, step_seconds=1.0)
    assert rounds.at(21.9, Tick()) == []
    assert rounds.at(22.0, Tick()) == [Announce(1, 1, False, 2.0)]
    assert rounds.at(24.0, Tick()) == [Announce(2, 0, False, 2.0)]


def test_turn_whose_round_is_open_is_skipped_and_counted() -> None:
    rounds = decoupled(0, 1)
    rounds.at(4.0, Tick())
    assert rounds.at(6.0, Tick()) == [SkipTurn(3, 1, "turn 1 is open")]
    assert rounds.state.pace.skipped == 1


def test_no_burst_of_turns_after_a_pause_of_the_process() -> None:
    rounds = decoupled(0)
    rounds.hear(0)
    effects = [effect for _ in range(5) for effect in rounds.at(20.0, Tick())]
    assert len(only(Announce, effects) + only(SkipTurn, effects)) <= 2


def test_quorum_of_one_waits_for_the_grace_window_and_no_longer() -> None:
    rounds = decoupled(0, 1)
    assert rounds.at(2.2, rounds.body(0, 1, turn=1)) == []
    grace = 0.5 * (2 * 1.0 - 0.2)
    assert rounds.at(2.2 + grace - 0.01, Tick()) == []
    (merge,) = rounds.at(2.2 + grace + 0.001, Tick())
    assert [key.index for key in merge.contributions] == [0]


def test_second_answer_inside_the_grace_window_closes_the_round_at_once() -> None:
    rounds = decoupled(0, 1)
    rounds.at(2.1, rounds.body(0, 1, turn=1))
    (merge,) = rounds.at(2.3, rounds.body(1, 1, turn=1))
    assert (merge.reason, len(merge.contributions)) == ("every live learner answered", 2)


def test_no_slack_means_no_grace() -> None:
    rounds = decoupled(0, 1)
    (merge,) = only(Merge, rounds.at(4.5, rounds.body(0, 1, turn=1)))
    assert len(merge.contributions) == 1


def test_merge_time_is_part_of_the_slack() -> None:
    rounds = decoupled(0, 1)
    (merge,) = only(Merge, rounds.send(rounds.body(0, 1, turn=1), rounds.body(1, 1, turn=1)))
    rounds.done(merge, seconds=5.0)
    rounds.at(4.0, Tick())
    rounds.at(6.0, Tick())
    assert only(Merge, rounds.send(rounds.body(0, 1, turn=3, sequence=2))), "slack is negative: merge at quorum"


def test_quorum_shrinks_to_the_live_learners() -> None:
    rounds = decoupled(0, 1, min_quorum=2)
    rounds.at(25.0, Heard(0, 1, 1.0, False), rounds.body(0, 1, turn=1))
    assert only(Merge, rounds.all_effects) == []
    assert only(Merge, rounds.at(31.0, Tick())), "the other one is dead now"


@pytest.mark.parametrize(
    ("min_quorum", "num_live", "expected"), [(1, 0, 1), (1, 3, 1), (2, 3, 2), (5, 3, 3), (3, 0, 1)]
)
def test_quorum_asks_for_at_least_one_and_at_most_the_live(min_quorum: int, num_live: int, expected: int) -> None:
    assert effective_quorum(min_quorum, num_live) == expected


def test_round_with_nothing_but_empty_answers_is_void() -> None:
    rounds = decoupled(0, 1)
    effects = rounds.send(AnsweredNothing(0, 1, 1, 1), AnsweredNothing(1, 1, 1, 1))
    assert effects == [Void(1, 1, "every live learner answered")]
    assert rounds.state.rounds[1].version == 0


def test_answer_that_comes_after_its_merge_is_held_for_the_next_turn_and_not_counted() -> None:
    rounds = decoupled(0, 1)
    rounds.send(rounds.body(0, 1, turn=1))
    (merge,) = only(Merge, rounds.at(3.9, Tick()))
    late = rounds.body(1, 1, turn=1, base=0)
    assert rounds.send(late) == [Hold(late.key)]
    rounds.done(merge)
    rounds.at(6.0, Tick())
    rounds.at(6.1, Tick())
    assert rounds.state.rounds[1].open_turn is not None
    assert rounds.state.rounds[1].num_counted == 0
    (merge,) = only(Merge, rounds.send(rounds.body(0, 1, turn=rounds.state.rounds[1].open_turn, sequence=2)))
    assert [key.index for key in merge.contributions] == [0, 1]


def test_held_body_is_merged_when_nobody_else_is_left_to_answer() -> None:
    rounds = decoupled(0, 1)
    rounds.send(rounds.body(0, 1, turn=1))
    (merge,) = only(Merge, rounds.at(3.9, Tick()))
    rounds.send(rounds.body(1, 1, turn=1, base=0))
    rounds.done(merge)
    rounds.send(Left(0, 1))
    merges = only(Merge, rounds.at(6.0, Tick()) + rounds.at(6.1, Tick()) + rounds.at(8.0, Tick()))
    assert [[key.index for key in merge.contributions] for merge in merges] == [[1]]


def test_held_body_does_not_wait_for_a_learner_that_is_lost_and_not_yet_known_to_be() -> None:
    rounds = decoupled(0, 1)
    rounds.send(rounds.body(0, 1, turn=1))
    (merge,) = only(Merge, rounds.at(3.9, Tick()))
    rounds.send(rounds.body(1, 1, turn=1, base=0))
    rounds.done(merge)  # from here on learner 0 says nothing more
    opened = next(e for t in (4.0, 6.0) for e in only(Announce, rounds.at(t, Tick())) if e.fragment == 1)
    assert opened.turn == 3
    assert only(Merge, rounds.at(7.9, Tick())) == []
    (merge,) = only(Merge, rounds.at(8.0, Tick()))
    assert [key.index for key in merge.contributions] == [1]


def test_answer_of_nothing_does_not_wait_for_a_learner_that_is_lost_and_not_yet_known_to_be() -> None:
    rounds = decoupled(0, 1)
    rounds.send(AnsweredNothing(1, 1, 1, 1))
    assert next_deadline(rounds.state, 2.0) == pytest.approx(2.0)
    assert only(Void, rounds.at(3.9, Tick())) == []
    assert only(Void, rounds.at(4.0, Tick())) == [Void(1, 1, "0 of 1 answers, and no more for a while")]


def restarted(*learners: int) -> Rounds:
    """A running Decoupled job after a restart of its Synchronizer at 0 s; nobody has come back yet."""
    rounds = Rounds(DECOUPLED)
    for index in learners:
        admit(rounds.state, index, 1, 0.0, restored=True)
    start(rounds.state)
    return rounds


def test_after_a_restart_turns_wait_until_all_learners_of_before_listen() -> None:
    """Heard alone is not enough: what one that does not listen has trained would be versions behind in a moment."""
    rounds = restarted(0, 1)
    rounds.at(1.0, Listening(0, 1))
    rounds.hear(0, 1)
    assert only(Announce, rounds.at(6.0, Tick())) == []
    rounds.send(Listening(1, 1))
    assert [announced.turn for announced in only(Announce, rounds.at(8.0, Tick()))] == [1]


def test_after_a_restart_turns_wait_ten_seconds_for_a_learner_that_does_not_come_back() -> None:
    rounds = restarted(0, 1)
    rounds.send(Listening(0, 1))
    assert next_deadline(rounds.state, 1.0) == pytest.approx(9.0)
    for second in range(1, 12):
        rounds.at(float(second), Tick())
        rounds.hear(0)
    assert only(Announce, rounds.all_effects) == []
    assert len(only(Announce, rounds.at(12.0, Tick()))) == 1


def test_a_learner_that_joins_after_a_restart_is_not_waited_for() -> None:
    rounds = restarted(0)
    rounds.send(Listening(0, 1))
    rounds.hear(0)
    rounds.join(1)
    assert len(only(Announce, rounds.at(2.0, Tick()))) == 1


def test_answer_to_a_turn_that_never_merged_counts_for_a_later_one() -> None:
    """After a restart of the Synchronizer turns go on; bodies resent for the old ones must not starve the quorum."""
    rounds = decoupled(0)
    old = rounds.body(0, 1, turn=0)
    assert old.turn < 1
    rounds.state.rounds[1] = replace(rounds.state.rounds[1], last_turn=-1)
    (merge,) = rounds.send(old)
    assert isinstance(merge, Merge)


def test_body_whose_base_is_no_longer_retained_is_refused_at_the_merge() -> None:
    rounds = decoupled(0, 1)
    rounds.state.rounds[1] = replace(rounds.state.rounds[1], version=9)
    stale, fresh = rounds.body(0, 1, turn=1, base=0), rounds.body(1, 1, turn=1, base=1)
    effects = rounds.send(stale, fresh)
    assert effects[0] == Refuse(stale.key, RefusalReason.BASE_TOO_OLD)
    assert effects[1].contributions == (fresh.key,)


def test_learner_that_opens_its_stream_is_told_the_open_turns() -> None:
    rounds = decoupled(0)
    assert open_turns(rounds.state) == (Announce(1, 1, False, 2.0),)


def test_more_than_five_percent_skipped_turns_lengthen_the_pace() -> None:
    rounds = decoupled(0, 1, stall_timeout=1e9, dead_after=1e9)
    for tick in range(1, 40):
        rounds.at(2.0 + 2 * tick, Tick())
    assert rounds.state.pace.lengthened
    assert rounds.state.interval_seconds() > 2.0


def test_next_deadline_names_the_next_instant_at_which_time_alone_matters() -> None:
    rounds = decoupled(0, 1)
    assert next_deadline(rounds.state, rounds.now) == pytest.approx(2.0), "the next turn"
    rounds.at(2.2, rounds.body(0, 1, turn=1))
    assert next_deadline(rounds.state, rounds.now) == pytest.approx(0.9), "the end of the grace window"


# --- the end ----------------------------------------------------------------------------------------------------


def finish(rounds: Rounds, effects: list[Effect]) -> list[Effect]:
    """Complete every merge that is asked for until nothing more happens."""
    seen = list(effects)
    pending = only(Merge, effects)
    while pending:
        more = rounds.done(pending.pop(0))
        pending += only(Merge, more)
        seen += more
    return seen


def test_job_ends_with_one_closing_round_of_every_fragment_once_all_are_drained() -> None:
    rounds = decoupled(0, 1)
    rounds.send(AnsweredNothing(0, 1, 1, 1), AnsweredNothing(1, 1, 1, 1))
    rounds.send(PoolChanged(False, "TokenBudgetReached"))
    assert rounds.hear(0, drained=True) == []
    announced = rounds.hear(1, drained=True)
    turns = {effect.fragment: effect.turn for effect in only(Announce, announced)}
    assert set(turns) == {0, 1}
    assert all(effect.closing for effect in only(Announce, announced))
    effects = rounds.send(rounds.body(0, 0, turn=turns[0]), AnsweredNothing(1, 1, 0, turns[0]))
    effects += rounds.send(AnsweredNothing(0, 1, 1, turns[1]), AnsweredNothing(1, 1, 1, turns[1]))
    effects = finish(rounds, effects)
    assert only(Void, effects) == [Void(1, turns[1], "everyone expected answered")]
    assert effects[-1] == Finish("TokenBudgetReached")
    assert rounds.state.stage == Stage.FINISHED


def test_synchronous_job_ends_the_same_way() -> None:
    rounds = synchronous(0, 1)
    rounds.send(PoolChanged(False, "TokenBudgetReached"))
    (announce,) = rounds.hear(0, 1, drained=True)
    assert announce == Announce(1, 0, True, 0.0)
    effects = rounds.send(rounds.body(0, turn=1), rounds.body(1, turn=1))
    assert finish(rounds, effects)[-1] == Finish("TokenBudgetReached")


def test_dead_learner_that_may_hold_a_lease_postpones_the_end_until_it_is_gone() -> None:
    rounds = decoupled(0, 1)
    rounds.send(PoolChanged(False, "TokenBudgetReached"))
    rounds.at(20.0, Heard(0, 1, 1.0, True))
    rounds.at(31.0, Heard(0, 1, 1.0, True))
    assert rounds.state.stage == Stage.RUNNING
    rounds.join(1, incarnation=2)
    assert rounds.state.stage == Stage.RUNNING
    rounds.send(Heard(1, 2, None, True))
    assert rounds.state.stage == Stage.CLOSING


@pytest.mark.parametrize("leaves", [True, False], ids=["left", "unheard"])
def test_job_does_not_end_before_the_work_of_one_that_is_gone_has_come_back(leaves: bool) -> None:
    rounds = decoupled(0, 1)
    rounds.send(AnsweredNothing(0, 1, 1, 1), AnsweredNothing(1, 1, 1, 1), PoolChanged(False, "TokenBudgetReached"))
    rounds.at(550.0, Heard(0, 1, 1.0, True))
    gone = rounds.send(Left(1, 1)) if leaves else rounds.at(601.0, Heard(0, 1, 1.0, True))
    assert only(MarkGone, gone)
    assert rounds.state.stage == Stage.RUNNING
    rounds.send(PoolChanged(True, ""))
    assert rounds.state.stage == Stage.RUNNING
    rounds.send(Heard(0, 1, 1.0, False), PoolChanged(False, "TokenBudgetReached"), Heard(0, 1, 1.0, True))
    assert rounds.state.stage == Stage.CLOSING


def test_bodies_left_behind_are_merged_before_the_end_though_nobody_trains() -> None:
    rounds = decoupled(0, 1)
    rounds.send(AnsweredNothing(0, 1, 1, 1), AnsweredNothing(1, 1, 1, 1))
    rounds.send(rounds.body(1, 0, turn=0), PoolChanged(False, "TokenBudgetReached"), Left(1, 1))
    (announce,) = only(Announce, rounds.hear(0, drained=True))
    assert (announce.fragment, announce.closing) == (0, False)
    (merge,) = only(Merge, rounds.send(AnsweredNothing(0, 1, 0, announce.turn)))
    assert only(MarkGone, rounds.done(merge)) == [MarkGone(1, 1, GoneReason.LEFT)]
    rounds.send(PoolChanged(False, "TokenBudgetReached"))
    assert rounds.state.stage == Stage.CLOSING


def test_drain_of_a_synchronous_job_that_never_started_ends_at_once() -> None:
    rounds = Rounds(SYNCHRONOUS)
    rounds.join(0)
    assert rounds.send(DrainRequested())[-1] == Finish(None)


def test_work_that_comes_back_postpones_the_end() -> None:
    rounds = decoupled(0)
    rounds.send(PoolChanged(False, "TokenBudgetReached"), PoolChanged(True, ""))
    rounds.hear(0, drained=True)
    assert rounds.state.stage == Stage.RUNNING


def test_closing_round_does_not_wait_for_one_that_died() -> None:
    rounds = synchronous(0, 1)
    rounds.send(PoolChanged(False, "TokenBudgetReached"))
    rounds.hear(0, 1, drained=True)
    rounds.at(25.0, Heard(0, 1, 1.0, True), rounds.body(0, turn=1))
    effects = finish(rounds, rounds.at(31.0, Tick()))
    assert effects[-1] == Finish("TokenBudgetReached")


def test_drain_stops_after_closing_rounds_without_a_reason_to_be_complete() -> None:
    rounds = synchronous(0)
    rounds.send(DrainRequested())
    (announce,) = rounds.hear(0, drained=True)
    assert announce.closing
    assert finish(rounds, rounds.send(AnsweredNothing(0, 1, 0, 1)))[-1] == Finish(None)


def test_drain_with_nobody_there_ends_at_once() -> None:
    rounds = Rounds(DECOUPLED)
    assert rounds.send(DrainRequested())[-1] == Finish(None)


def test_step_leaves_the_state_it_was_given_alone() -> None:
    rounds = decoupled(0, 1)
    before = rounds.state.copy()
    step(rounds.state, rounds.body(0, 1, turn=1), rounds.now)
    assert rounds.state == before

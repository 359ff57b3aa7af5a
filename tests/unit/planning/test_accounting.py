"""Where the seconds of Learners go: hand-computed lives, and identities that hold for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diloco_api.progress import TokenTotals
from diloco_api.states import GoodputState, LearnerPhase
from diloco_api.status import GoodputStatus, LearnerStatus
from diloco_operator.planning.accounting import MAX_SITES_PER_LEARNER, Book, Look, Passed, account, waiting_state
from diloco_operator.planning.clock import to_text
from diloco_operator.planning.goodput import Period, goodput_status
from diloco_operator.planning.weights import CPU, Weight
from fakes.lives import HEARTBEAT, STEP_TOKENS, Life, progress_of

EPOCH = 1_800_000_000.0
Away = Sequence[tuple[float, float]]


@dataclass
class Ledger:
    """The passes of an operator over some lives, each from what the one before has written."""

    lives: Sequence[Life]
    away: Away = ()
    """When the Synchronizer was not there."""
    devices: int = 1
    status: GoodputStatus = field(default_factory=lambda: GoodputStatus(accounted_time=to_text(EPOCH)))
    rows: dict[int, LearnerStatus] = field(default_factory=dict)
    log: list[tuple[GoodputStatus, Any, Period]] = field(default_factory=list)

    def look(self, at: float, *, final: bool = False, write: bool = True, **fields: object) -> GoodputStatus:
        """One pass. `write`: its status is committed; it must be when a row has changed."""
        there = not any(begin <= at < end for begin, end in self.away)
        after = {life.index: life.row(at, self.away) for life in self.lives}
        period = Period(
            now=EPOCH + at, running=True, excluded=False, before=self.rows, after=after,
            wanted=frozenset(after), weights={index: Weight(self.devices, CPU) for index in after},
            heartbeat_seconds=HEARTBEAT, final=final,
        )  # fmt: skip
        progress = progress_of(self.lives, at, self.away, **fields) if there else None
        found = goodput_status(self.status, progress, STEP_TOKENS, period)
        if write or after != self.rows:
            self.log.append((self.status, progress, period))
            self.status, self.rows = found, after
        return found

    def watch(self, until: float, every: float = 1.0, down: Away = ()) -> GoodputStatus:
        """Passes up to and with `until`; none while the operator is `down`."""
        at = 0.0
        while at <= until:
            if not any(begin <= at < end for begin, end in down):
                self.look(at, final=at + every > until)
            at += every
        return self.status

    def seconds(self, index: int, *states: str) -> float:
        times = [row for row in self.status.learner_times if row.index == index]
        return sum(row.milliseconds.get(state, 0) for row in times for state in states) / 1000


def booked(status: GoodputStatus) -> dict[tuple[int, str, str], int]:
    return {
        (row.index, row.site, state): value for row in status.learner_times for state, value in row.milliseconds.items()
    }


def total(status: GoodputStatus, index: int) -> float:
    states = sum(value for (which, _, _), value in booked(status).items() if which == index)
    return (states + sum(row.open_milliseconds for row in status.heard_times if row.index == index)) / 1000


WHOLE = [("train", 400.0)]
QUARTER_AWAY = [("train", 150.0), ("dead", 100.0), ("train", 150.0)]


def test_one_of_four_learners_absent_for_a_quarter_of_the_time_leaves_15_sixteenths() -> None:
    ledger = Ledger([Life(0, WHOLE), Life(1, WHOLE), Life(2, WHOLE), Life(3, QUARTER_AWAY)])
    status = ledger.watch(400)
    assert float(status.capacity) == pytest.approx(0.9375, rel=0.01)
    assert ledger.seconds(3, "lost") == pytest.approx(100, abs=HEARTBEAT)
    assert float(status.accepted) <= float(status.capacity)


@pytest.mark.parametrize("down", [(100, 130), (140, 170), (160, 190), (300, 330)], ids=str)
def test_an_operator_that_is_killed_for_half_a_minute_changes_nothing_beyond_a_heartbeat(
    down: tuple[float, float],
) -> None:
    lives = [Life(0, WHOLE), Life(1, WHOLE), Life(2, WHOLE), Life(3, QUARTER_AWAY)]
    undisturbed, killed = Ledger(lives), Ledger(lives)
    expected, found = undisturbed.watch(400), killed.watch(400, down=[down])
    assert float(found.wanted_seconds) == float(expected.wanted_seconds) == 1600
    assert float(found.training_seconds) == pytest.approx(float(expected.training_seconds), abs=HEARTBEAT)
    assert float(found.capacity) == pytest.approx(float(expected.capacity), abs=HEARTBEAT / 1600)


def test_nothing_is_lost_to_a_synchronizer_that_is_away_while_learners_train_on() -> None:
    ledger = Ledger([Life(0, [("train", 300.0)])], away=[(100, 160)])
    ledger.watch(300)
    assert ledger.seconds(0, "training") == pytest.approx(300, rel=0.01)


def test_a_learner_that_trains_unheard_and_is_heard_again_has_trained() -> None:
    ledger = Ledger([Life(0, [("train", 100.0), ("cut", 60.0), ("train", 100.0)])])
    ledger.watch(260)
    assert ledger.seconds(0, "training") == pytest.approx(260, rel=0.01)


@pytest.mark.parametrize("how", ["frozen", "asleep"])
def test_a_learner_that_stood_still_has_not_trained(how: str) -> None:
    ledger = Ledger([Life(0, [("train", 100.0), (how, 60.0), ("train", 100.0)])])
    ledger.watch(260)
    assert ledger.seconds(0, "stalled") == pytest.approx(60, abs=HEARTBEAT)
    assert ledger.seconds(0, "training") == pytest.approx(200, abs=HEARTBEAT)


def test_a_learner_that_is_killed_because_it_was_silent_for_too_long_was_stalled() -> None:
    ledger = Ledger([Life(0, [("train", 100.0), ("frozen", 600.0), ("train", 10.0)])])
    ledger.watch(690)
    killed = ledger.rows[0].model_copy(update={"state": LearnerPhase.BACK_OFF.value, "reason": "Stalled"})
    look = Look(ledger.rows[0], killed, ledger.lives[0].progress(690), True, 5000)
    book = Book({("here", "training"): 100_000}, open_ms=590_000, incarnation=1, counted={"training": 100_000})
    assert account(book, look, Passed()).of(GoodputState.STALLED) == 590_000


def test_before_the_first_step_time_is_pending_and_init() -> None:
    ledger = Ledger([Life(0, [("pending", 30.0), ("starting", 20.0), ("wait", 50.0)])])
    ledger.watch(100)
    assert [ledger.seconds(0, state) for state in ("pending", "init", "sync_wait")] == pytest.approx(
        [30, 20, 50], abs=2
    )


def test_the_last_words_of_a_killed_learner_count_until_it_was_seen_dead() -> None:
    life = Life(0, [("train", 43.9), ("dead", 20.0)])
    ledger = Ledger([life])
    ledger.watch(60, every=0.1)
    assert ledger.seconds(0, "training") == pytest.approx(43.9, abs=1.1)


def test_weights_weigh_what_is_wanted_and_what_is_trained_alike() -> None:
    one, eight = Ledger([Life(0, QUARTER_AWAY)]), Ledger([Life(0, QUARTER_AWAY)], devices=8)
    small, large = one.watch(400), eight.watch(400)
    assert float(large.wanted_seconds) == 8 * float(small.wanted_seconds)
    assert (large.capacity, large.accepted) == (small.capacity, small.accepted)


def test_discarded_work_is_not_accepted() -> None:
    ledger = Ledger([Life(0, WHOLE), Life(1, WHOLE)])
    ledger.watch(399)
    trained = progress_of(ledger.lives, 400).tokens.trained
    status = ledger.look(
        400, tokens=TokenTotals(trained=trained, merged=trained / 2, discarded={"Fenced": trained / 2})
    )
    assert float(status.accepted) == pytest.approx(float(status.capacity) / 2, rel=0.01)


def test_what_an_operator_without_books_has_counted_is_told_by_the_learners() -> None:
    life = Life(0, [("pending", 20.0), ("train", 380.0)])
    old = GoodputStatus(window_seconds="300", wanted_seconds="300", accounted_time=to_text(EPOCH + 300))
    ledger = Ledger([life], status=old, rows={0: life.row(300)})
    status = ledger.look(300)
    assert ledger.seconds(0, "training") == pytest.approx(280, abs=HEARTBEAT)
    status = ledger.look(400, final=True)
    assert float(status.wanted_seconds) == pytest.approx(400)
    assert float(status.capacity) == pytest.approx(380 / 400, rel=0.02)


def test_totals_of_a_synchronizer_that_was_restarted_and_lags_take_nothing_back() -> None:
    life = Life(0, WHOLE)
    ledger = Ledger([life])
    ledger.watch(100)
    before = booked(ledger.status)
    older = progress_of([life], 80).learners
    assert booked(ledger.look(101, learners=older)) == before
    ledger.look(110)
    assert ledger.seconds(0, "training") == pytest.approx(110, abs=HEARTBEAT + 2)


def test_of_many_sites_the_least_are_counted_under_no_name() -> None:
    booked_before = {(f"s{number}", "training"): 1000 + number for number in range(MAX_SITES_PER_LEARNER)}
    row = LearnerStatus(index=0, site="new", incarnation=1, pod_name="p", state="BackOff", reason="AppError")
    book = account(Book(booked_before), Look(row, row, (), True, 5000), Passed(seen_ms=5000))
    assert book.booked["", "training"] == 1000
    assert book.booked["new", "lost"] == 5000
    assert book.total_ms == sum(booked_before.values()) + 5000


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        ("Pending", "Creating", "pending"),
        ("Pending", "Unschedulable", "pending"),
        ("Pending", "SchedulingGated", "queued"),
        ("BackOff", "QuotaExceeded", "queued"),
        ("BackOff", "PodSecurityDenied", "pending"),
        ("BackOff", "Resumed", "pending"),
        ("BackOff", "AppError", "lost"),
        ("Parked", "OutOfMemory", "lost"),
        ("Succeeded", "Completed", "drain"),
    ],
)
def test_what_a_wanted_learner_without_a_process_waits_for(state: str, reason: str, expected: str) -> None:
    row = LearnerStatus(index=0, site="s", incarnation=1, pod_name="p", state=state, reason=reason)
    assert waiting_state(row).value == expected


# --- identities -------------------------------------------------------------------------------------------------------

parts = st.tuples(st.sampled_from(["train", "wait", "cut", "frozen", "asleep", "dead"]), st.integers(2, 90).map(float))
stories = st.lists(parts, min_size=1, max_size=6)
fleets = st.lists(stories, min_size=1, max_size=2)
some = settings(max_examples=40, deadline=None)
steps = st.lists(st.sampled_from([0.3, 1.0, 5.0, 17.0, 45.0]), min_size=5, max_size=25)
outages = st.lists(st.tuples(st.integers(25, 300), st.integers(5, 60)), max_size=2)


def ledger_of(stories: list[list[tuple[str, float]]], outages: list[tuple[int, int]]) -> Ledger:
    birth = [("pending", 5.0), ("starting", 5.0), ("train", 10.0)]
    lives = []
    for index, story in enumerate(stories):
        parts = [part for each in story for part in ([each, *birth] if each[0] == "dead" else [each])]
        lives.append(Life(index, [*birth, *parts, ("train", 500.0)]))
    if any(part.incarnation > 1 for life in lives for part in life.stretches):
        outages = []  # a replacement does not train before it is heard
    return Ledger(lives, away=[(begin, begin + seconds) for begin, seconds in outages])


def times_of(ledger: Ledger, steps: list[float]) -> list[float]:
    """When the operator looks; it always does when it starts an incarnation."""
    starts = [part.begin for life in ledger.lives for part in life.stretches if part.incarnation > 1]
    looks = list(accumulate(steps))
    return sorted({0.0, *looks, *(start for start in starts if start < looks[-1])})


@some
@given(fleets, steps, outages, st.data())
def test_states_partition_time_and_never_go_back(
    stories: list[list[tuple[str, float]]], steps: list[float], outages: list[tuple[int, int]], data: st.DataObject
) -> None:
    ledger = ledger_of(stories, outages)
    last: dict[tuple[int, str, str], int] = {}
    for at in times_of(ledger, steps):
        found = ledger.look(at, write=data.draw(st.booleans()))
        if not any(begin <= at < end for begin, end in ledger.away):  # else what was told since the last write is not
            for key, value in last.items():
                assert booked(found).get(key, 0) >= value, f"{key} went back at {at}"
            last = booked(found)
        for life in ledger.lives:
            assert total(found, life.index) == int(at)
        assert float(found.wanted_seconds) == len(ledger.lives) * int(at)
        shares = [float(share) for share in (found.accepted, found.capacity) if share]
        assert shares == sorted(shares), f"more was accepted than trained at {at}"
        assert not shares or shares[-1] <= 1


@some
@given(fleets, steps, outages)
def test_what_learners_have_trained_is_found_whenever_one_looks(
    stories: list[list[tuple[str, float]]], steps: list[float], outages: list[tuple[int, int]]
) -> None:
    ledger = ledger_of(stories, outages)
    at = max(life.end for life in ledger.lives) - 100  # all are heard
    for moment in times_of(ledger, [*steps, at]):
        ledger.look(min(moment, at))
    for life in ledger.lives:
        deaths = len({part.incarnation for part in life.stretches})
        trained = life.truth("train", "cut", until=at)
        unknown = sum(part.end - part.begin for part in life.stretches if part.what == "cut")
        assert ledger.seconds(life.index, "training") <= trained + 2 * HEARTBEAT * deaths
        assert ledger.seconds(life.index, "training") >= trained - 2 * HEARTBEAT * deaths - unknown - 2


@some
@given(fleets, steps, outages)
def test_a_log_that_is_replayed_gives_the_same(
    stories: list[list[tuple[str, float]]], steps: list[float], outages: list[tuple[int, int]]
) -> None:
    ledger = ledger_of(stories, outages)
    for at in times_of(ledger, steps):
        ledger.look(at)
    status = ledger.log[0][0]
    for _, progress, period in ledger.log:
        status = goodput_status(status, progress, STEP_TOKENS, period)
    assert status == ledger.status


@pytest.mark.parametrize("moved", [False, True], ids=["away still", "moved"])
def test_the_time_of_a_learner_whose_site_and_self_are_unheard_is_that_of_its_site(moved: bool) -> None:
    row = {"index": 0, "site": "far", "pod_name": "p", "incarnation": 1, "state": LearnerPhase.UNKNOWN.value}
    before = LearnerStatus.model_validate(row)
    new = {"site": "near", "incarnation": 2, "state": LearnerPhase.PENDING.value}
    after = LearnerStatus.model_validate(row | new) if moved else before
    look = Look(before, after, (), answered=True, heartbeat_ms=round(1000 * HEARTBEAT))
    assert account(Book(), look, Passed(seen_ms=7000)).booked == {("far", GoodputState.SITE_UNREACHABLE.value): 7000}

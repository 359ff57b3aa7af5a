"""The token ledger: trained = merged + overlap + discarded + in flight, always, for each Learner and fragment."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diloco_api.progress import TokenTotals
from diloco_trainer.algorithm.tokens import TokenLedger

NUMELS = [100, 300, 50]


def check_identity(ledger: TokenLedger, learners: list[tuple[int, int]]) -> None:
    for key in learners:
        for books in ledger.fragment_tokens(*key):
            in_flight = ledger.clock(*key) - books.covered
            assert in_flight >= 0
            assert ledger.clock(*key) == books.merged + books.overlap + sum(books.discarded.values()) + in_flight
    totals = ledger.totals()
    assert ledger.trained == totals.trained
    accounted = totals.merged + totals.overlap + sum(totals.discarded.values()) + totals.in_flight
    assert accounted == pytest.approx(totals.trained)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_identity_holds_at_every_instant_of_a_random_life(seed: int) -> None:
    rng = random.Random(seed)
    ledger, learners, live, merged = TokenLedger(NUMELS), [], {}, [0] * len(NUMELS)
    for index in range(3):
        ledger.admitted(index, 0)
        learners.append((index, 0))
        live[index] = (0, 0)  # incarnation, token clock
    for _ in range(80):
        index = rng.choice(list(live))
        incarnation, clock = live[index]
        action = rng.choice(["train", "train", "merge", "merge", "refuse", "gone", "snapshot"])
        if action == "train":
            clock += rng.randint(0, 50)
            live[index] = (incarnation, clock)
            if rng.random() < 0.7:
                ledger.heard(index, incarnation, clock - rng.choice([0, 0, 30]))
        elif action in ("merge", "refuse"):
            fragment = rng.randrange(len(NUMELS))
            covered = ledger.fragment_tokens(index, incarnation)[fragment].covered
            at_stage = rng.randint(covered, clock)
            c_tokens = rng.randint(0, at_stage - covered)
            if action == "merge":
                ledger.merged(index, incarnation, fragment, at_stage, c_tokens)
                merged[fragment] += c_tokens
            else:
                ledger.discarded(index, incarnation, fragment, at_stage, c_tokens, rng.choice(["NonFinite", "Dropped"]))
        elif action == "gone":
            frontier = min(books.covered for books in ledger.fragment_tokens(index, incarnation))
            assert ledger.gone(index, incarnation, "Gone") == frontier
            again = rng.random() < 0.3
            live[index] = (incarnation, clock + rng.randint(0, 20)) if again else (incarnation + 1, 0)
            ledger.admitted(index, live[index][0])
            learners += [] if again else [(index, incarnation + 1)]
        else:
            copy = TokenLedger.from_json(json.loads(json.dumps(ledger.to_json())))
            assert copy.to_json() == ledger.to_json()
            ledger = copy
        check_identity(ledger, learners)
    weighted = sum(numel * tokens for numel, tokens in zip(NUMELS, merged, strict=True)) / sum(NUMELS)
    assert ledger.totals().merged == pytest.approx(weighted)


def ledger_of(*numels: int) -> TokenLedger:
    ledger = TokenLedger(numels)
    ledger.admitted(0, 0)
    return ledger


def test_overlap_is_what_was_trained_between_stage_and_adoption() -> None:
    ledger = ledger_of(10)
    ledger.merged(0, 0, 0, clock_at_stage=100, c_tokens=100)
    ledger.heard(0, 0, 130)  # adopted at 120: 20 tokens overwritten
    ledger.merged(0, 0, 0, clock_at_stage=220, c_tokens=100)
    assert ledger.totals() == TokenTotals(trained=220, merged=200, overlap=20)


def test_late_adoption_that_keeps_the_steps_since_the_stage_books_no_overlap() -> None:
    ledger = ledger_of(10)
    ledger.merged(0, 0, 0, clock_at_stage=100, c_tokens=100)
    ledger.merged(0, 0, 0, clock_at_stage=220, c_tokens=120)
    assert ledger.totals().overlap == 0


def test_refused_tokens_are_discarded_by_reason() -> None:
    ledger = ledger_of(10)
    ledger.discarded(0, 0, 0, 100, 90, "NonFinite")
    ledger.discarded(0, 0, 0, 150, 40, "Dropped")
    assert ledger.totals() == TokenTotals(trained=150, overlap=20, discarded={"Dropped": 40, "NonFinite": 90})


def test_no_clock_is_believed_beyond_the_limit_and_what_lies_there_is_never_overlap() -> None:
    ledger = ledger_of(10)
    assert ledger.discarded(0, 0, 0, 300, 290, "BeyondLease", limit=100) == 90
    assert ledger.totals() == TokenTotals(trained=100, overlap=10, discarded={"BeyondLease": 90})
    ledger.merged(0, 0, 0, 360, 60)
    assert ledger.totals() == TokenTotals(trained=360, merged=60, overlap=10, discarded={"BeyondLease": 290})
    ledger.merged(0, 0, 0, 400, 30)
    assert ledger.totals().overlap == 20


def test_a_stretch_that_begins_beyond_the_limit_loses_nothing_yet() -> None:
    ledger = ledger_of(10)
    assert ledger.discarded(0, 0, 0, 300, 100, "BeyondLease", limit=150) == 0
    assert ledger.clock(0, 0) == 150


def test_totals_weigh_fragments_by_their_parameters() -> None:
    ledger = ledger_of(100, 300)
    ledger.heard(0, 0, 80)
    ledger.merged(0, 0, 1, 80, 80)
    assert ledger.totals() == TokenTotals(trained=80, merged=60, in_flight=20)


def test_heartbeats_out_of_order_do_not_turn_the_clock_back() -> None:
    ledger = ledger_of(10)
    ledger.heard(0, 0, 80)
    ledger.heard(0, 0, 40)
    assert ledger.clock(0, 0) == 80


def test_contribution_is_proof_of_training_before_the_heartbeat() -> None:
    ledger = ledger_of(10)
    ledger.merged(0, 0, 0, 70, 70)
    assert ledger.clock(0, 0) == 70


def test_frontier_is_the_least_settled_stage_and_what_is_beyond_is_repeated() -> None:
    ledger = ledger_of(100, 100)
    ledger.merged(0, 0, 0, 40, 40)
    ledger.merged(0, 0, 1, 60, 60)
    ledger.merged(0, 0, 1, 100, 30)  # 70 .. 100, after an overlap of 10
    ledger.heard(0, 0, 130)
    assert ledger.frontier(0, 0) == 40
    assert ledger.gone(0, 0, "Unheard") == 40
    totals = ledger.totals()
    assert totals.repeated == (20 + 30) / 2  # merged by fragment 1 beyond 40
    assert totals.discarded == {"Unheard": (90 + 30) / 2}
    assert totals.in_flight == 0


def test_learner_that_settled_nothing_in_one_fragment_has_its_frontier_at_zero() -> None:
    ledger = ledger_of(100, 100)
    ledger.merged(0, 0, 0, 40, 40)
    assert ledger.gone(0, 0, "Left") == 0
    assert ledger.totals().repeated == 20


def test_what_nobody_will_do_again_is_not_repeated() -> None:
    ledger = ledger_of(100, 100)
    ledger.merged(0, 0, 0, 40, 40)
    ledger.gone(0, 0, "Left", leased_again=False)
    assert ledger.totals() == TokenTotals(trained=40, merged=20, discarded={"Left": 20})


def test_giving_up_twice_counts_once() -> None:
    ledger = ledger_of(100)
    ledger.heard(0, 0, 50)
    assert ledger.gone(0, 0, "Left") == 0
    before = ledger.totals()
    ledger.gone(0, 0, "Left")
    ledger.heard(0, 0, 90)
    assert ledger.totals() == before


def test_stretch_before_a_new_admission_is_discarded_not_overlap() -> None:
    ledger = ledger_of(100)
    ledger.merged(0, 0, 0, 50, 50)
    ledger.gone(0, 0, "Unheard")
    ledger.admitted(0, 0)
    ledger.merged(0, 0, 0, 120, 30)  # 50 .. 90 was trained while it was given up
    assert ledger.totals() == TokenTotals(trained=120, merged=80, discarded={"Gone": 40})
    ledger.merged(0, 0, 0, 160, 30)
    assert ledger.totals().overlap == 10


def test_giving_up_again_after_a_new_admission_repeats_nothing_more() -> None:
    ledger = ledger_of(100, 100)
    ledger.merged(0, 0, 0, 40, 40)
    ledger.heard(0, 0, 50)
    ledger.gone(0, 0, "Unheard")
    ledger.admitted(0, 0)
    ledger.heard(0, 0, 70)
    assert ledger.gone(0, 0, "Unheard") == 50
    assert ledger.totals() == TokenTotals(trained=70, merged=20, discarded={"Unheard": 50}, repeated=20)


def test_admitting_again_while_it_lives_changes_nothing() -> None:
    ledger = ledger_of(100)
    ledger.merged(0, 0, 0, 50, 50)
    ledger.admitted(0, 0)
    assert ledger.totals() == TokenTotals(trained=50, merged=50)


@pytest.mark.parametrize(("clock", "c_tokens"), [(90, 100), (120, 30), (50, 0), (100, -1)])
def test_settling_the_same_tokens_twice_is_refused(clock: int, c_tokens: int) -> None:
    ledger = ledger_of(10)
    ledger.merged(0, 0, 0, 100, 100)
    before = ledger.to_json()
    with pytest.raises(ValueError, match="Learner 0, fragment 0"):
        ledger.merged(0, 0, 0, clock, c_tokens)
    assert ledger.to_json() == before


def test_strangers_and_closed_books_are_refused() -> None:
    ledger = ledger_of(10)
    with pytest.raises(ValueError, match="incarnation 1 of Learner 0 was never admitted"):
        ledger.heard(0, 1, 5)
    ledger.gone(0, 0, "Left")
    with pytest.raises(ValueError, match="books are closed"):
        ledger.merged(0, 0, 0, 5, 5)
    with pytest.raises(ValueError, match="parameters"):
        TokenLedger([])


def test_merged_stretches_below_the_frontier_are_forgotten() -> None:
    ledger = ledger_of(10, 10)
    for turn in range(1, 200):
        for fragment in range(2):
            ledger.merged(0, 0, fragment, 10 * turn, 10)
    assert all(len(books.recent) <= 1 for books in ledger.fragment_tokens(0, 0))

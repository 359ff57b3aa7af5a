"""The work pool: each sequence of a pass is leased once, the budget is kept, fixed units never depend on timing."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diloco_trainer.algorithm.spans import WorkRange, by_pass, cut, joined, length
from diloco_trainer.algorithm.work import DATA_EXHAUSTED, TOKEN_BUDGET_REACHED, PoolConfig, WorkPool, new_pool

SEQUENCE = 4  # tokens


def config(
    num_sequences: int = 1000,
    budget_sequences: int = 400,
    max_passes: int | None = None,
    synchronous: bool = False,
    replicas: int = 2,
    batch: int = 5,
) -> PoolConfig:
    return PoolConfig(
        num_sequences=num_sequences,
        sequence_tokens=SEQUENCE,
        budget_tokens=budget_sequences * SEQUENCE - 1,  # the last sequence may be short
        max_passes=max_passes,
        synchronous=synchronous,
        replicas=replicas,
        batch_sequences=batch,
    )


def positions(ranges: tuple[WorkRange, ...]) -> list[tuple[int, int]]:
    return [(item.pass_number, place) for item in ranges for place in range(item.start, item.stop)]


def take(
    pool: WorkPool, index: int, incarnation: int = 0, ahead: int = 10**6, live: int = 1, remaining: int = 0
) -> tuple[WorkPool, list[tuple[int, int]], bool]:
    pool, ranges, exhausted = pool.grant(index, incarnation, remaining, 5, 10**6, live, ahead)
    return pool, positions(ranges), exhausted


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), synchronous=st.booleans())
def test_each_sequence_is_leased_once_but_for_counted_repetitions_and_the_budget_is_kept(
    seed: int, synchronous: bool
) -> None:
    rng = random.Random(seed)
    setup = config(rng.randint(20, 200), rng.randint(20, 400), rng.choice([None, 2]), synchronous, 3, rng.randint(1, 6))
    pool, refilled = new_pool(setup), 0
    waiting: list[tuple[int, int]] = []  # given back, in no particular order
    incarnations = [0, 0, 0]
    held: list[list[tuple[int, int]]] = [[], [], []]  # leased to the present incarnation, in order
    clocks, settled = [0, 0, 0], [0, 0, 0]  # of those trained; of those settled
    ever: set[tuple[int, int]] = set()
    for _ in range(120):
        index = rng.randrange(3)
        action = rng.choice(["lease", "lease", "train", "train", "settle", "gone", "refill", "snapshot"])
        if action == "lease":
            batch, ahead = setup.batch_sequences, rng.choice([3, 20, 10**6])
            remaining = len(held[index]) - clocks[index]
            pool, ranges, exhausted = pool.grant(
                index, incarnations[index], remaining, batch, 10**6, rng.randint(1, 3), ahead
            )
            for item in positions(ranges):
                if item in waiting:
                    waiting.remove(item)
                else:
                    assert item not in ever
                ever.add(item)
                held[index].append(item)
            assert exhausted == (not pool.has_work_for(index))
            assert pool.clock_limit_tokens(index, incarnations[index]) == len(held[index]) * SEQUENCE
        elif action == "train":
            clocks[index] = min(len(held[index]), clocks[index] + rng.choice([1, 2]) * setup.batch_sequences)
        elif action == "settle":
            settled[index] = clocks[index] - clocks[index] % setup.batch_sequences
            pool = pool.settled(index, incarnations[index], settled[index] * SEQUENCE)
        elif action == "gone":
            pool, ranges = pool.revoke(index, incarnations[index], settled[index] * SEQUENCE)
            assert positions(ranges) == held[index][settled[index] :]
            waiting += positions(ranges)
            assert pool.revoke(index, incarnations[index], 0) == (pool, ())
            incarnations[index] += 1
            held[index], clocks[index], settled[index] = [], 0, 0
        elif action == "refill":
            tokens = rng.randint(0, 100)
            refilled += tokens
            pool = pool.refill(tokens)
        else:
            copy = WorkPool.from_json(json.loads(json.dumps(pool.to_json())))
            assert copy == pool
            pool = copy
        limit = new_pool(setup).budget_sequences + refilled // SEQUENCE
        assert pool.leased - pool.returned <= pool.budget_sequences <= limit
        assert pool.leased - pool.returned == len(ever) - len(waiting)
        if setup.max_passes is not None:
            assert all(number < setup.max_passes for number, _ in ever)


def test_whoever_asks_a_free_pool_gets_the_next_sequences() -> None:
    pool = new_pool(config(budget_sequences=40))
    pool, first, _ = take(pool, 0, ahead=10)
    pool, second, _ = take(pool, 1, ahead=7)
    assert first == [(0, place) for place in range(10)]
    assert second == [(0, place) for place in range(10, 17)]


def test_lease_is_topped_up_to_half_a_share_at_least_a_batch_at_most_max_ahead() -> None:
    pool = new_pool(config(budget_sequences=400))
    assert len(take(pool, 0, live=4)[1]) == 50
    assert len(take(pool, 0, live=4, remaining=30)[1]) == 20
    assert len(take(pool, 0, live=4, remaining=60)[1]) == 0
    assert len(take(pool, 0, live=4, ahead=12)[1]) == 12
    assert len(take(pool, 0, live=1000)[1]) == 5
    assert len(take(pool, 0, live=1000, ahead=1)[1]) == 5
    assert len(pool.grant(0, 0, 0, 5, 3, 4, 100)[1]) == 1
    assert pool.grant(0, 0, 0, 5, 3, 4, 100)[1][0] == WorkRange(0, 0, 3)


def test_free_pool_gives_out_exactly_its_budget_and_the_last_batch_may_be_short() -> None:
    pool, total, sizes = new_pool(config(budget_sequences=43)), [], []
    exhausted = False
    while not exhausted:
        pool, got, exhausted = take(pool, len(sizes) % 3, ahead=5)
        total += got
        sizes.append(len(got))
    assert total == [(0, place) for place in range(43)]
    assert sizes[-1] == 3
    assert pool.exhausted_reason == TOKEN_BUDGET_REACHED
    assert take(pool, 0)[1:] == ([], True)


def test_short_data_are_repeated_pass_after_pass() -> None:
    pool = new_pool(config(num_sequences=7, budget_sequences=17))
    pool, ranges, _ = pool.grant(0, 0, 0, 17, 100, 1, 17)
    assert ranges == (WorkRange(0, 0, 7), WorkRange(1, 0, 7), WorkRange(2, 0, 3))


def test_passes_are_limited() -> None:
    pool = new_pool(config(num_sequences=7, budget_sequences=100, max_passes=2))
    pool, ranges, exhausted = pool.grant(0, 0, 0, 100, 100, 1, 100)
    assert length([(item.start, item.stop) for item in ranges]) == 14
    assert exhausted
    assert pool.exhausted_reason == DATA_EXHAUSTED
    pool, ranges = pool.revoke(0, 0, 10 * SEQUENCE)
    assert ranges == (WorkRange(1, 3, 7),)
    assert pool.has_work


def test_what_a_gone_learner_had_not_settled_is_leased_first() -> None:
    pool = new_pool(config())
    pool, first, _ = take(pool, 0, ahead=20)
    pool, _, _ = take(pool, 1, ahead=20)
    pool, back = pool.revoke(0, 0, frontier_tokens=12 * SEQUENCE + SEQUENCE // 2)
    assert positions(back) == first[12:]
    pool, again, _ = take(pool, 0, incarnation=1, ahead=10)
    assert again == [*first[12:], (0, 40), (0, 41)]
    assert pool.returned == 8


def test_newest_returned_work_is_leased_first() -> None:
    pool = new_pool(config())
    for index in range(2):
        pool, _, _ = take(pool, index, ahead=10)
    for index in range(2):
        pool, _ = pool.revoke(index, 0, 5 * SEQUENCE)
    assert take(pool, 2, ahead=10)[1] == [(0, place) for place in (*range(15, 20), *range(5, 10))]


def test_fixed_pool_takes_back_the_whole_unit_a_frontier_is_in() -> None:
    pool = new_pool(config(synchronous=True))
    pool, got, _ = take(pool, 0, ahead=15)
    for frontier in (5, 7, 9):
        assert positions(pool.revoke(0, 0, frontier * SEQUENCE)[1]) == got[5:]
        assert positions(pool.settled(0, 0, frontier * SEQUENCE).revoke(0, 0, 11 * SEQUENCE)[1]) == got[10:]


def test_fixed_units_are_given_back_in_front_of_those_given_back_before() -> None:
    pool = new_pool(config(synchronous=True))
    pool, got, _ = take(pool, 0, ahead=20)
    pool, _ = pool.revoke(0, 0, 5 * SEQUENCE)
    pool, _, _ = take(pool, 0, incarnation=1, ahead=10)
    pool, _ = pool.revoke(0, 1, 0)
    assert take(pool, 0, incarnation=2, ahead=20)[1][:15] == got[5:]


def test_frontier_beyond_pruned_work_gives_back_the_same() -> None:
    pool = new_pool(config())
    pool, first, _ = take(pool, 0, ahead=20)
    pruned = pool.settled(0, 0, 8 * SEQUENCE)
    assert pruned.clock_limit_tokens(0, 0) == pool.clock_limit_tokens(0, 0) == 20 * SEQUENCE
    assert positions(pruned.revoke(0, 0, 12 * SEQUENCE)[1]) == first[12:]


def test_incarnation_admitted_anew_goes_on_from_its_own_token_clock() -> None:
    pool = new_pool(config())
    pool, _, _ = take(pool, 0, ahead=20)
    pool, _ = pool.revoke(0, 0, 0)
    pool, ranges, _ = pool.grant(0, 0, 0, 5, 100, 1, 20, start_clock_tokens=30 * SEQUENCE)
    assert pool.clock_limit_tokens(0, 0) == 50 * SEQUENCE
    assert positions(pool.revoke(0, 0, 42 * SEQUENCE)[1]) == positions(ranges)[12:]
    assert positions(pool.revoke(0, 0, 10 * SEQUENCE)[1]) == positions(ranges)


def test_discarded_tokens_fill_the_pool_up_in_whole_sequences() -> None:
    pool = new_pool(config(budget_sequences=10))
    pool, _, exhausted = take(pool, 0)
    pool, _, exhausted = take(pool, 0)
    assert exhausted
    pool = pool.refill(SEQUENCE - 0.5)
    assert not pool.has_work
    pool = pool.refill(SEQUENCE + 0.5)
    assert pool.available == 2
    with pytest.raises(ValueError, match="refill"):
        pool.refill(-1)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_fixed_units_do_not_depend_on_when_and_how_often_anyone_asks(seed: int) -> None:
    rng = random.Random(seed)
    replicas, batch = rng.randint(1, 4), rng.randint(1, 4)
    setup = config(50, rng.randint(10, 100), None, True, replicas, batch)
    pool, got = new_pool(setup), [[] for _ in range(replicas)]
    incarnations, settled = [0] * replicas, [0] * replicas
    while pool.has_work:
        index = rng.randrange(replicas)
        pool, ranges, _ = pool.grant(index, incarnations[index], 0, batch, 10**6, replicas, rng.choice([1, 5, 30]))
        got[index] += positions(ranges)
        if rng.random() < 0.2:  # replaced: its successor takes over exactly what was not settled
            settled[index] = rng.randint(0, len(got[index]) // batch) * batch if incarnations[index] == 0 else 0
            if incarnations[index] == 0:
                pool, _ = pool.revoke(index, 0, settled[index] * SEQUENCE)
                incarnations[index] = 1
                got[index] = got[index][: settled[index]]
    assert setup.budget_steps == -(-setup.budget_sequences // (replicas * batch))
    for index in range(replicas):
        expected = []
        for step in range(setup.budget_steps):
            unit = step * replicas + index
            expected += [divmod(place, 50) for place in range(unit * batch, (unit + 1) * batch)]
        assert got[index] == expected


def test_fixed_pool_leases_whole_batches() -> None:
    pool = new_pool(config(synchronous=True))
    pool, got, _ = take(pool, 1, ahead=12)
    assert got == [(0, place) for start in (5, 15, 25) for place in range(start, start + 5)]
    pool, ranges, _ = pool.grant(1, 0, 8, 5, 10**6, 2, 12)
    assert positions(ranges) == [(0, place) for place in range(35, 40)]
    assert pool.grant(1, 0, 12, 5, 10**6, 2, 12)[1] == ()
    assert pool.grant(1, 0, 0, 5, 0, 2, 12)[1] == ()


def test_units_of_an_absent_index_wait_for_it_unless_they_are_shared() -> None:
    pool = new_pool(config(budget_sequences=60, synchronous=True, replicas=3, batch=5))  # 4 steps of 3 units
    pool, first, _ = take(pool, 2, ahead=10)
    pool, back = pool.revoke(2, 0, 5 * SEQUENCE)
    assert positions(back) == first[5:]
    for index in (0, 1):
        pool, got, exhausted = take(pool, index)
        assert len(got) == 20
        assert exhausted
    assert pool.has_work
    rejoined, got, exhausted = take(pool, 2, incarnation=1)
    assert got == [(0, place) for start in (25, 40, 55) for place in range(start, start + 5)]
    assert exhausted
    assert not rejoined.has_work
    shared = pool.share(2, live=[1, 0])  # units 5, 8, 11 by unit modulo 2
    shared, even, _ = take(shared, 0)
    shared, odd, _ = take(shared, 1)
    assert even == [(0, place) for place in range(40, 45)]
    assert odd == [(0, place) for start in (25, 55) for place in range(start, start + 5)]
    assert take(shared, 2, incarnation=1)[1:] == ([], True)
    assert not shared.has_work
    assert shared.leased - shared.returned == shared.budget_sequences == 60


def test_inherited_units_come_last_and_can_be_inherited_again() -> None:
    pool = new_pool(config(budget_sequences=45, synchronous=True, replicas=3, batch=5))  # 3 steps
    pool = pool.share(2, live=[1]).share(1, live=[0])
    pool, got, exhausted = take(pool, 0)
    units = [place // 5 for _, place in got[::5]]
    assert units == [0, 3, 6, 1, 2, 4, 5, 7, 8]
    assert exhausted


def test_sharing_needs_someone_to_take_and_nothing_leased() -> None:
    pool = new_pool(config(synchronous=True))
    with pytest.raises(ValueError, match="index 1"):
        pool.share(1, live=[1])
    pool, _, _ = take(pool, 1, ahead=5)
    with pytest.raises(ValueError, match="index 1"):
        pool.share(1, live=[0])


def test_refill_of_a_fixed_pool_adds_steps_of_all() -> None:
    pool = new_pool(config(budget_sequences=20, synchronous=True))  # 2 steps of 2 x 5
    for index in (0, 1):
        pool, _, _ = take(pool, index)
    pool = pool.refill(9 * SEQUENCE)
    assert not pool.has_work
    pool = pool.refill(SEQUENCE)
    assert [take(pool, index)[1] for index in (0, 1)] == [
        [(0, place) for place in range(20, 25)],
        [(0, place) for place in range(25, 30)],
    ]
    assert pool.budget_sequences == 30


def test_refill_of_a_fixed_pool_gives_nothing_to_an_index_that_is_shared() -> None:
    pool = new_pool(config(budget_sequences=20, synchronous=True)).share(1, live=[0])
    pool, got, _ = take(pool, 0)
    assert len(got) == 20
    pool = pool.refill(5 * SEQUENCE)
    assert (pool.available, pool.budget_sequences) == (5, 25)
    assert take(pool, 0)[1] == [(0, place) for place in range(20, 25)]
    assert take(pool, 1)[1:] == ([], True)


def test_fixed_pool_takes_only_steps_the_data_have() -> None:
    pool = new_pool(config(num_sequences=17, budget_sequences=1000, max_passes=2, synchronous=True))
    assert pool.budget_steps == 3
    assert pool.exhausted_reason == DATA_EXHAUSTED
    assert pool.refill(10**6).budget_steps == 3
    with pytest.raises(ValueError, match="the data make 9 sequences in 1 passes; one step of all 2 Learners takes 10"):
        new_pool(config(num_sequences=9, max_passes=1, synchronous=True))


def test_fixed_pool_whose_budget_is_met_says_so() -> None:
    assert new_pool(config(synchronous=True)).exhausted_reason == TOKEN_BUDGET_REACHED


def test_bad_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="no whole sequence"):
        new_pool(config(num_sequences=0))
    with pytest.raises(ValueError, match="index 2 has no units"):
        take(new_pool(config(synchronous=True)), 2)
    for wrong in ((-1, 5, 5, 1, 5), (0, 0, 5, 1, 5), (0, 5, -1, 1, 5), (0, 5, 5, 0, 5), (0, 5, 5, 1, -5)):
        with pytest.raises(ValueError, match="lease request"):
            new_pool(config()).grant(0, 0, *wrong)


def test_spans_are_cut_joined_and_split_by_pass() -> None:
    spans = ((3, 6), (6, 9), (20, 22))
    assert length(spans) == 8
    assert cut(spans, 4) == (((3, 6), (6, 7)), ((7, 9), (20, 22)))
    assert cut(spans, 0) == ((), spans)
    assert cut(spans, 99) == (spans, ())
    assert joined(spans) == ((3, 9), (20, 22))
    assert by_pass(((3, 9),), 4) == (WorkRange(0, 3, 4), WorkRange(1, 0, 4), WorkRange(2, 0, 1))

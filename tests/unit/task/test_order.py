"""The order of a pass."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diloco_trainer.task.order import PassOrder


@given(st.integers(0, 2**31 - 1), st.integers(0, 100), st.integers(1, 500))
def test_every_sequence_is_visited_exactly_once(seed: int, pass_index: int, count: int) -> None:
    order = PassOrder(seed, pass_index, count)
    assert sorted(order.sequence_at(position) for position in range(count)) == list(range(count))


def test_the_order_is_the_same_on_every_machine() -> None:
    order = PassOrder(7, 0, 1000)
    assert [order.sequence_at(position) for position in range(8)] == GOLDEN


def test_passes_and_seeds_have_orders_of_their_own() -> None:
    orders = [PassOrder(seed, number, 1000) for seed in (0, 1) for number in (0, 1)]
    firsts = [tuple(order.sequence_at(position) for position in range(20)) for order in orders]
    assert len(set(firsts)) == 4


def test_neighbours_do_not_stay_neighbours() -> None:
    order = PassOrder(0, 0, 10_000)
    visited = [order.sequence_at(position) for position in range(10_000)]
    steps = sum(abs(a - b) for a, b in itertools.pairwise(visited)) / 10_000
    assert steps == pytest.approx(10_000 / 3, rel=0.05)  # of a random order


def test_a_position_outside_the_pass_is_an_error() -> None:
    with pytest.raises(ValueError, match="outside a pass of 5"):
        PassOrder(0, 0, 5).sequence_at(5)


GOLDEN = [84, 260, 395, 217, 474, 849, 24, 994]

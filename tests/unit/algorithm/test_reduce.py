"""Merging: what Mean and RadialDirectional give, and that nothing but the contributions decides the bits."""

import itertools
import math
import random
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from diloco_api.sync_policy import MergeRule
from diloco_trainer.algorithm import reduce
from diloco_trainer.algorithm.fragments import Fragment, TensorSpec
from diloco_trainer.algorithm.reduce import merge, tree_norm, tree_norm_squared
from reference import arithmetic as reference

MEAN, RDA = MergeRule.MEAN, MergeRule.RADIAL_DIRECTIONAL


def fragment(others: int, embedding: int = 0, tail: int = 0) -> Fragment:
    tensors = (
        TensorSpec("w", (others,), False, 0),
        TensorSpec("embedding", (embedding,), True, None),
        TensorSpec("tail", (tail,), False, 1),
    )
    return Fragment(0, tensors)


def vectors(count: int, numel: int, seed: int = 0) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(numel, generator=rng) * 10.0 ** (place % 3 - 3) for place in range(count)]


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("rule", [MEAN, RDA])
def test_merge_gives_the_same_bits_for_every_order_of_arrival(rule: MergeRule) -> None:
    arrived = dict(zip([5, 0, 3, 2], vectors(4, 3000), strict=True))
    weight = {index: 1.0 + index / 3 for index in arrived}
    results = []
    for order in itertools.permutations(arrived):
        merged_in = sorted(order)  # the caller's duty: by index
        deltas = [arrived[index].clone() for index in merged_in]
        results.append(merge(rule, fragment(2000, 700, 300), deltas, [weight[index] for index in merged_in]))
    assert all(torch.equal(result.delta, results[0].delta) for result in results)
    assert all(result.norms == results[0].norms for result in results)


@pytest.mark.parametrize("rule", [MEAN, RDA])
def test_merge_gives_the_same_bits_on_any_number_of_threads(rule: MergeRule, threads: None) -> None:
    where, deltas = fragment(150_001, 60_000, 1003), vectors(3, 211_004)
    results = []
    for count in (1, 2, 1):
        torch.set_num_threads(count)
        results.append(merge(rule, where, deltas, [1.0, 2.5, 0.3]))
    assert all(torch.equal(result.delta, results[0].delta) for result in results)
    assert all(result.norms == results[0].norms for result in results)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 10**6), count=st.integers(1, 5), numel=st.integers(1, 400), rule=st.sampled_from([MEAN, RDA])
)
def test_merge_equals_the_reference_bit_for_bit(seed: int, count: int, numel: int, rule: MergeRule) -> None:
    rng = random.Random(seed)
    embedding = rng.randrange(numel + 1)
    others = rng.randrange(numel - embedding + 1)
    where = fragment(others, embedding, numel - embedding - others)
    deltas = vectors(count, numel, seed)
    if count > 1 and rng.random() < 0.3:
        deltas[rng.randrange(count)].zero_()
    weights = [rng.choice([1.0, 0.25, 3.7e5, rng.random()]) for _ in deltas]
    shape = reference.Shape(numel, [(start, stop) for start, stop in where.embedding_ranges])
    expected = reference.merge(rule.value, shape, deltas, weights)
    result = merge(rule, where, deltas, weights)
    assert torch.equal(result.delta, expected.delta)
    assert result.branch == expected.branch


def test_merge_leaves_the_contributions_as_they_are() -> None:
    deltas = vectors(3, 500)
    before = [delta.clone() for delta in deltas]
    for rule in (MEAN, RDA):
        merge(rule, fragment(400, 100), deltas, [1.0, 2.0, 3.0])
    assert all(torch.equal(delta, copy) for delta, copy in zip(deltas, before, strict=True))


def test_mean_weighs_by_share_of_the_sum() -> None:
    result = merge(MEAN, fragment(2), [torch.tensor([1.0, 0.0]), torch.tensor([0.0, 8.0])], [3.0, 1.0])
    assert result.delta.tolist() == [0.75, 2.0]
    assert result.branch == "mean"
    assert result.norms == ()


def test_only_the_ratio_of_weights_counts() -> None:
    deltas = vectors(3, 100)
    for rule in (MEAN, RDA):
        small = merge(rule, fragment(80, 20), deltas, [1.0, 2.0, 5.0])
        large = merge(rule, fragment(80, 20), deltas, [1e9, 2e9, 5e9])
        assert torch.equal(small.delta, large.delta)


def test_weight_zero_changes_nothing() -> None:
    deltas = vectors(3, 100)
    for rule in (MEAN, RDA):
        without = merge(rule, fragment(80, 20), deltas[:2], [1.0, 2.0])
        with_it = merge(rule, fragment(80, 20), deltas, [1.0, 2.0, 0.0])
        assert torch.equal(without.delta, with_it.delta)


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_rda_leaves_identical_deltas_unchanged(count: int) -> None:
    delta = vectors(1, 1000)[0]
    result = merge(RDA, fragment(900, 100), [delta] * count, [1.0 + place for place in range(count)])
    assert result.branch == "rda"
    assert torch.allclose(result.delta, delta, rtol=4 * 2.0**-23, atol=0.0)


@pytest.mark.parametrize("count", [2, 4, 8])
def test_rda_keeps_the_norm_of_orthogonal_deltas_where_the_mean_shrinks_it(count: int) -> None:
    deltas = [5.0 * row for row in torch.eye(count, 16)]
    kept = merge(RDA, fragment(16), deltas, [1.0] * count)
    shrunk = merge(MEAN, fragment(16), deltas, [1.0] * count)
    assert kept.branch == "rda"
    assert float(kept.delta.norm()) == pytest.approx(5.0, rel=1e-6)
    assert float(shrunk.delta.norm()) == pytest.approx(5.0 / math.sqrt(count), rel=1e-6)


def test_rda_length_is_the_weighted_mean_of_lengths() -> None:
    deltas = [torch.tensor([3.0, 0.0]), torch.tensor([9.0, 0.0])]
    result = merge(RDA, fragment(2), deltas, [2.0, 1.0])
    assert result.delta.tolist() == pytest.approx([5.0, 0.0])
    assert result.norms == (3.0, 9.0)


def test_embedding_tables_keep_the_mean_and_do_not_enter_the_lengths() -> None:
    where = fragment(4, 4)
    deltas = [torch.zeros(8), torch.zeros(8)]
    deltas[0][0], deltas[1][1] = 2.0, 2.0  # orthogonal outside the table
    deltas[0][4], deltas[1][5] = 100.0, 300.0
    result = merge(RDA, where, deltas, [1.0, 1.0])
    assert result.norms == (2.0, 2.0)
    assert result.delta[4:].tolist() == [50.0, 150.0, 0.0, 0.0]
    assert float(result.delta[:4].norm()) == pytest.approx(2.0, rel=1e-6)


def test_deltas_that_cancel_fall_back_to_the_mean() -> None:
    delta = vectors(1, 300)[0]
    almost = -delta * (1 + 1e-4)
    result = merge(RDA, fragment(300), [delta, almost], [1.0, 1.0])
    assert result.branch == "rda-fallback-mean"
    assert torch.equal(result.delta, merge(MEAN, fragment(300), [delta, almost], [1.0, 1.0]).delta)


def test_zero_delta_has_no_direction_but_shortens_the_mean_length() -> None:
    deltas = [torch.tensor([4.0, 0.0]), torch.zeros(2)]
    result = merge(RDA, fragment(2), deltas, [3.0, 1.0])
    assert result.branch == "rda"
    assert result.delta.tolist() == [3.0, 0.0]


def test_nothing_but_zero_deltas_merge_to_zero() -> None:
    result = merge(RDA, fragment(5, 5), [torch.zeros(10), torch.zeros(10)], [1.0, 1.0])
    assert result.branch == "mean"
    assert not bool(result.delta.any())


@pytest.mark.parametrize(
    ("deltas", "weights", "words"),
    [
        ([torch.zeros(4)], [1.0, 1.0], "1 deltas and 2 weights"),
        ([torch.zeros(3)], [1.0], "float32"),
        ([torch.zeros(4, dtype=torch.float64)], [1.0], "float32"),
        ([torch.zeros(4)], [0.0], "not all zero"),
        ([torch.zeros(4), torch.zeros(4)], [2.0, -1.0], "not negative"),
        ([torch.zeros(4)], [math.nan], "finite"),
        ([], [], "not all zero"),
    ],
)
def test_bad_arguments_are_refused(deltas: list[Tensor], weights: list[float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        merge(MEAN, fragment(4), deltas, weights)


def test_norm_is_the_norm() -> None:
    for numel in (0, 1, 3, 16_384, 16_385, 300_001):
        x = vectors(1, numel)[0]
        exact = math.fsum(value * value for value in x.tolist())
        assert tree_norm_squared(x) == pytest.approx(exact, rel=1e-14)
        assert tree_norm(x) == pytest.approx(math.sqrt(exact), rel=1e-14)


def test_norm_adds_in_the_documented_order() -> None:
    for x in vectors(6, 2 * reduce._TREE + 5):
        total = 0.0
        for start in range(0, x.numel(), reduce._TREE):
            squares = [value * value for value in x[start : start + reduce._TREE].tolist()]
            squares += [0.0] * (reduce._TREE - len(squares))
            while len(squares) > 1:
                half = len(squares) // 2
                squares = [first + second for first, second in zip(squares[:half], squares[half:], strict=True)]
            total += squares[0]
        assert tree_norm_squared(x) == total


def test_norm_does_not_depend_on_threads(threads: None) -> None:
    x = vectors(1, 1_000_003)[0]
    torch.set_num_threads(1)
    one = tree_norm_squared(x)
    torch.set_num_threads(2)
    assert tree_norm_squared(x) == one


def test_norm_of_numbers_whose_squares_overflow_fp32_is_finite() -> None:
    x = torch.full((1000,), 3e38)
    assert tree_norm(x) == pytest.approx(3e38 * math.sqrt(1000), rel=1e-6)
    assert math.isnan(tree_norm_squared(torch.tensor([1.0, math.nan])))
    assert tree_norm_squared(torch.tensor([1.0, math.inf])) == math.inf

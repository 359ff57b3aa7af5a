"""Invariants of the merge formulas and of the token weight (Decoupled DiLoCo, arXiv 2604.21428, section 3)."""

import math

import pytest
import torch

from reference import arithmetic
from reference.arithmetic import Shape


def vectors(*rows):
    return [torch.tensor(row, dtype=torch.float32) for row in rows]


@pytest.mark.parametrize("rule", ["Mean", "RadialDirectional"])
def test_identical_deltas_are_left_as_they_are(rule):
    delta = torch.randn(100, generator=torch.Generator().manual_seed(0))
    merged = arithmetic.merge(rule, Shape(100), [delta] * 4, [3.0, 1.0, 2.0, 2.0])
    torch.testing.assert_close(merged.delta, delta, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("count", [2, 4, 9])
def test_orthogonal_deltas_keep_their_norm_under_rda_and_lose_it_under_the_mean(count):
    deltas = list(5.0 * torch.eye(count))
    rda = arithmetic.merge("RadialDirectional", Shape(count), deltas, [1.0] * count)
    mean = arithmetic.merge("Mean", Shape(count), deltas, [1.0] * count)
    assert rda.branch == "rda"
    assert arithmetic.norm([rda.delta]) == pytest.approx(5.0, rel=1e-6)
    assert arithmetic.norm([mean.delta]) == pytest.approx(5.0 / math.sqrt(count), rel=1e-6)


def test_opposite_deltas_fall_back_to_the_mean():
    merged = arithmetic.merge("RadialDirectional", Shape(2), vectors([1.0, 2.0], [-1.0, -2.0]), [1.0, 1.0])
    assert merged.branch == "rda-fallback-mean"
    assert torch.equal(merged.delta, torch.zeros(2))


def test_a_zero_delta_has_no_direction_but_shortens_the_step():
    merged = arithmetic.merge("RadialDirectional", Shape(2), vectors([3.0, 4.0], [0.0, 0.0]), [1.0, 1.0])
    assert torch.equal(merged.delta, torch.tensor([1.5, 2.0]))


def test_zero_deltas_alone_merge_to_zero():
    merged = arithmetic.merge("RadialDirectional", Shape(2), vectors([0.0, 0.0], [0.0, 0.0]), [1.0, 2.0])
    assert torch.equal(merged.delta, torch.zeros(2))


def test_embedding_tables_take_the_mean_and_do_not_count_in_the_norms():
    shape = Shape(4, embedding=((1, 3),))
    assert shape.others == [(0, 1), (3, 4)]
    merged = arithmetic.merge(
        "RadialDirectional", shape, vectors([2.0, 100.0, -50.0, 0.0], [0.0, 0.0, 50.0, 2.0]), [1.0, 1.0]
    )
    assert torch.equal(merged.delta[1:3], torch.tensor([50.0, 0.0]))
    assert math.hypot(merged.delta[0], merged.delta[3]) == pytest.approx(2.0, rel=1e-6)


def test_twice_the_batch_at_equal_steps_weighs_four_times():
    assert arithmetic.token_weight(1600, 10) == 4 * arithmetic.token_weight(800, 10)


def test_the_weight_of_equal_batches_grows_with_tokens():
    assert arithmetic.token_weight(1600, 20) == 2 * arithmetic.token_weight(800, 10)
    assert arithmetic.token_weight(0, 0) == 0.0


@pytest.mark.parametrize("mu", [0.0, 0.9])
def test_the_outer_step_is_nesterov_of_torch(mu):
    """Equal within 4 ulp: torch's kernels may fuse the multiply and the add."""
    generator = torch.Generator().manual_seed(1)
    theta, momentum = torch.randn(200, generator=generator), torch.zeros(200)
    parameter = torch.nn.Parameter(theta.clone())
    optimizer = torch.optim.SGD([parameter], lr=0.7, momentum=mu, nesterov=mu > 0)
    for _ in range(20):
        delta = torch.randn(200, generator=generator)
        parameter.grad = delta.clone()
        optimizer.step()
        theta, momentum = arithmetic.outer_step(theta, momentum, delta, 0.7, mu)
    torch.testing.assert_close(theta, parameter.detach(), rtol=1e-5, atol=1e-6)


def test_rebasing_measures_a_delta_against_the_newer_value():
    base, local, first, second = vectors([4.0], [1.0], [-0.5], [0.25])
    now = base + first + second
    assert torch.equal(arithmetic.rebase(base - local, [first, second]), now - local)

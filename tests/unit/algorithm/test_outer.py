"""The outer step against torch's own, its identities, and the digest of what it makes."""

import hashlib
import struct
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from diloco_api.sync_policy import MergeRule
from diloco_trainer.algorithm.digest import anchor_digest
from diloco_trainer.algorithm.fragments import Fragment, TensorSpec
from diloco_trainer.algorithm.outer import outer_step
from diloco_trainer.algorithm.pseudo_gradient import adopt, adopt_late, pseudo_gradient
from diloco_trainer.algorithm.reduce import merge
from reference import arithmetic as reference

NUMEL = 300_007  # more than one chunk


def vectors(count: int, numel: int = NUMEL, seed: int = 0) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(numel, generator=rng) for _ in range(count)]


def ulps(value: Tensor, expected: Tensor, scale: Tensor) -> float:
    """Largest distance in units in the last place of `scale`."""
    unit = scale.view(torch.int32).bitwise_and(0x7F800000).view(torch.float32).double() * 2.0**-23
    return float(((value.double() - expected.double()).abs() / unit).max())


@pytest.mark.parametrize(("lr", "mu"), [(0.7, 0.9), (0.4, 0.9), (1.0, 0.0), (0.8, 0.95)])
def test_outer_step_is_torch_sgd_with_nesterov_within_four_ulp(lr: float, mu: float) -> None:
    theta = vectors(1)[0]
    momentum = torch.zeros_like(theta)
    theirs = torch.nn.Parameter(theta.clone())
    sgd = torch.optim.SGD([theirs], lr=lr, momentum=mu, nesterov=mu > 0)
    for delta in vectors(4, seed=1):
        before = theta.clone()
        with torch.no_grad():
            theirs.copy_(theta)  # one step at a time: 4 ulp each
        theirs.grad = delta.clone()
        sgd.step()
        outer_step(theta, momentum, delta, lr, mu)
        if mu > 0:
            buffer = sgd.state[theirs]["momentum_buffer"]
            assert ulps(momentum, buffer, torch.maximum(momentum.abs(), delta.abs())) <= 4
            buffer.copy_(momentum)
        moved = lr * (delta.abs() + mu * momentum.abs())
        assert ulps(theta, theirs.detach(), torch.maximum(before.abs(), moved)) <= 4


def test_outer_step_equals_the_formula_rounded_operation_by_operation() -> None:
    theta, momentum, delta = vectors(3)
    expected_theta, expected_momentum = reference.outer_step(theta, momentum, delta, 0.7, 0.9)
    copy = delta.clone()
    outer_step(theta, momentum, delta, 0.7, 0.9)
    assert torch.equal(theta, expected_theta)
    assert torch.equal(momentum, expected_momentum)
    assert torch.equal(delta, copy)


def test_outer_step_does_not_depend_on_threads(threads: None) -> None:
    results = []
    for count in (1, 2):
        torch.set_num_threads(count)
        theta, momentum, delta = vectors(3)
        outer_step(theta, momentum, delta, 0.7, 0.9)
        results.append((theta, momentum))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="shapes differ"):
        outer_step(torch.zeros(3), torch.zeros(3), torch.zeros(4), 0.7, 0.9)


def test_learning_rate_one_without_momentum_is_federated_averaging() -> None:
    """theta - mean(theta - local) is the mean of the locals within the roundings on the way."""
    theta, *local = vectors(5, 5000)
    where = Fragment(0, (TensorSpec("w", (5000,), False, 0),))
    merged = merge(MergeRule.MEAN, where, [pseudo_gradient(theta, x) for x in local], [1.0] * 4).delta
    new = theta.clone()
    outer_step(new, torch.zeros_like(theta), merged, 1.0, 0.0)
    average = torch.stack([x.double() for x in local]).mean(dim=0)
    largest = torch.stack([theta, *local]).abs().amax(dim=0)
    assert ulps(new, average, 2 * largest) <= 2


def test_one_learner_at_rate_one_gets_its_own_values_back_within_one_ulp() -> None:
    theta, local = vectors(2, 5000)
    new = theta.clone()
    outer_step(new, torch.zeros_like(theta), pseudo_gradient(theta, local), 1.0, 0.0)
    assert ulps(new, local, torch.maximum(theta.abs(), local.abs())) <= 1


def test_pseudo_gradient_descends() -> None:
    assert pseudo_gradient(torch.tensor([3.0]), torch.tensor([1.0])).tolist() == [2.0]


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
def test_adoption_blends_with_two_roundings(alpha: float) -> None:
    local, published, staged = vectors(3, 1000)
    copies = [tensor.clone() for tensor in (local, published, staged)]
    assert torch.equal(adopt(local, published, alpha), reference.blend(local, published, alpha))
    late = adopt_late(local, published, staged, alpha)
    assert torch.equal(late, reference.blend_late(local, published, staged, alpha))
    assert all(torch.equal(a, b) for a, b in zip((local, published, staged), copies, strict=True))


def test_alpha_zero_takes_the_published_values_whatever_was_local() -> None:
    local, published = torch.tensor([float("nan"), float("inf"), 1.0]), torch.tensor([-0.0, 2.0, 3.0])
    adopted = adopt(local, published, 0.0)
    assert torch.equal(adopted.view(torch.int32), published.view(torch.int32))
    adopted.zero_()
    assert published.tolist() == [0.0, 2.0, 3.0]


def test_late_adoption_keeps_the_steps_since_the_stage() -> None:
    staged, since, published = torch.tensor([1.0]), torch.tensor([0.25]), torch.tensor([5.0])
    assert adopt_late(staged + since, published, staged, 0.0).tolist() == [5.25]


def test_digest_is_of_epoch_fragment_version_and_little_endian_values() -> None:
    anchor = torch.tensor([1.0, -0.0, 3.5e-39])
    body = struct.pack("<QII3f", 7, 3, 12, 1.0, -0.0, 3.5e-39)
    assert anchor_digest(7, 3, 12, anchor) == hashlib.sha256(body).hexdigest()
    assert anchor_digest(7, 3, 12, torch.stack([anchor, anchor]).t()[:, 0]) == hashlib.sha256(body).hexdigest()
    others = [anchor_digest(8, 3, 12, anchor), anchor_digest(7, 4, 12, anchor), anchor_digest(7, 3, 13, anchor)]
    assert len({anchor_digest(7, 3, 12, anchor), anchor_digest(7, 3, 12, anchor.abs()), *others}) == 5
    assert anchor_digest(0, 0, 0, torch.zeros(0)) == hashlib.sha256(bytes(16)).hexdigest()

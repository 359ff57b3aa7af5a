"""The product's codecs, merge, outer step, blends and digest against the naive writings, bit for bit.

Trajectories compare whole runs; where one differs, this table says which formula it was.
"""

import struct

import pytest
import torch

from diloco_api.sync_policy import Codec, MergeRule, Rounding
from diloco_trainer.algorithm import outer, pseudo_gradient, reduce, residual
from diloco_trainer.algorithm.codec import make_codec
from diloco_trainer.algorithm.digest import anchor_digest
from diloco_trainer.algorithm.fragments import Fragment, TensorSpec
from reference import arithmetic, codecs
from reference.arithmetic import Shape

NUMEL = 3 * 256 + 77


def vector(kind, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(NUMEL, generator=generator)
    return {
        "gaussian": x,
        "heavy tails": x * torch.exp(3 * torch.randn(NUMEL, generator=generator)),
        "tiny": x * 2.0**-120,
        "zeros": torch.zeros(NUMEL),
        "constant": torch.full((NUMEL,), -0.3),
        "ties": (x * 14).round() / 2,
        "empty": x[:0],
    }[kind]


def bits(x):
    return x.contiguous().view(torch.int32).tolist()


def draws(seed, numel):
    """The random bits of one contribution as the codecs draw them: 16 per value, of whole blocks."""
    words = torch.empty((-(-numel // 256) * 256) // 4, dtype=torch.int64)
    words.random_(-(2**63), None, generator=torch.Generator().manual_seed(seed))
    return [1 - (n + 32768 + 0.5) / 65536 for n in words.view(torch.int16)[:numel].tolist()]


@pytest.mark.parametrize("values", ["gaussian", "heavy tails", "tiny", "zeros", "constant", "ties", "empty"])
@pytest.mark.parametrize("kind", [kind.value for kind in Codec])
def test_bodies_and_their_meaning_are_those_of_the_naive_codec(kind, values):
    x, codec = vector(values), make_codec(Codec(kind))
    if kind == "fp16" and values == "heavy tails":
        x = x.clamp(-6e4, 6e4)
    body = codec.encode(x, Rounding.NEAREST, None)
    assert bytes(body.numpy()) == codecs.encode(kind, x)
    assert bits(codec.decode(body, x.numel())) == bits(codecs.decode(kind, bytes(body.numpy()), x.numel()))


@pytest.mark.parametrize("values", ["gaussian", "heavy tails", "ties", "constant"])
@pytest.mark.parametrize("kind", ["int8", "int4", "e3m0"])
def test_stochastic_rounding_is_that_of_the_naive_codec(kind, values):
    x, codec = vector(values), make_codec(Codec(kind))
    body = codec.encode(x, Rounding.STOCHASTIC, torch.Generator().manual_seed(5))
    assert bytes(body.numpy()) == codecs.encode(kind, x, draws(5, x.numel()))


@pytest.mark.parametrize("rule", [rule.value for rule in MergeRule])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_merges_are_those_of_the_naive_formula(rule, count):
    specs = tuple(
        TensorSpec(name, (size,), is_embedding=name == "table", layer=None)
        for name, size in (("before", 100), ("table", 300), ("after", NUMEL - 400))
    )
    deltas = [vector("gaussian", seed) for seed in range(count - 1)] + [vector("heavy tails", 9)]
    weights = [float(7 + 3 * m * m) for m in range(count)]
    merged = reduce.merge(MergeRule(rule), Fragment(0, specs), deltas, weights)
    wanted = arithmetic.merge(rule, Shape(NUMEL, ((100, 400),)), deltas, weights)
    assert (merged.branch, bits(merged.delta)) == (wanted.branch, bits(wanted.delta))


def test_the_outer_step_is_the_naive_formula():
    theta, momentum = vector("gaussian", 1), torch.zeros(NUMEL)
    wanted = theta.clone(), momentum.clone()
    for seed in range(5):
        delta = vector("heavy tails", seed)
        outer.outer_step(theta, momentum, delta, 0.7, 0.9)
        wanted = arithmetic.outer_step(*wanted, delta, 0.7, 0.9)
        assert (bits(theta), bits(momentum)) == (bits(wanted[0]), bits(wanted[1]))


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.3])
def test_adoptions_are_the_naive_formulas(alpha):
    local, published, staged = (vector("gaussian", seed) for seed in range(3))
    assert bits(pseudo_gradient.adopt(local, published, alpha)) == bits(arithmetic.blend(local, published, alpha))
    late = pseudo_gradient.adopt_late(local, published, staged, alpha)
    assert bits(late) == bits(arithmetic.blend_late(local, published, staged, alpha))


def test_the_residual_is_what_the_naive_codec_lost_in_bf16():
    x, codec = vector("gaussian"), make_codec(Codec.INT4)
    decoded = codec.decode(codec.encode(x, Rounding.NEAREST, None), NUMEL)
    feedback = residual.ErrorFeedback().opened(x, decoded).settle(residual.Settled.MERGED)
    assert bits(feedback.residual.float()) == bits(codecs.round_bf16(x - codecs.through("int4", x)))


def test_the_digest_covers_epoch_fragment_version_and_values():
    x = vector("gaussian")
    assert anchor_digest(3, 1, 7, x) == arithmetic.digest(3, 1, 7, x)
    assert len(struct.pack("<QII", 3, 1, 7)) == 16

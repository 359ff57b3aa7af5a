"""Cosine, error and gain of the 4-bit codecs on a million values: figures of a simulation of the formats."""

import pytest
import torch
from torch import Tensor

from diloco_api.sync_policy import Codec, Rounding
from diloco_trainer.algorithm.codec import make_codec

NUMEL = 1_000_000


@pytest.fixture(scope="module")
def vectors() -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(11)
    normal = torch.randn(4, NUMEL, generator=rng)
    return {"gaussian": normal[0], "student t(3)": normal[0] / (normal[1:] ** 2).mean(dim=0).sqrt()}


@pytest.mark.parametrize(
    ("name", "kind", "rounding", "cosine", "error", "gain"),
    [
        ("gaussian", Codec.E3M0, Rounding.NEAREST, 0.981, 0.195, 0.965),
        ("gaussian", Codec.E3M0, Rounding.STOCHASTIC, 0.962, 0.283, 1.000),
        ("gaussian", Codec.INT4, Rounding.NEAREST, 0.992, 0.126, 1.000),
        ("gaussian", Codec.INT4, Rounding.STOCHASTIC, 0.984, 0.179, 1.000),
        ("student t(3)", Codec.E3M0, Rounding.NEAREST, 0.985, 0.172, 0.976),
        ("student t(3)", Codec.E3M0, Rounding.STOCHASTIC, 0.970, 0.250, 1.000),
        ("student t(3)", Codec.INT4, Rounding.NEAREST, 0.964, 0.274, 0.987),
        ("student t(3)", Codec.INT4, Rounding.STOCHASTIC, 0.924, 0.415, 1.000),
    ],
)
def test_four_bit_codecs_keep_the_direction(
    vectors: dict[str, Tensor], name: str, kind: Codec, rounding: Rounding, cosine: float, error: float, gain: float
) -> None:
    x, codec = vectors[name], make_codec(kind)
    decoded = codec.decode(codec.encode(x, rounding, torch.Generator().manual_seed(3)), NUMEL).double()
    x = x.double()
    inner = float(decoded @ x)
    assert inner / float(decoded.norm() * x.norm()) == pytest.approx(cosine, abs=0.004)
    assert float((decoded - x).norm() / x.norm()) == pytest.approx(error, abs=0.02)
    assert inner / float(x @ x) == pytest.approx(gain, abs=0.006)

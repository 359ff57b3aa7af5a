"""The naive codecs on values worked out by hand and against torch's own casts."""

import struct

import pytest
import torch

from reference import codecs


def test_a_bf16_scale_is_rounded_up_and_stays_when_it_is_exact():
    assert codecs.from_bf16(codecs.bf16_bits_up(1.0)) == 1.0
    assert codecs.from_bf16(codecs.bf16_bits_up(1.001)) == 1.0078125
    assert codecs.bf16_bits_up(0.0) == 0


def test_rounding_to_bf16_and_fp16_is_that_of_torch():
    x = torch.randn(5000, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 4, 5000)
    assert torch.equal(codecs.through("bf16", x), x.to(torch.bfloat16).float())
    assert torch.equal(codecs.through("fp16", x), x.to(torch.float16).float())
    assert torch.equal(codecs.through("fp32", x), x)


def test_int4_packs_the_first_value_into_the_low_nibble():
    body = codecs.encode("int4", torch.tensor([7.0, -7.0, 2.4, -2.6, 0.0]))
    assert struct.unpack("<H", body[:2])[0] == codecs.bf16_bits(1.0)
    assert body[2:] == bytes([0x7 | 0x9 << 4, 0x2 | 0xD << 4, 0x0])
    assert codecs.decode("int4", body, 5).tolist() == [7.0, -7.0, 2.0, -3.0, 0.0]


def test_int8_holds_127_levels_on_each_side():
    x = torch.tensor([127.0, -127.0, 63.4, -0.5, 1.5])
    assert codecs.decode("int8", codecs.encode("int8", x), 5).tolist() == [127.0, -127.0, 63.0, 0.0, 2.0]


def test_e3m0_holds_zero_and_seven_powers_of_two():
    x = torch.tensor([4.0, -2.9, 3.1, 0.07, -0.0624, 0.03, -0.03])
    assert codecs.decode("e3m0", codecs.encode("e3m0", x), 7).tolist() == [4.0, -2.0, 4.0, 0.0625, -0.0625, 0.0, 0.0]


def test_e3m0_rounds_stochastically_in_proportion_to_the_distance():
    x = torch.tensor([4.0, 2.5, 2.5, -2.5])
    body = codecs.encode("e3m0", x, draws=[0.1, 0.24, 0.26, 0.24])
    assert codecs.decode("e3m0", body, 4).tolist() == [4.0, 4.0, 2.0, -4.0]


@pytest.mark.parametrize("kind", ["int8", "int4", "e3m0"])
@pytest.mark.parametrize("numel", [0, 1, 255, 256, 257, 600])
def test_a_body_is_one_scale_per_block_and_its_codes(kind, numel):
    x = torch.randn(numel, generator=torch.Generator().manual_seed(numel))
    blocks = -(-numel // 256)
    codes = numel if kind == "int8" else -(-numel // 2)
    assert len(codecs.encode(kind, x)) == 2 * blocks + codes
    assert codecs.through(kind, x).shape == (numel,)


@pytest.mark.parametrize(("kind", "share"), [("int8", 0.51 / 127), ("int4", 0.51 / 7)])
def test_the_error_of_a_level_is_half_a_scale(kind, share):
    x = torch.randn(2560, generator=torch.Generator().manual_seed(3))
    largest = x.view(10, 256).abs().amax(1, keepdim=True)
    error = (codecs.through(kind, x) - x).abs().view(10, 256)
    assert bool((error <= 1.01 * share * largest).all())


@pytest.mark.parametrize("kind", ["int8", "int4", "e3m0"])
def test_zeros_stay_zeros(kind):
    assert torch.equal(codecs.through(kind, torch.zeros(300)), torch.zeros(300))

"""e3m0, the 4-bit float of Streaming DiLoCo (arXiv 2501.18512, section 3): a sign, a power of two, no mantissa.

The paper gives no scale, rounding rule or zero; this is ours. Code = sign bit 8 | k, k in 0..7: k = 0 is zero, else
scale * 2^-(7 - k), so the largest magnitude of a block is (nearly) the scale. Code 8, "minus zero", is never encoded
and decodes as -0.0.

Magnitudes are mapped to a coordinate that is k at each level and linear between neighbours. The bits of a float are
just that coordinate above 2^-6 (exponent, then mantissa); below, those of the value plus 2^-6 are, and they are the
greater of the two there. Adding a half
(nearest, ties away from zero) or a random fraction (stochastic, unbiased up to 2^-17 of the distance) and cutting the
fraction off rounds.

Bound: nearest max(scale / 128, |x| / 3): half of the distance 2^-6 * scale next to zero, else a third, reached in the
middle between two powers of two. Stochastic max(scale / 64, |x|). Each times 1 + 2^-20, the division's rounding.
"""

import torch
from torch import Tensor

from diloco_api.sync_policy import Codec, Rounding
from diloco_trainer.algorithm.codec_base import random_bits
from diloco_trainer.algorithm.codec_block import BlockCodec

_SMALLEST = 2.0**-6  # level k = 1
_ORIGIN = 120 << 23  # bits of 2^-7: exponent - 120 = k
_FRACTION = 23  # bits of the coordinate's fraction
_SIGNS = -0x80000000 + 0x8000
_EXPONENTS = 0x03800380


class E3M0Codec(BlockCodec):
    def __init__(self) -> None:
        super().__init__(Codec.E3M0, bits_per_value=4, levels=1.0, worst_code=1.0)

    def _quantise(self, steps: Tensor, rounding: Rounding, generator: torch.Generator | None, codes: Tensor) -> None:
        sign = steps.view(torch.int32).bitwise_right_shift(28).to(torch.int8)  # bit 3
        size = steps.abs_()
        coordinate = size.mul(0.5).add_(0.5 * _SMALLEST)  # half of size + 2^-6: its bits, one exponent lower
        level = torch.maximum(coordinate, size, out=coordinate).view(torch.int32)
        if rounding is Rounding.NEAREST:
            level.sub_(_ORIGIN - (1 << (_FRACTION - 1))).bitwise_right_shift_(_FRACTION)
        else:
            noise = random_bits(steps.numel(), generator, steps.device).to(torch.int32)  # -2^15 .. 2^15 - 1
            level.add_(noise.bitwise_left_shift_(_FRACTION - 16))
            level.sub_(_ORIGIN - (1 << (_FRACTION - 1)) - (1 << (_FRACTION - 17)))  # now + within (0, 1)
            level.bitwise_right_shift_(_FRACTION).clamp_(max=7)
        codes.copy_(level)
        codes.bitwise_or_(sign.bitwise_and_(torch.neg(codes)).bitwise_and_(8))  # bit 3 of -k is set unless k = 0

    def _dequantise(self, body: Tensor, steps: Tensor) -> None:
        pairs = body.to(torch.int32)  # to two bf16 numbers: exponent k, so that k = 0 is zero, and the sign
        sign = pairs.mul((1 << 12) + (1 << 24)).bitwise_and_(_SIGNS)  # a product is a sum of shifts
        bits = pairs.mul_((1 << 7) + (1 << 19)).bitwise_and_(_EXPONENTS).bitwise_or_(sign)
        steps.copy_(bits.view(torch.bfloat16)[: steps.numel()]).mul_(2.0**120)

    def _bound(self, size: Tensor, scale: Tensor, rounding: Rounding) -> Tensor:
        small, relative = (2.0**-7, 1.0 / 3.0) if rounding is Rounding.NEAREST else (2.0**-6, 1.0)
        return torch.maximum(scale * small, size * relative).mul_(1.0 + 2.0**-20)

"""e3m0, the 4-bit float of Streaming DiLoCo (arXiv 2501.18512, section 3): a sign, a power of two, no mantissa.

The paper gives no scale, rounding rule or zero; this is ours. Code = sign bit 8 | k, k in 0..7: k = 0 is zero, else
scale * 2^-(7 - k), so the largest magnitude of a block is (nearly) the scale. Code 8, "minus zero", is never encoded
and decodes as -0.0.

Magnitudes are mapped to a coordinate that is k at each level and linear between neighbours. The bits of a float are
just that coordinate above 2^-6 (exponent, then mantissa); below, those of the value plus 2^-6 are. Adding a half
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


class E3M0Codec(BlockCodec):
    def __init__(self) -> None:
        super().__init__(Codec.E3M0, bits_per_value=4, levels=1.0, worst_code=1.0)

    def _quantise(self, steps: Tensor, rounding: Rounding, generator: torch.Generator | None, codes: Tensor) -> None:
        size = steps.abs()
        near_zero = size.add(_SMALLEST).view(torch.int32).sub_(_ORIGIN + (1 << _FRACTION))
        level = torch.maximum(near_zero, size.view(torch.int32).sub_(_ORIGIN), out=near_zero)
        if rounding is Rounding.NEAREST:
            level.add_(1 << (_FRACTION - 1))
        else:
            noise = random_bits(steps.numel(), generator, steps.device).to(torch.int32).add_(1 << 15)  # 0 .. 65535
            level.add_(noise.bitwise_left_shift_(_FRACTION - 16)).add_(1 << (_FRACTION - 17))
        level.bitwise_right_shift_(_FRACTION).clamp_(max=7)
        sign = steps.view(torch.int32).bitwise_right_shift_(28).bitwise_and_(level.neg())  # no sign for level 0:
        codes.copy_(level.bitwise_or_(sign.bitwise_and_(8)))  # bit 3 of -k is set for k = 1..7 only

    def _dequantise(self, codes: Tensor, steps: Tensor) -> None:
        bits = codes.to(torch.int16)  # as bf16: exponent k, hence k = 0 is zero, and the sign
        sign = bits.bitwise_and(8).bitwise_left_shift_(12)
        bits.bitwise_and_(7).bitwise_left_shift_(7).bitwise_or_(sign)
        steps.copy_(bits.view(torch.bfloat16)).mul_(2.0**120)

    def _bound(self, size: Tensor, scale: Tensor, rounding: Rounding) -> Tensor:
        small, relative = (2.0**-7, 1.0 / 3.0) if rounding is Rounding.NEAREST else (2.0**-6, 1.0)
        return torch.maximum(scale * small, size * relative).mul_(1.0 + 2.0**-20)

"""int8 and int4: a value is an integer number of its block's scale; q in [-127, 127] and [-7, 7], two's complement.

Bound: nearest (half to even) scale * (1/2 + 2^-16), stochastic scale * (1 + 2^-15); the small terms are the rounding of
the division. Stochastic is unbiased up to 2^-17 of a step and leaves whole steps, zeros among them, as they are.
A code nobody encodes (-128, -8) decodes as the number it is.
"""

import torch
from torch import Tensor

from diloco_api.sync_policy import Codec, Rounding
from diloco_trainer.algorithm.codec_base import random_bits
from diloco_trainer.algorithm.codec_block import BlockCodec


class IntCodec(BlockCodec):
    """`kind` is INT8 or INT4."""

    def __init__(self, kind: Codec) -> None:
        bits = 8 if kind is Codec.INT8 else 4
        self._most = 2 ** (bits - 1) - 1
        super().__init__(kind, bits, levels=float(self._most), worst_code=float(self._most + 1))

    def _quantise(self, steps: Tensor, rounding: Rounding, generator: torch.Generator | None, codes: Tensor) -> None:
        if rounding is Rounding.STOCHASTIC:
            noise = random_bits(steps.numel(), generator, steps.device).float()  # -32768 .. 32767
            steps.add_(noise.add_(0.5).mul_(2.0**-16)).clamp_(-self._most, self._most)  # + within (-1/2, 1/2)
        codes.copy_(steps.round_())

    def _dequantise(self, body: Tensor, steps: Tensor) -> None:
        if self._bits == 8:
            steps.copy_(body.view(torch.int8))
            return
        pairs = body.to(torch.int16)  # low byte: first value
        high = pairs.bitwise_and(0xF0).bitwise_left_shift_(4)
        nibbles = high.bitwise_or_(pairs.bitwise_and_(0x0F)).view(torch.int8)
        steps.copy_(nibbles.bitwise_xor_(8).sub_(8)[: steps.numel()])  # 0 .. 15 to -8 .. 7

    def _bound(self, size: Tensor, scale: Tensor, rounding: Rounding) -> Tensor:
        factor = 0.5 + 2.0**-16 if rounding is Rounding.NEAREST else 1.0 + 2.0**-15
        return scale.mul(factor).expand_as(size)

"""fp32, bf16 and fp16: each value in a narrower float, little-endian.

Nearest is round half to even: error at most half a unit in the last place of the narrow format (bf16: 2^-8 of the
value's power of two, at least 2^-134; fp16: 2^-11, at least 2^-25). Stochastic takes one of the two neighbours with a
probability that makes it unbiased (up to 2^-17 of their distance for fp16): error below a whole unit. A finite value
that would become infinite is refused. fp32 is exact.
"""

import math

import torch
from torch import Tensor

from diloco_api.sync_policy import Codec, Rounding
from diloco_trainer.algorithm.codec_base import (
    CHUNK,
    CodecOverflowError,
    TensorCodec,
    check_values,
    raise_non_finite,
    random_bits,
)

_DTYPES = {Codec.FP32: torch.float32, Codec.BF16: torch.bfloat16, Codec.FP16: torch.float16}
_HALF_ULP = {Codec.FP32: (0.0, 0.0), Codec.BF16: (2.0**-8, 2.0**-134), Codec.FP16: (2.0**-11, 2.0**-25)}
_FP16_NORMAL = 2.0**-14  # below it the distance of fp16 values no longer shrinks


class FloatCodec(TensorCodec):
    """One narrow float per value."""

    def __init__(self, kind: Codec) -> None:
        super().__init__(kind)
        self._dtype = _DTYPES[kind]

    def encoded_bytes(self, numel: int) -> int:
        return numel * self._dtype.itemsize

    def encode(
        self, x: Tensor, rounding: Rounding = Rounding.NEAREST, generator: torch.Generator | None = None
    ) -> Tensor:
        x = check_values(x)
        data = torch.empty(self.encoded_bytes(x.numel()), dtype=torch.uint8, device=x.device)
        codes = data.view(self._dtype)
        largest = _largest_magnitude(x)
        if not math.isfinite(largest):
            raise_non_finite(x)
        if rounding is Rounding.NEAREST or self.kind is Codec.FP32:
            codes.copy_(x)
        else:
            fill = _stochastic_bf16 if self.kind is Codec.BF16 else _stochastic_fp16
            for values, part in zip(torch.split(x, CHUNK), torch.split(codes, CHUNK), strict=True):
                fill(values, part, generator)
        if largest > torch.finfo(self._dtype).max and not math.isfinite(_largest_magnitude(codes)):
            raise CodecOverflowError(f"{self.kind.value} cannot hold a value of magnitude {largest:.6g}")
        return data

    def _decode_chunk(self, data: Tensor, numel: int, start: int, out: Tensor) -> None:
        out.copy_(data.view(self._dtype)[start : start + out.numel()])

    def error_bound(self, x: Tensor, rounding: Rounding = Rounding.NEAREST) -> Tensor:
        relative, least = _HALF_ULP[self.kind]
        power_of_two = check_values(x).view(torch.int32).bitwise_and(0x7F800000).view(torch.float32)
        half_ulp = power_of_two.mul(relative).clamp_(min=least)
        return half_ulp if rounding is Rounding.NEAREST else half_ulp.mul_(2.0)

    def is_finite(self, data: Tensor, numel: int) -> bool:
        codes = self._check_data(data, numel).view(self._dtype)
        return math.isfinite(_largest_magnitude(codes))


def _largest_magnitude(values: Tensor) -> float:
    """Of any float dtype; NaN when one of them is, 0 without values."""
    parts = [part.to(torch.float32).abs().amax() for part in torch.split(values, CHUNK)] if values.numel() else []
    return float(torch.stack(parts).amax()) if parts else 0.0


def _stochastic_bf16(values: Tensor, codes: Tensor, generator: torch.Generator | None) -> None:
    """Add 16 random bits below the last kept one, then cut; works on sign and magnitude."""
    noise = random_bits(values.numel(), generator, values.device).to(torch.int32).bitwise_and_(0xFFFF)
    codes.view(torch.int16).copy_(noise.add_(values.view(torch.int32)).bitwise_right_shift_(16))


def _stochastic_fp16(values: Tensor, codes: Tensor, generator: torch.Generator | None) -> None:
    """Add 13 random bits below the last one kept, then cut; values below the normal range are lifted into it."""
    size = values.abs()
    lift = (size < _FP16_NORMAL).to(torch.float32).mul_(_FP16_NORMAL)
    noise = random_bits(values.numel(), generator, values.device).to(torch.int32).bitwise_and_(0x1FFF)
    cut = size.add_(lift).view(torch.int32).add_(noise).bitwise_and_(~0x1FFF).view(torch.float32)
    codes.copy_(cut.sub_(lift).copysign_(values))

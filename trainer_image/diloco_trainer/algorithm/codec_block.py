"""What the block codecs share: blocks of 256 values with one bf16 scale each, then the codes.

Layout: all scales (2 bytes each, little-endian, one per started block), then all codes (int8: one byte per value; int4
and e3m0: two values per byte, the first in the low nibble, an odd last high nibble is 0).

The scale of a block is (largest magnitude) / levels rounded up to bf16, so that the largest value never has to be cut;
only where that would decode to infinity (a block that reaches within 1.6 % of the largest fp32 number) it is the
largest scale that does not, which the codecs' bounds cover. A block of zeros has scale 0 and codes 0.
"""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from diloco_api.sync_policy import Codec, Rounding
from diloco_trainer.algorithm.codec_base import (
    CHUNK,
    TensorCodec,
    check_values,
    raise_non_finite,
)

BLOCK = 256
"""Values that share a scale."""
_BLOCKS_PER_CHUNK = CHUNK // BLOCK
_SCALED_TOGETHER = 4 * CHUNK
_FP32_MAX = (2.0 - 2.0**-23) * 2.0**127


def bf16_bits_below(value: float) -> int:
    """Bits of the largest bf16 number not above a positive `value`."""
    return int(torch.tensor(value, dtype=torch.float64).float().view(torch.int32)) >> 16


class BlockCodec(TensorCodec):
    """`levels`: scale multiples of the largest code; `worst_code`: that of the largest code anyone can send."""

    def __init__(self, kind: Codec, bits_per_value: int, levels: float, worst_code: float) -> None:
        super().__init__(kind)
        self._bits = bits_per_value
        self._levels = levels
        self._largest_scale = bf16_bits_below(_FP32_MAX / levels)
        self._safe_scale = bf16_bits_below(_FP32_MAX / worst_code)

    @abstractmethod
    def _quantise(self, steps: Tensor, rounding: Rounding, generator: torch.Generator | None, codes: Tensor) -> None:
        """Values in units of their scale, fp32 [k * 256] (may be overwritten), to int8 codes [k * 256]."""

    @abstractmethod
    def _dequantise(self, body: Tensor, steps: Tensor) -> None:
        """Bytes of codes to values in units of their scale, fp32 [k]."""

    @abstractmethod
    def _bound(self, size: Tensor, scale: Tensor, rounding: Rounding) -> Tensor:
        """Error bound for magnitudes `size` [blocks, 256] with `scale` [blocks, 1]."""

    def encoded_bytes(self, numel: int) -> int:
        return 2 * _num_blocks(numel) + (numel * self._bits + 7) // 8

    def encode(
        self, x: Tensor, rounding: Rounding = Rounding.NEAREST, generator: torch.Generator | None = None
    ) -> Tensor:
        x = check_values(x)
        numel, blocks = x.numel(), _num_blocks(x.numel())
        data = torch.empty(self.encoded_bytes(numel), dtype=torch.uint8, device=x.device)
        scales, body = data[: 2 * blocks].view(torch.int16), data[2 * blocks :]
        scratch = torch.empty(min(blocks * BLOCK, CHUNK), dtype=torch.float32, device=x.device)
        codes = torch.empty(scratch.numel(), dtype=torch.int8, device=x.device)
        for first in range(0, numel, _SCALED_TOGETHER):  # scales first: many small operations, for many blocks at once
            chunks = [_padded(chunk) for chunk in torch.split(x[first : first + _SCALED_TOGETHER], CHUNK)]
            scale = self._scales(x, chunks, scratch)
            scales[first // BLOCK :][: scale.numel()].copy_(scale.view(torch.int32).bitwise_right_shift(16))
            divisor = scale.masked_fill_(scale == 0.0, 1.0).unsqueeze(1)
            for place, values in enumerate(chunks):
                steps, start = scratch[: values.numel()], first + place * CHUNK
                of_chunk = divisor[place * _BLOCKS_PER_CHUNK :][: values.numel() // BLOCK]
                torch.div(values.view(-1, BLOCK), of_chunk, out=steps.view(-1, BLOCK))
                self._quantise(steps, rounding, generator, codes[: values.numel()])
                packed = self._pack(codes[: values.numel()])
                room = body[start * self._bits // 8 :][: packed.numel()]
                room.copy_(packed[: room.numel()])
        return data

    def _decode_chunk(self, data: Tensor, numel: int, start: int, out: Tensor) -> None:
        blocks = _num_blocks(numel)
        body = data[2 * blocks + start * self._bits // 8 :][: (out.numel() * self._bits + 7) // 8]
        self._dequantise(body, out)
        scale = data[: 2 * blocks].view(torch.bfloat16)[start // BLOCK :][: _num_blocks(out.numel())].float()
        whole = out.numel() // BLOCK
        by_block = out[: whole * BLOCK].view(whole, BLOCK)
        by_block.mul_(scale[:whole].unsqueeze(1))
        if whole < scale.numel():
            out[whole * BLOCK :].mul_(scale[whole])

    def error_bound(self, x: Tensor, rounding: Rounding = Rounding.NEAREST) -> Tensor:
        x = check_values(x)
        values = _padded(x)
        scale = self._scales(x, [values], torch.empty_like(values)).unsqueeze(1)
        return self._bound(values.abs().view(-1, BLOCK), scale, rounding).reshape(-1)[: x.numel()]

    def is_finite(self, data: Tensor, numel: int) -> bool:
        data = self._check_data(data, numel)
        bits = data[: 2 * _num_blocks(numel)].view(torch.int16)
        if bits.numel() == 0:
            return True
        lowest, highest = (int(bound) for bound in torch.aminmax(bits))
        if lowest < 0 or highest > self._largest_scale:  # negative, NaN, infinite, or overflowing with a legal code
            return False
        return highest <= self._safe_scale or bool(torch.isfinite(self.decode(data, numel)).all())

    def _scales(self, x: Tensor, chunks: Sequence[Tensor], scratch: Tensor) -> Tensor:
        """fp32 [blocks] holding bf16 numbers: the scales of the blocks in `chunks` of `x`, each of whole blocks."""
        magnitudes = (torch.abs(chunk, out=scratch[: chunk.numel()]).view(-1, BLOCK) for chunk in chunks)
        largest = torch.cat([magnitude.amax(dim=1) for magnitude in magnitudes])
        if not bool(torch.isfinite(largest).all()):
            raise_non_finite(x)
        levels = largest.new_full((), self._levels)  # GPUs multiply by the reciprocal of a plain number: other bits
        bits = torch.div(largest, levels).view(torch.int32).bitwise_and_(-0x10000)  # bf16, cut off
        too_small = bits.view(torch.float32) * self._levels < largest  # exact: a bf16 number times a small integer
        bits.add_(too_small.to(torch.int32).mul_(0x10000)).clamp_(max=self._largest_scale << 16)
        return bits.view(torch.float32)

    def _pack(self, codes: Tensor) -> Tensor:
        """int8 codes to bytes; the low nibbles of two neighbours share one where a value has four bits."""
        if self._bits == 8:
            return codes.view(torch.uint8)
        pairs = codes.view(torch.int16)  # low byte: first value
        high = pairs.bitwise_right_shift(4).bitwise_and_(0xF0)
        return high.bitwise_or_(pairs.bitwise_and(0x0F)).to(torch.uint8)


def _num_blocks(numel: int) -> int:
    return (numel + BLOCK - 1) // BLOCK


def _padded(values: Tensor) -> Tensor:
    """`values` with zeros up to whole blocks; itself when it has them."""
    missing = -values.numel() % BLOCK
    return torch.nn.functional.pad(values, (0, missing)) if missing else values

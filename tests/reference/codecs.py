"""The codecs, one value at a time: what a body on the wire means, and which body a sender makes of a vector.

fp32, bf16 and fp16 are plain casts. int8, int4 and e3m0 (Streaming DiLoCo, arXiv 2501.18512, section 3; our choice of
scale and zero) work on blocks of 256 values with one bf16 scale each, rounded up so that nothing saturates. A body
holds all scales, then all codes. Nothing here is shared with the product; Python floats are fp64, so each `fp32` and
`fp32s` below is the one rounding that fp32 arithmetic would make.
"""

import struct
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from reference.arithmetic import fp32, fp32s

BLOCK = 256
LEVELS = {"int8": 127, "int4": 7}


def bf16_bits(x: float) -> int:
    """The nearest bf16 (ties to even) of an fp32 number, as its upper 16 bits."""
    bits: int = struct.unpack("<I", struct.pack("<f", x))[0]
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def bf16_bits_up(x: float) -> int:
    """The least bf16 not below a non-negative fp32 number."""
    bits: int = struct.unpack("<I", struct.pack("<f", x))[0]
    return (bits + 0xFFFF) >> 16


def from_bf16(bits: int) -> float:
    value: float = struct.unpack("<f", struct.pack("<I", bits << 16))[0]
    return value


def round_bf16(x: Tensor) -> Tensor:
    """Every value rounded to bf16 and back."""
    return torch.tensor([from_bf16(bf16_bits(v)) for v in x.tolist()], dtype=torch.float32)


def blocks(values: Sequence[float]) -> Iterator[Sequence[float]]:
    for start in range(0, len(values), BLOCK):
        yield values[start : start + BLOCK]


def encode(kind: str, x: Tensor, draws: Sequence[float] | None = None) -> bytes:
    """The body of a vector. Block codecs round to nearest, or stochastically with one draw in (0, 1) per value."""
    values = x.tolist()
    if kind == "fp32":
        return struct.pack(f"<{len(values)}f", *values)
    if kind == "bf16":
        return struct.pack(f"<{len(values)}H", *(bf16_bits(v) for v in values))
    if kind == "fp16":
        return struct.pack(f"<{len(values)}e", *values)
    draws = [0.5] * len(values) if draws is None else draws
    scales: list[int] = []
    codes: list[int] = []
    for block, drawn in zip(blocks(values), blocks(draws), strict=True):
        scales.append(scale_bits(kind, max(abs(v) for v in block)))
        scale = from_bf16(scales[-1])
        ratios = fp32s([value / scale for value in block]) if scale else [0.0] * len(block)
        if kind in LEVELS:
            codes += level_codes(LEVELS[kind], ratios, drawn)
        else:
            codes += [power_code(ratio, draw) for ratio, draw in zip(ratios, drawn, strict=True)]
    return struct.pack(f"<{len(scales)}H", *scales) + pack_codes(kind, codes)


def scale_bits(kind: str, largest: float) -> int:
    """The scale of a block, bf16: the least for which its largest value has a code."""
    levels = LEVELS.get(kind, 1)
    bits = bf16_bits_up(fp32(largest / levels))
    return bits if fp32(levels * from_bf16(bits)) >= largest else bits + 1


def level_codes(most: int, ratios: Sequence[float], draws: Sequence[float]) -> list[int]:
    """int8, int4: one of the two whole numbers around each ratio; with draw 1/2 the nearest, ties to even."""
    moved = fp32s([ratio + (0.5 - draw) for ratio, draw in zip(ratios, draws, strict=True)])
    return [max(-most, min(most, round(value))) for value in moved]


def power_code(ratio: float, draw: float) -> int:
    """e3m0: sign bit 8, magnitude code 0 (zero) or k for 2^-(7 - k); with draw 1/2 the nearest, ties away from zero.

    Goes up when the draw is at most the part of the way from the level below to the level above; next to zero, that
    part is what is left of the bits of ratio + 2^-6.
    """
    grid = [0.0] + [2.0 ** -(7 - k) for k in range(1, 8)]
    below = max(k for k in range(8) if grid[k] <= abs(ratio))
    part = abs(ratio) / grid[below] - 1 if below else fp32(abs(ratio) + grid[1]) / grid[1] - 1
    code = min(7, below + (part >= draw))
    return code + (8 if ratio < 0 and code else 0)


def pack_codes(kind: str, codes: list[int]) -> bytes:
    """int8: a byte a code; else two nibbles a byte, low nibble first, the last one padded with 0."""
    if kind == "int8":
        return struct.pack(f"<{len(codes)}b", *codes)
    nibbles = [code & 15 for code in codes] + [0] * (len(codes) % 2)
    return bytes(low | high << 4 for low, high in zip(nibbles[::2], nibbles[1::2], strict=True))


def decode(kind: str, body: bytes, numel: int) -> Tensor:
    """The fp32 vector a body means."""
    if kind == "fp32":
        return torch.tensor(struct.unpack(f"<{numel}f", body), dtype=torch.float32)
    if kind == "bf16":
        return torch.tensor([from_bf16(b) for b in struct.unpack(f"<{numel}H", body)], dtype=torch.float32)
    if kind == "fp16":
        return torch.tensor(struct.unpack(f"<{numel}e", body), dtype=torch.float32)
    num_blocks = -(-numel // BLOCK)
    scales = [from_bf16(b) for b in struct.unpack(f"<{num_blocks}H", body[: 2 * num_blocks])]
    packed = body[2 * num_blocks :]
    if kind == "int8":
        factors = [float(code) for code in struct.unpack(f"<{numel}b", packed)]
    else:
        nibbles = [half for byte in packed for half in (byte & 15, byte >> 4)][:numel]
        factors = [float(n - 16 if n > 7 else n) if kind == "int4" else power_factor(n) for n in nibbles]
    return torch.tensor(fp32s([scales[i // BLOCK] * f for i, f in enumerate(factors)]), dtype=torch.float32)


def power_factor(nibble: int) -> float:
    """e3m0: what a code multiplies its scale with."""
    magnitude = nibble & 7
    size = 2.0 ** -(7 - magnitude) if magnitude else 0.0
    return -size if nibble & 8 else size


def through(kind: str, x: Tensor, draws: Sequence[float] | None = None) -> Tensor:
    """What a receiver gets of a vector."""
    return decode(kind, encode(kind, x, draws), x.numel())

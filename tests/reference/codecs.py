"""The codecs, one value at a time: what a body on the wire means, and which body a sender makes of a vector.

fp32, bf16 and fp16 are plain casts. int8, int4 and e3m0 (Streaming DiLoCo, arXiv 2501.18512, section 3; our choice of
scale and zero) work on blocks of 256 values with one bf16 scale each, rounded up so that nothing saturates. A body
holds all scales, then all codes. Nothing here is shared with the product; Python floats are fp64, so each `fp32` below
is the one rounding that fp32 arithmetic would make.
"""

import math
import struct
from collections.abc import Iterator, Sequence

import torch
from reference.arithmetic import fp32
from torch import Tensor

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


def encode(kind: str, x: Tensor, uniforms: Sequence[float] | None = None) -> bytes:
    """The body of a vector; `uniforms` in [0, 1), one a value, make block codecs round stochastically."""
    values = x.tolist()
    if kind == "fp32":
        return struct.pack(f"<{len(values)}f", *values)
    if kind == "bf16":
        return struct.pack(f"<{len(values)}H", *(bf16_bits(v) for v in values))
    if kind == "fp16":
        return struct.pack(f"<{len(values)}e", *values)
    draws = [None] * len(values) if uniforms is None else list(uniforms)
    scales: list[int] = []
    codes: list[int] = []
    for block, drawn in zip(blocks(values), blocks(draws), strict=True):  # type: ignore[arg-type]
        largest = max(abs(v) for v in block)
        scales.append(bf16_bits_up(largest if kind == "e3m0" else fp32(largest / LEVELS[kind])))
        scale = from_bf16(scales[-1])
        for value, draw in zip(block, drawn, strict=True):
            code = level_code(kind, value, scale, draw) if kind in LEVELS else power_code(value, scale, draw)
            codes.append(code)
    return struct.pack(f"<{len(scales)}H", *scales) + pack_codes(kind, codes)


def level_code(kind: str, value: float, scale: float, draw: float | None) -> int:
    """int8, int4: the whole number of scales nearest to the value (ties to even), or one of its two neighbours."""
    if scale == 0:
        return 0
    ratio = fp32(value / scale)
    code = round(ratio) if draw is None else math.floor(fp32(ratio + draw))
    return max(-LEVELS[kind], min(LEVELS[kind], code))


def power_code(value: float, scale: float, draw: float | None) -> int:
    """e3m0: sign bit 8, magnitude code 0 (zero) or k for scale * 2^-(7 - k)."""
    if scale == 0:
        return 0
    ratio = fp32(abs(value) / scale)
    grid = [0.0] + [2.0 ** -(7 - k) for k in range(1, 8)]
    below = max(k for k in range(8) if grid[k] <= ratio)
    if below == 7:
        return 7 + (8 if value < 0 else 0)
    part = (ratio - grid[below]) / (grid[below + 1] - grid[below])
    up = part >= 0.5 if draw is None else draw < part
    code = below + int(up)
    return code + (8 if value < 0 and code else 0)


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
    return torch.tensor([fp32(scales[i // BLOCK] * f) for i, f in enumerate(factors)], dtype=torch.float32)


def power_factor(nibble: int) -> float:
    """e3m0: what a code multiplies its scale with."""
    magnitude = nibble & 7
    size = 2.0 ** -(7 - magnitude) if magnitude else 0.0
    return -size if nibble & 8 else size


def through(kind: str, x: Tensor, uniforms: Sequence[float] | None = None) -> Tensor:
    """What a receiver gets of a vector."""
    return decode(kind, encode(kind, x, uniforms), x.numel())

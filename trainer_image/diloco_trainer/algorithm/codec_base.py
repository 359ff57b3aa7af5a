"""What all codecs share: their errors, their interface, random bits, and how they name a value that cannot be sent.

Codecs run on plain torch operations over chunks that stay in cache. The bytes they make depend on the values, the
rounding and the generator only: not on chunks, threads or vector width.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from diloco_api.sync_policy import Codec, Rounding

CHUNK = 1 << 18
"""Values worked on at a time; a multiple of every block size."""


class NonFiniteError(ValueError):
    """A NaN or an infinity was to be encoded."""


class CodecOverflowError(NonFiniteError, OverflowError):
    """A finite value has no finite neighbour in the codec's format."""


class CodecUnavailable(RuntimeError):
    """This codec does not work in this process; it must not start."""


class TensorCodec(ABC):
    """fp32 values [n] to bytes and back."""

    def __init__(self, kind: Codec) -> None:
        self.kind = kind

    @abstractmethod
    def encoded_bytes(self, numel: int) -> int:
        """Exact size of `numel` encoded values."""

    @abstractmethod
    def encode(
        self, x: Tensor, rounding: Rounding = Rounding.NEAREST, generator: torch.Generator | None = None
    ) -> Tensor:
        """fp32 [n] -> uint8 [encoded_bytes(n)]. Stochastic rounding needs a generator on the device of `x`.

        Raises NonFiniteError naming the first NaN or infinity, CodecOverflowError for a finite value out of range.
        """

    @abstractmethod
    def _decode_chunk(self, data: Tensor, numel: int, start: int, out: Tensor) -> None:
        """Values [start, start + len(out)) of checked `data`; `start` is a multiple of CHUNK, `out` at most one."""

    def decode(self, data: Tensor, numel: int, out: Tensor | None = None) -> Tensor:
        """uint8 [encoded_bytes(numel)] -> fp32 [numel], into `out` when given; never a view of `data`."""
        data, x = self._check_data(data, numel), _target(numel, out, data.device)
        for start in range(0, numel, CHUNK):
            self._decode_chunk(data, numel, start, x[start : start + CHUNK])
        return x

    def accumulate(self, data: Tensor, numel: int, target: Tensor) -> Tensor:
        """target += decode(data), fp32 [numel], in place; the same bits as doing the two one after the other."""
        data, x = self._check_data(data, numel), _target(numel, target, data.device)
        scratch = torch.empty(min(numel, CHUNK), dtype=torch.float32, device=data.device)
        for start in range(0, numel, CHUNK):
            part = x[start : start + CHUNK]
            self._decode_chunk(data, numel, start, scratch[: part.numel()])
            part.add_(scratch[: part.numel()])
        return x

    @abstractmethod
    def error_bound(self, x: Tensor, rounding: Rounding = Rounding.NEAREST) -> Tensor:
        """fp32 [n]: per element, the most that |decode(encode(x)) - x| can be. `x` is finite and encodable."""

    @abstractmethod
    def is_finite(self, data: Tensor, numel: int) -> bool:
        """Whether `data` decodes to finite values only; needs no help from whoever encoded it."""

    def self_test(self) -> None:
        """Raise CodecUnavailable unless a known vector survives within the bound, both ways of rounding."""
        powers = torch.arange(-12, 4, dtype=torch.float32).exp2().repeat(40)  # 640 values: two blocks and a ragged one
        x = powers * torch.arange(1, 641).remainder(7).sub(3)
        vectors = {"ordinary values": x[:601], "denormal values": x[:601] * 2.0**-128, "nothing": x[:0]}
        for name, vector in vectors.items():
            for rounding in Rounding:
                data = self.encode(vector, rounding, torch.Generator().manual_seed(0))
                error = self.decode(data, vector.numel()).sub_(vector).abs_()
                exact_size = data.numel() == self.encoded_bytes(vector.numel())
                if not exact_size or not bool((error <= self.error_bound(vector, rounding)).all()):
                    raise CodecUnavailable(f"codec {self.kind.value} fails its self-test on {name} ({rounding.value})")
        if bool((x[:601] * 2.0**-128 == 0).all()):
            raise CodecUnavailable(f"codec {self.kind.value} needs denormals, which this process flushes to zero")

    def _check_data(self, data: Tensor, numel: int) -> Tensor:
        """`data` as contiguous bytes that any dtype may view; ValueError unless it has the exact size."""
        if data.dtype != torch.uint8 or data.shape != (self.encoded_bytes(numel),):
            raise ValueError(
                f"{self.kind.value}: {numel} values are {self.encoded_bytes(numel)} bytes, "
                f"not {data.dtype} {tuple(data.shape)}"
            )
        return data.contiguous() if data.storage_offset() % 4 == 0 else data.clone()


def check_values(x: Tensor) -> Tensor:
    """`x` contiguous; ValueError unless it is an fp32 vector."""
    if x.dtype != torch.float32 or x.dim() != 1:
        raise ValueError(f"codecs encode float32 vectors, not {x.dtype} {tuple(x.shape)}")
    return x.detach().contiguous()


def _target(numel: int, out: Tensor | None, device: torch.device) -> Tensor:
    """`out` after a check, or a new fp32 [numel]."""
    if out is None:
        return torch.empty(numel, dtype=torch.float32, device=device)
    if out.shape != (numel,) or out.dtype != torch.float32 or not out.is_contiguous():
        raise ValueError(f"decoding needs a contiguous float32 vector of {numel}, not {out.dtype} {tuple(out.shape)}")
    return out


def raise_non_finite(x: Tensor) -> None:
    """Raise NonFiniteError naming the first NaN or infinity of `x` [n]; return when there is none."""
    bad = torch.isfinite(x).logical_not_().nonzero()
    if bad.numel():
        where = int(bad[0])
        raise NonFiniteError(f"value {where} of {x.numel()} is {float(x[where])}")


def random_bits(numel: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
    """int16 [numel], each of 65536 values equally likely; `numel` is taken up to a multiple of 4 from the generator."""
    if generator is None:
        raise ValueError("stochastic rounding needs a generator")
    words = torch.empty((numel + 3) // 4, dtype=torch.int64, device=device)
    return words.random_(-(2**63), None, generator=generator).view(torch.int16)[:numel]

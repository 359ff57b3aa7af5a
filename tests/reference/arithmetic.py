"""The formulas of the three papers on flat fp32 vectors, written as naively as possible.

DiLoCo (arXiv 2311.08105, algorithm 1), Streaming DiLoCo (2501.18512, algorithm 2), Decoupled DiLoCo (2604.21428,
sections 3.2 and D.2). Conventions that make results comparable bit for bit: everything fp32 on the CPU, a multiply
and an add are two roundings, weights are normalised in fp64 and then rounded to fp32, contributions are summed in the
order of their Learners, norms are exact sums (`math.fsum`) in fp64. Nothing here is shared with the product.
"""

import hashlib
import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Ranges = Sequence[tuple[int, int]]


class Shape(NamedTuple):
    """What the formulas must know about one fragment: its size and where its embedding tables lie."""

    numel: int
    embedding: Ranges = ()

    @property
    def others(self) -> list[tuple[int, int]]:
        """Everything that is not an embedding table, as ranges."""
        cuts = [0, *(edge for span in sorted(self.embedding) for edge in span), self.numel]
        return [(start, stop) for start, stop in zip(cuts[::2], cuts[1::2], strict=True) if start < stop]


class Merged(NamedTuple):
    delta: Tensor
    branch: str


def pseudo_gradient(anchor: Tensor, local: Tensor) -> Tensor:
    """Delta = theta(t - H) - theta_m: old global minus local, so that the outer optimizer descends."""
    return anchor - local


def outer_step(theta: Tensor, momentum: Tensor, delta: Tensor, lr: float, mu: float) -> tuple[Tensor, Tensor]:
    """Nesterov as PyTorch and optax write it: v <- mu v + Delta; theta <- theta - lr (Delta + mu v)."""
    momentum = mu * momentum + delta
    return theta - lr * (delta + mu * momentum), momentum


def blend(local: Tensor, published: Tensor, alpha: float) -> Tensor:
    """Streaming DiLoCo: theta_m <- alpha theta_m + (1 - alpha) Theta; alpha = 0 overwrites."""
    if alpha == 0:
        return published.clone()
    return alpha * local + (1 - alpha) * published


def blend_late(local: Tensor, published: Tensor, staged: Tensor, alpha: float) -> Tensor:
    """An adoption after the delay keeps the steps since the stage: theta_m <- theta_m + (1 - alpha)(Theta - staged)."""
    return local + (1 - alpha) * (published - staged)


def rebase(delta: Tensor, shifts: Sequence[Tensor]) -> Tensor:
    """Delta' = Delta + (Theta_now - Theta_base), the shift being the sum of the published deltas since the base."""
    total = torch.zeros_like(delta)
    for shift in shifts:
        total = total + shift
    return delta + total


def token_weight(c_tokens: int, c_steps: int) -> float:
    """Decoupled DiLoCo section 3.2: tokens times mean batch; 0 for one who is absent."""
    return c_tokens * (c_tokens / c_steps) if c_steps else 0.0


def norm(pieces: Sequence[Tensor]) -> float:
    """Euclidean norm of several vectors taken together, from an exact sum of fp64 squares."""
    return math.sqrt(math.fsum(x * x for piece in pieces for x in piece.tolist()))


def fp32(x: float) -> float:
    """The nearest fp32 number."""
    return fp32s([x])[0]


def fp32s(values: Sequence[float]) -> Sequence[float]:
    """`fp32` of every value."""
    form = f"<{len(values)}f"
    return struct.unpack(form, struct.pack(form, *values))


def weighted_sum(deltas: Sequence[Tensor], factors: Sequence[float]) -> Tensor:
    """sum_m factor_m delta_m, factors rounded to fp32 first, in order."""
    total = fp32(factors[0]) * deltas[0]
    for delta, factor in zip(deltas[1:], factors[1:], strict=True):
        total = total + fp32(factor) * delta
    return total


def mean(deltas: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Direct merge: sum w Delta / sum w."""
    return weighted_sum(deltas, [weight / sum(weights) for weight in weights])


MIN_DIRECTION = 1e-3
"""Below this norm the averaged direction says nothing: the contributions cancel, and the plain mean is taken."""


def radial_directional(shape: Shape, deltas: Sequence[Tensor], weights: Sequence[float]) -> Merged:
    """RDA: (sum w |Delta| / sum w) phi(sum w phi(Delta) / sum w), phi(x) = x / |x|; embedding tables by `mean`.

    The printed radial factor is a vector in the paper; the scalar norm is meant. A delta of norm zero has no
    direction and is left out of the sum of directions.
    """
    share = [weight / sum(weights) for weight in weights]
    plain = mean(deltas, weights)
    norms = [norm([delta[start:stop] for start, stop in shape.others]) for delta in deltas]
    moving = [m for m, length in enumerate(norms) if length > 0]
    if not moving:
        return Merged(plain, "mean")
    direction = weighted_sum([deltas[m] for m in moving], [share[m] / norms[m] for m in moving])  # phi(Delta) weighted
    length = norm([direction[start:stop] for start, stop in shape.others])
    if length < MIN_DIRECTION:
        return Merged(plain, "rda-fallback-mean")
    radius = math.fsum(share[m] * norms[m] for m in range(len(deltas)))
    for start, stop in shape.others:
        plain[start:stop] = fp32(radius / length) * direction[start:stop]
    return Merged(plain, "rda")


def merge(rule: str, shape: Shape, deltas: Sequence[Tensor], weights: Sequence[float]) -> Merged:
    """`RadialDirectional` or `Mean`."""
    if rule == "RadialDirectional":
        return radial_directional(shape, deltas, weights)
    return Merged(mean(deltas, weights), "mean")


def digest(epoch: int, fragment: int, version: int, published: Tensor) -> str:
    """sha256 of (epoch, fragment, version, fp32 values), all little endian."""
    body = struct.pack("<QII", epoch, fragment, version) + struct.pack(f"<{published.numel()}f", *published.tolist())
    return hashlib.sha256(body).hexdigest()

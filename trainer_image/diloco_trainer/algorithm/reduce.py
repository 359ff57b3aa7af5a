"""How the contributions to one version of a fragment become one pseudo-gradient.

Mean: sum of w_m * delta_m over sum of w_m. RadialDirectional (Decoupled DiLoCo, arXiv 2604.21428): mean length times
the direction of the mean direction, because nearly orthogonal deltas make the mean itself shrink like 1/sqrt(M);
embedding tables keep the Mean. Does not choose the contributions or their weights.

Same bits whatever arrived first, however many threads there are and however wide the vector unit is: contributions come
in index order, are added chunk by chunk in that order, products and sums round separately, and norms are summed in fp64
by one fixed tree.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from diloco_api.sync_policy import MergeRule
from diloco_trainer.algorithm.fragments import Fragment

LEAST_DIRECTION = 1e-3
"""Below this norm of the averaged unit vectors they cancel out and have no common direction."""
_CHUNK = 1 << 16  # values worked on at a time when adding
_TREE = 1 << 14  # values under one tree; 8 trees are worked on at a time

Branch = Literal["mean", "rda", "rda-fallback-mean"]


@dataclass(frozen=True)
class MergeResult:
    """`norms`: under RadialDirectional the lengths it averaged, one per contribution; else empty."""

    delta: Tensor
    branch: Branch
    norms: tuple[float, ...]


def tree_norm_squared(x: Tensor) -> float:
    """Sum of squares of a flat fp32 [n] in fp64; infinite or NaN when a value is.

    Squares are added as x[:n/2] + x[n/2:] down to one number for each 16,384 values (the last ones filled up with
    zeros), and those numbers in order.
    """
    total = 0.0
    for part in torch.split(x, 8 * _TREE):
        squares = torch.zeros(-(-part.numel() // _TREE) * _TREE, dtype=torch.float64)
        squares[: part.numel()].copy_(part)
        rows = squares.mul_(squares).view(-1, _TREE)
        while rows.shape[1] > 1:
            half = rows.shape[1] // 2
            rows = rows[:, :half].add_(rows[:, half:])
        for subtotal in rows[:, 0].tolist():
            total += subtotal
    return total


def tree_norm(x: Tensor) -> float:
    """L2 norm of a flat fp32 [n], see `tree_norm_squared`."""
    return math.sqrt(tree_norm_squared(x))


def merge(rule: MergeRule, fragment: Fragment, deltas: Sequence[Tensor], weights: Sequence[float]) -> MergeResult:
    """Merge flat fp32 deltas [numel], given in index order, with weights >= 0 of which one at least is above 0.

    RadialDirectional works on the elements outside embedding tables together. With share = w / W in fp64,
    D = sum of fp32(share / length) * delta over the deltas that are not zero there, result = fp32(R / |D|) * D with
    R = sum of share * length over all. Mean where |D| < 1e-3 or nothing moved.
    """
    _check(fragment, deltas, weights)
    shares = _shares(weights)
    merged = torch.empty(fragment.numel, dtype=torch.float32)
    lengths = () if rule is MergeRule.MEAN else tuple(_length(delta, fragment.other_ranges) for delta in deltas)
    moving = [place for place, length in enumerate(lengths) if length > 0.0]
    if moving:
        factors = [shares[place] / lengths[place] for place in moving]
        _weighted_sum(merged, [deltas[place] for place in moving], factors, fragment.other_ranges)
        direction = _length(merged, fragment.other_ranges)
        if direction >= LEAST_DIRECTION:
            radius = math.fsum(share * length for share, length in zip(shares, lengths, strict=True))
            for start, stop in fragment.other_ranges:
                merged[start:stop].mul_(radius / direction)
            _weighted_sum(merged, deltas, shares, fragment.embedding_ranges)
            return MergeResult(merged, "rda", lengths)
    _weighted_sum(merged, deltas, shares, [(0, fragment.numel)])
    return MergeResult(merged, "rda-fallback-mean" if moving else "mean", lengths)


def _check(fragment: Fragment, deltas: Sequence[Tensor], weights: Sequence[float]) -> None:
    if len(deltas) != len(weights):
        raise ValueError(f"{len(deltas)} deltas and {len(weights)} weights")
    for delta in deltas:
        if delta.shape != (fragment.numel,) or delta.dtype != torch.float32:
            raise ValueError(f"fragment {fragment.index} merges float32 [{fragment.numel}], not {tuple(delta.shape)}")
    if not all(math.isfinite(weight) and weight >= 0.0 for weight in weights) or sum(weights) <= 0.0:
        raise ValueError(f"weights must be finite, not negative, and not all zero: {list(weights)}")


def _shares(weights: Sequence[float]) -> list[float]:
    """Weights over their sum, in fp64, summed in order."""
    total = 0.0
    for weight in weights:
        total += weight
    return [weight / total for weight in weights]


def _length(x: Tensor, ranges: Iterable[tuple[int, int]]) -> float:
    """L2 norm over some ranges together."""
    total = 0.0
    for start, stop in ranges:
        total += tree_norm_squared(x[start:stop])
    return math.sqrt(total)


def _weighted_sum(
    out: Tensor, deltas: Sequence[Tensor], factors: Sequence[float], ranges: Iterable[tuple[int, int]]
) -> None:
    """out[range] = sum of fp32(factor) * delta, in order, each product rounded before it is added."""
    term = torch.empty(min(_CHUNK, out.numel()), dtype=torch.float32)
    for start, stop in ranges:
        for first in range(start, stop, _CHUNK):
            here = slice(first, min(first + _CHUNK, stop))
            torch.mul(deltas[0][here], factors[0], out=out[here])
            product = term[: here.stop - here.start]
            for delta, factor in zip(deltas[1:], factors[1:], strict=True):
                out[here].add_(torch.mul(delta[here], factor, out=product))

"""How a model's parameters are cut into fragments, and how a fragment becomes one flat fp32 vector and back.

Decides: which tensor belongs to which of the P fragments. Does not decide when a fragment is exchanged (`schedule`).

BalancedTensor (Decoupled DiLoCo, arXiv 2604.21428, "balanced tensor"): greedy bin packing of whole tensors by
descending size, which gives the lowest peak. Layer (Streaming DiLoCo, arXiv 2501.18512, section 3): whole layers in a
strided pattern, fragment p holds layers p, p + P, p + 2P; tensors outside the layers (embedding, final norm, head) join
fragment 0, where MaxText puts them too. Tied tensors are the caller's to list once.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from diloco_api.sync_policy import Fragmentation


@dataclass(frozen=True)
class TensorSpec:
    """One parameter tensor of the model."""

    name: str
    shape: tuple[int, ...]
    is_embedding: bool
    """An embedding table, or a head tied to one: merged by Mean also under RadialDirectional."""
    layer: int | None
    """Index of its transformer layer; None outside the layers."""

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Fragment:
    """Whole tensors that are exchanged together; their order is their order in the flat vector."""

    index: int
    tensors: tuple[TensorSpec, ...]

    @cached_property
    def numel(self) -> int:
        return sum(tensor.numel for tensor in self.tensors)

    @cached_property
    def embedding_ranges(self) -> list[tuple[int, int]]:
        """[start, stop) of embedding elements in the flat vector; neighbours are joined."""
        return self._ranges(is_embedding=True)

    @cached_property
    def other_ranges(self) -> list[tuple[int, int]]:
        """[start, stop) of all other elements in the flat vector; neighbours are joined."""
        return self._ranges(is_embedding=False)

    @cached_property
    def digest(self) -> str:
        """Hex sha256 of names and shapes in order."""
        text = "".join(f"{tensor.name}:{','.join(map(str, tensor.shape))}\n" for tensor in self.tensors)
        return hashlib.sha256(text.encode()).hexdigest()

    def _ranges(self, is_embedding: bool) -> list[tuple[int, int]]:
        ranges: list[tuple[int, int]] = []
        start = 0
        for tensor in self.tensors:
            stop = start + tensor.numel
            if tensor.is_embedding == is_embedding and stop > start:
                if ranges and ranges[-1][1] == start:
                    ranges[-1] = (ranges[-1][0], stop)
                else:
                    ranges.append((start, stop))
            start = stop
        return ranges


@dataclass(frozen=True)
class FragmentLayout:
    """All fragments of a model; every parameter is in exactly one."""

    fragments: tuple[Fragment, ...]

    @cached_property
    def digest(self) -> str:
        """Hex sha256 of the fragments' digests in order: names, shapes and the cut."""
        text = "".join(f"{fragment.index}:{fragment.digest}\n" for fragment in self.fragments)
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def numel(self) -> int:
        return sum(fragment.numel for fragment in self.fragments)


def make_layout(tensors: Sequence[TensorSpec], num_fragments: int, rule: Fragmentation) -> FragmentLayout:
    """Cut `tensors` into `num_fragments` fragments, none empty; inside a fragment tensors keep their given order.

    Raises ValueError when there are fewer tensors (or, by layer, fewer layers) than fragments, or a name comes twice.
    """
    if num_fragments < 1:
        raise ValueError(f"fragments: {num_fragments} is not a positive number")
    names = [tensor.name for tensor in tensors]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise ValueError(f"parameter {twice[0]!r} is listed more than once")
    chosen = _by_layer(tensors, num_fragments) if rule is Fragmentation.LAYER else _by_balance(tensors, num_fragments)
    parts: list[list[TensorSpec]] = [[] for _ in range(num_fragments)]
    for tensor in tensors:
        parts[chosen[tensor.name]].append(tensor)
    return FragmentLayout(tuple(Fragment(index, tuple(part)) for index, part in enumerate(parts)))


def _by_balance(tensors: Sequence[TensorSpec], num_fragments: int) -> dict[str, int]:
    """Greedy bin packing: biggest tensor first (ties by name) into the lightest fragment (ties: fewest, then first)."""
    if num_fragments > len(tensors):
        raise ValueError(f"fragments: {num_fragments} is more than the model's {len(tensors)} parameter tensors")
    loads = [(0, 0, index) for index in range(num_fragments)]  # (elements, tensors, fragment)
    chosen: dict[str, int] = {}
    for tensor in sorted(tensors, key=lambda tensor: (-tensor.numel, tensor.name)):
        elements, count, index = min(loads)
        chosen[tensor.name] = index
        loads[index] = (elements + tensor.numel, count + 1, index)
    return chosen


def _by_layer(tensors: Sequence[TensorSpec], num_fragments: int) -> dict[str, int]:
    """Layers in the strided pattern; what is outside the layers joins fragment 0."""
    layers = sorted({tensor.layer for tensor in tensors if tensor.layer is not None})
    if num_fragments > max(len(layers), 1):
        raise ValueError(f"fragments: {num_fragments} is more than the model's {len(layers)} layers")
    position = {layer: place for place, layer in enumerate(layers)}
    return {tensor.name: 0 if tensor.layer is None else position[tensor.layer] % num_fragments for tensor in tensors}


def gather(fragment: Fragment, params: Mapping[str, Tensor], out: Tensor | None = None) -> Tensor:
    """Copy the fragment's tensors into one flat fp32 CPU vector [numel] (`out` when given)."""
    flat = torch.empty(fragment.numel, dtype=torch.float32) if out is None else out
    _check_flat(fragment, flat)
    start = 0
    for tensor in fragment.tensors:
        source = _param(tensor, params)
        flat[start : start + tensor.numel].view(tensor.shape).copy_(source.detach())
        start += tensor.numel
    return flat


def scatter(fragment: Fragment, flat: Tensor, params: Mapping[str, Tensor]) -> None:
    """Copy a flat fp32 vector [numel] into the fragment's tensors, in place, on whatever device they live."""
    _check_flat(fragment, flat)
    start = 0
    with torch.no_grad():
        for tensor in fragment.tensors:
            _param(tensor, params).copy_(flat[start : start + tensor.numel].view(tensor.shape))
            start += tensor.numel


def _check_flat(fragment: Fragment, flat: Tensor) -> None:
    if flat.shape != (fragment.numel,) or flat.dtype != torch.float32:
        raise ValueError(
            f"fragment {fragment.index} is a flat float32 vector of {fragment.numel}, "
            f"not {flat.dtype} {tuple(flat.shape)}"
        )


def _param(tensor: TensorSpec, params: Mapping[str, Tensor]) -> Tensor:
    if tensor.name not in params:
        raise ValueError(f"parameter {tensor.name!r} of the layout is missing from the model")
    param = params[tensor.name]
    if tuple(param.shape) != tensor.shape:
        raise ValueError(f"parameter {tensor.name!r} is {tuple(param.shape)}, the layout says {tensor.shape}")
    return param

"""The inner side of the references: one Learner's own parameters and optimizer, seen as flat fragments.

`Inner` is all the outer algorithms ask of it. `Quadratic` is the toy of the identity and stability tests; `TaskInner`
takes gradients from a real training task (model, data and loss are the product's; the loop around them is not). Inner
optimizer state lives as long as the object: it is neither reset nor synchronised (arXiv 2311.08105, section 2).
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from reference.arithmetic import Shape


class Inner(Protocol):
    """One Learner's parameters, cut into fragments."""

    shapes: Sequence[Shape]

    def read(self, fragment: int) -> Tensor:
        """A copy, fp32 [numel]."""
        ...

    def write(self, fragment: int, values: Tensor) -> None: ...

    def step(self) -> int:
        """One inner step; the tokens of its batch."""
        ...


class Quadratic:
    """Half (x - optimum)' diag(curvature) (x - optimum) with noisy gradients; SGD or a hand-written momentum inside."""

    def __init__(
        self,
        *,
        sizes: Sequence[int],
        optimum: Tensor,
        curvature: Tensor,
        lr: float,
        seed: int,
        noise: float = 0.0,
        tokens: int = 1,
        momentum: float = 0.0,
    ) -> None:
        self.shapes = [Shape(size) for size in sizes]
        self.x = torch.zeros(sum(sizes))
        self.optimum, self.curvature, self.lr, self.noise, self.tokens = optimum, curvature, lr, noise, tokens
        self.momentum, self.velocity = momentum, torch.zeros(sum(sizes))
        self.random = torch.Generator().manual_seed(seed)
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        self.spans = [slice(start, start + size) for start, size in zip(starts, sizes, strict=True)]

    def read(self, fragment: int) -> Tensor:
        return self.x[self.spans[fragment]].clone()

    def write(self, fragment: int, values: Tensor) -> None:
        self.x[self.spans[fragment]] = values

    def step(self) -> int:
        gradient = self.curvature * (self.x - self.optimum)
        gradient = gradient + self.noise * torch.randn(self.x.numel(), generator=self.random)
        self.velocity = self.momentum * self.velocity + gradient
        self.x = self.x - self.lr * self.velocity
        return self.tokens

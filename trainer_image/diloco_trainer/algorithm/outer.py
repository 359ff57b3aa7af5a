"""The outer optimiser: SGD with Nesterov momentum, one state per fragment (DiLoCo, arXiv 2311.08105, section 2).

v <- mu * v + delta; theta <- theta - lr * (delta + mu * v), as in PyTorch and optax. Every product and every sum is an
operation of its own and rounds once: the result does not depend on whether the machine can fuse them.
"""

import torch
from torch import Tensor

_CHUNK = 1 << 18  # values worked on at a time: temporaries stay in cache, and cost no memory


def outer_step(theta: Tensor, momentum: Tensor, delta: Tensor, lr: float, mu: float) -> None:
    """One step in place on `theta` and `momentum`; all three are flat fp32 [numel], `delta` is left as it is."""
    if not theta.shape == momentum.shape == delta.shape:
        raise ValueError(f"shapes differ: {tuple(theta.shape)}, {tuple(momentum.shape)}, {tuple(delta.shape)}")
    for values, speed, step in zip(
        torch.split(theta, _CHUNK), torch.split(momentum, _CHUNK), torch.split(delta, _CHUNK), strict=True
    ):
        speed.mul_(mu).add_(step)
        values.sub_(torch.mul(speed, mu).add_(step).mul_(lr))

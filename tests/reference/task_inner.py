"""The inner side over a real training task: gradients by the product's model, data and loss; the loop is written here.

DiLoCo (arXiv 2311.08105, section 2): inner AdamW, decoupled weight decay on matrices, gradients clipped to a norm, one
learning-rate schedule over all steps; the optimizer's state is never reset. `reset_at_write` is the mistake a test must
notice: a fresh optimizer whenever global parameters come in.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from reference.arithmetic import Shape

Ranges = Sequence[tuple[int, int, int]]
"""(pass, start, stop) of a pass's order."""


def cosine(train: Any, progress: float, warmup_fraction: float) -> float:
    """Linear warm-up to the peak, then cosine to the final fraction of it."""
    peak, final = train.optimizer.learning_rate, train.schedule.final_fraction
    if progress < warmup_fraction:
        return float(peak * progress / warmup_fraction)
    done = (progress - warmup_fraction) / (1 - warmup_fraction)
    return float(peak * (final + (1 - final) * (0.5 * (1 + math.cos(math.pi * done)))))


def fixed_work(train: Any, *, index: int, replicas: int, steps: int, num_sequences: int) -> list[tuple[float, Ranges]]:
    """(rate, data) of each step of a synchronous job: batch number k of Learner m is number k * replicas + m of all."""
    size = train.batch.sequences
    plan: list[tuple[float, Ranges]] = []
    for step in range(1, steps + 1):
        first = ((step - 1) * replicas + index) * size
        passes = [divmod(number, num_sequences) for number in range(first, first + size)]
        ranges = [(number, position, position + 1) for number, position in passes]
        plan.append((cosine(train, step / steps, train.schedule.warmup_steps / steps), ranges))
    return plan


class TaskInner:
    """One Learner's model and AdamW; `work` yields (rate, ranges) for every step."""

    def __init__(
        self,
        task: Any,
        train: Any,
        fragments: Sequence[Any],
        work: Iterable[tuple[float, Ranges]],
        *,
        reset_at_write: bool = False,
    ) -> None:
        self._task, self._train, self._work = task, train, iter(work)
        self.model = task.build_model()
        self.params = dict(self.model.named_parameters())
        self.fragments = [[(t.name, t.shape, t.is_embedding) for t in fragment.tensors] for fragment in fragments]
        self.shapes = [_shape(tensors) for tensors in self.fragments]
        self._reset_at_write = reset_at_write
        self.optimizer = self._fresh_optimizer()
        self.losses: list[float] = []

    def _fresh_optimizer(self) -> torch.optim.Optimizer:
        spec, params = self._train.optimizer, list(self.params.values())
        groups = [
            {"params": [p for p in params if p.dim() > 1], "weight_decay": spec.weight_decay},
            {"params": [p for p in params if p.dim() <= 1], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, betas=(spec.beta1, spec.beta2), eps=spec.eps)

    def read(self, fragment: int) -> Tensor:
        return torch.cat([self.params[name].detach().flatten() for name, _, _ in self.fragments[fragment]])

    def write(self, fragment: int, values: Tensor) -> None:
        sizes = [math.prod(shape) for _, shape, _ in self.fragments[fragment]]
        with torch.no_grad():
            for (name, shape, _), part in zip(self.fragments[fragment], values.split(sizes), strict=True):
                self.params[name].copy_(part.view(shape))
        if self._reset_at_write:
            self.optimizer = self._fresh_optimizer()

    def step(self) -> int:
        rate, ranges = next(self._work)
        batch = torch.cat([self._task.batch(number, range(start, stop)) for number, start, stop in ranges])
        self.optimizer.zero_grad()
        loss = self._task.loss(self.model, batch)
        loss.backward()
        if self._train.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._train.clip_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.losses.append(loss.item())
        return batch.shape[0] * (batch.shape[1] - 1)


def _shape(tensors: Sequence[tuple[str, tuple[int, ...], bool]]) -> Shape:
    start, embedding = 0, []
    for _, shape, is_embedding in tensors:
        stop = start + math.prod(shape)
        if is_embedding:
            embedding.append((start, stop))
        start = stop
    return Shape(start, tuple(embedding))

"""The inner optimizer and one inner step: AdamW, micro-batches, clipping.

Decay falls on matrices only. The optimizer's state belongs to one Learner for its whole life: it is neither reset nor
exchanged at an outer step (arXiv 2311.08105, section 2). Which sequences and which rate: decided by the caller.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from diloco_api.train import AdamWSpec


def make_adamw(parameters: Sequence[Tensor], spec: AdamWSpec) -> torch.optim.AdamW:
    """AdamW with decay on tensors of two or more dimensions, none on vectors."""
    matrices = [tensor for tensor in parameters if tensor.dim() >= 2]
    vectors = [tensor for tensor in parameters if tensor.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": spec.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=spec.learning_rate, betas=(spec.beta1, spec.beta2), eps=spec.eps)


def inner_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[[nn.Module, Tensor], Tensor],
    batch: Tensor,
    *,
    lr: float,
    micro_batch: int | None,
    clip_norm: float | None,
) -> Tensor:
    """One step on `batch` [b, T + 1]; returns the mean loss over its tokens as a detached fp32 scalar.

    Micro-batches are weighted by their share of sequences, so the gradient is the mean over the tokens of the batch
    also when the last one is smaller. A gradient that is not finite changes nothing: one bad batch, or a fragment that
    is about to be replaced, must not poison the optimizer's state for ever.
    """
    optimizer.zero_grad(set_to_none=True)
    total = torch.zeros((), dtype=torch.float32, device=batch.device)
    for part in torch.split(batch, micro_batch or batch.shape[0]):
        loss = loss_of(model, part) * (part.shape[0] / batch.shape[0])
        torch.autograd.backward(loss)
        total += loss.detach()
    gradients = [tensor.grad for tensor in model.parameters() if tensor.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    if not bool(torch.isfinite(norm)):
        return total
    if clip_norm is not None:
        nn.utils.clip_grads_with_norm_(model.parameters(), clip_norm, norm)
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    return total

"""The seam between the engine and what a user trains.

A `Task` builds the model, names its tensors, serves training sequences by position and evaluates. It holds no state of
a run: the engine says which sequences to train on, so a user's code never keeps track of data.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from diloco_api.train import TrainSpec
from diloco_trainer.algorithm.fragments import TensorSpec
from diloco_trainer.task.gpt_task import GptTask


class Task(Protocol):
    """What the engine asks of a training task."""

    @property
    def num_sequences(self) -> int:
        """Training sequences of one pass; raises DataError when the data cannot be used."""

    @property
    def sequence_length(self) -> int:
        """Tokens a sequence counts for (T)."""

    def build_model(self) -> nn.Module:
        """A new fp32 model on the CPU, bit-identical for one `train.seed`."""

    def parameters(self, model: nn.Module) -> dict[str, Tensor]:
        """The trained tensors by name, in a fixed order; tied tensors appear once."""

    def tensor_specs(self, model: nn.Module) -> tuple[TensorSpec, ...]:
        """Name, shape, kind and layer of the tensors of `parameters`, in the same order."""

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """A fresh inner optimizer; its learning rate is set before every step."""

    def batch(self, pass_index: int, positions: Sequence[int]) -> Tensor:
        """Sequences at these positions of a pass's order: int64 [len(positions), T + 1] on the CPU."""

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Mean loss of a batch, nats per token, as an fp32 scalar with a gradient."""

    def evaluate(self, model: nn.Module) -> float:
        """Mean loss over the validation sequences, nats per token; deterministic, leaves the model as it was."""


def make_task(train: TrainSpec) -> Task:
    """The task a `train` section names. The data are read once, when first asked for."""
    return GptTask(train)

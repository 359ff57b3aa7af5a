"""A task so small that a merge takes microseconds: a few tensors pulled towards a target."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from diloco_trainer.algorithm.fragments import TensorSpec


class ToyModel(nn.Module):
    """An embedding and two layers of odd sizes."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.embedding = nn.Parameter(torch.randn(11, 3, generator=generator))
        self.first = nn.Parameter(torch.randn(7, 5, generator=generator))
        self.second = nn.Parameter(torch.randn(300, generator=generator))


class ToyTask:
    """Satisfies `Task`; the loss is the mean square distance from one."""

    def __init__(self, seed: int = 0, num_sequences: int = 1000, sequence_length: int = 8) -> None:
        self._seed = seed
        self.num_sequences = num_sequences
        self.sequence_length = sequence_length

    def build_model(self) -> nn.Module:
        return ToyModel(self._seed)

    def parameters(self, model: nn.Module) -> dict[str, Tensor]:
        return dict(model.named_parameters())

    def tensor_specs(self, model: nn.Module) -> tuple[TensorSpec, ...]:
        layers = {"first": 0, "second": 1}
        return tuple(
            TensorSpec(name, tuple(tensor.shape), name == "embedding", layers.get(name))
            for name, tensor in self.parameters(model).items()
        )

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def batch(self, pass_index: int, positions: Sequence[int]) -> Tensor:
        return torch.zeros(len(positions), self.sequence_length + 1, dtype=torch.int64)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return torch.stack([(tensor - 1).square().mean() for tensor in model.parameters()]).mean()

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        return float(self.loss(model, torch.zeros(0)))

"""The built-in task: a byte-level GPT on text, AdamW, validation on evenly spread sequences.

The text is read when first asked for, the model is built when asked for: a caller that needs one pays for one.
"""

import re
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional

from diloco_api.train import TrainSpec
from diloco_trainer.algorithm.fragments import TensorSpec
from diloco_trainer.task.gpt import VOCABULARY, Gpt
from diloco_trainer.task.optimizer import make_adamw
from diloco_trainer.task.order import PassOrder
from diloco_trainer.task.text_data import TextData, read_text

_LAYER = re.compile(r"layers\.(\d+)\.")
_EMBEDDINGS = frozenset({"embedding.weight"})  # a tied head is this very tensor


class GptTask:
    """`Task` of a `train` section."""

    def __init__(self, train: TrainSpec) -> None:
        self._train = train
        self._order: tuple[int, PassOrder] | None = None

    @cached_property
    def _text(self) -> TextData:
        return read_text(self._train.data)

    @property
    def num_sequences(self) -> int:
        return self._text.num_training

    @property
    def sequence_length(self) -> int:
        return self._train.data.sequence_length

    def build_model(self) -> nn.Module:
        return Gpt(self._train.model, self._train.data.sequence_length, self._train.seed)

    def parameters(self, model: nn.Module) -> dict[str, Tensor]:
        return dict(model.named_parameters())  # names a shared tensor once, by its first place

    def tensor_specs(self, model: nn.Module) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(name=name, shape=tuple(tensor.shape), is_embedding=name in _EMBEDDINGS, layer=_layer_of(name))
            for name, tensor in self.parameters(model).items()
        )

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return make_adamw(list(self.parameters(model).values()), self._train.optimizer)

    def batch(self, pass_index: int, positions: Sequence[int]) -> Tensor:
        if self._order is None or self._order[0] != pass_index:
            self._order = (pass_index, PassOrder(self._train.seed, pass_index, self.num_sequences))
        order = self._order[1]
        return self._text.training(torch.tensor([order.sequence_at(position) for position in positions]))

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        with torch.autocast(batch.device.type, torch.bfloat16, enabled=self._train.precision == "bf16"):
            logits = model(batch[:, :-1])
        return functional.cross_entropy(logits.float().view(-1, VOCABULARY), batch[:, 1:].reshape(-1))

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        wanted = min(self._train.evaluation.sequences, self._text.num_validation)
        numbers = torch.arange(wanted) * self._text.num_validation // wanted
        device = next(model.parameters()).device
        was_training = model.training
        model.eval()
        total = 0.0
        for part in torch.split(numbers, self._train.batch.micro_batch or self._train.batch.sequences):
            total += self.loss(model, self._text.validation(part).to(device)).item() * part.numel()
        model.train(was_training)
        return total / wanted


def _layer_of(name: str) -> int | None:
    match = _LAYER.match(name)
    return int(match.group(1)) if match else None

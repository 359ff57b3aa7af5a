"""The built-in model and its inner step."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from diloco_api.model_size import gpt_shape
from diloco_api.train import DataSpec, GptSpec, TrainSpec
from diloco_trainer.task.gpt import Gpt
from diloco_trainer.task.optimizer import inner_step, make_adamw
from diloco_trainer.task.task import make_task

SPEC = GptSpec(layers=2, hidden=16, heads=2, mlp_ratio=3)


def train_spec(tmp_path: Path, **changes: object) -> TrainSpec:
    (tmp_path / "text.txt").write_bytes(b"the quick brown fox jumps over the lazy dog. " * 60)
    data = DataSpec(uri=str(tmp_path / "text.txt"), sequence_length=16, validation_part=0.1)
    return TrainSpec(data=data, model=SPEC, **changes)


def test_tensor_names_and_shapes_are_the_published_ones() -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in Gpt(SPEC, 16, seed=0).named_parameters()}
    layer = {
        "attention_norm.weight": (16,),
        "qkv.weight": (48, 16),
        "query_norm.weight": (8,),
        "key_norm.weight": (8,),
        "attention_out.weight": (16, 16),
        "mlp_norm.weight": (16,),
        "mlp_up.weight": (48, 16),
        "mlp_down.weight": (16, 48),
    }
    expected = {"embedding.weight": (256, 16), "final_norm.weight": (16,), "head.weight": (256, 16)}
    expected |= {f"layers.{number}.{name}": shape for number in range(2) for name, shape in layer.items()}
    assert shapes == expected


def test_a_tied_head_is_named_once_and_counts_as_embedding(tmp_path: Path) -> None:
    spec = train_spec(tmp_path).model_copy(update={"model": SPEC.model_copy(update={"tie_embeddings": True})})
    task = make_task(spec)
    specs = {spec.name: spec for spec in task.tensor_specs(task.build_model())}
    assert "head.weight" not in specs
    assert specs["embedding.weight"].is_embedding
    assert sum(spec.is_embedding for spec in specs.values()) == 1


def test_layers_are_numbered_for_fragmentation(tmp_path: Path) -> None:
    task = make_task(train_spec(tmp_path))
    layers = {spec.name: spec.layer for spec in task.tensor_specs(task.build_model())}
    assert layers["layers.1.qkv.weight"] == 1
    assert layers["embedding.weight"] is None
    assert layers["head.weight"] is None


@pytest.mark.parametrize("tied", [False, True])
def test_the_first_loss_is_that_of_a_uniform_guess(tied: bool) -> None:
    model = Gpt(SPEC.model_copy(update={"tie_embeddings": tied}), 16, seed=0)
    logits = model(torch.arange(64).view(4, 16))
    loss = nn.functional.cross_entropy(logits.view(-1, 256), torch.arange(64) + 1)
    assert loss.item() == pytest.approx(math.log(256), abs=0.02)


def test_the_seed_alone_decides_the_model() -> None:
    torch.manual_seed(1)
    first = Gpt(SPEC, 16, seed=5)
    torch.manual_seed(2)
    second, third = Gpt(SPEC, 16, seed=5), Gpt(SPEC, 16, seed=6)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.layers[0].qkv.weight, third.layers[0].qkv.weight)


def test_a_byte_never_sees_the_bytes_after_it() -> None:
    model = Gpt(SPEC, 16, seed=0)
    nn.init.normal_(model.head.weight)
    tokens = torch.arange(16).view(1, 16)
    changed = tokens.clone()
    changed[0, 10:] = 99
    before, after = model(tokens), model(changed)
    assert torch.equal(before[0, :10], after[0, :10])
    assert not torch.equal(before[0, 10:], after[0, 10:])


def test_swapping_bytes_changes_what_follows() -> None:
    model = Gpt(SPEC, 16, seed=0)
    nn.init.normal_(model.head.weight)
    tokens = torch.arange(16).view(1, 16)
    swapped = tokens.clone()
    swapped[0, [2, 5]] = swapped[0, [5, 2]]
    assert not torch.allclose(model(tokens)[0, -1], model(swapped)[0, -1], atol=1e-6)


@pytest.mark.parametrize("micro_batch", [1, 3, 5])
def test_micro_batches_give_the_gradient_of_the_whole_batch(tmp_path: Path, micro_batch: int) -> None:
    task = make_task(train_spec(tmp_path))
    batch = task.batch(0, range(5))
    whole, parts = task.build_model(), task.build_model()
    options = {"lr": 0.0, "clip_norm": None}
    for model, size in ((whole, None), (parts, micro_batch)):
        nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
        inner_step(model, torch.optim.SGD(model.parameters()), task.loss, batch, micro_batch=size, **options)
    for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)


def test_gradients_are_clipped_to_the_norm(tmp_path: Path) -> None:
    task = make_task(train_spec(tmp_path))
    model = task.build_model()
    sgd = torch.optim.SGD(model.parameters())
    inner_step(model, sgd, task.loss, task.batch(0, range(4)), lr=0.0, micro_batch=None, clip_norm=1e-3)
    norm = torch.stack([tensor.grad.norm() for tensor in model.parameters()]).norm()
    assert norm.item() == pytest.approx(1e-3, rel=1e-2)


def test_decay_falls_on_matrices_only(tmp_path: Path) -> None:
    spec = train_spec(tmp_path).optimizer
    model = Gpt(SPEC, 16, seed=0)
    optimizer = make_adamw(list(model.parameters()), spec)
    for tensor in model.parameters():
        tensor.grad = torch.zeros_like(tensor)
    nn.init.ones_(model.head.weight)
    optimizer.step()
    assert torch.equal(model.final_norm.weight, torch.ones(16))
    assert model.head.weight[0, 0].item() == pytest.approx(1 - spec.learning_rate * spec.weight_decay)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_lowers_the_validation_loss(tmp_path: Path, precision: str) -> None:
    spec = train_spec(tmp_path, precision=precision)
    task = make_task(spec)
    model = task.build_model()
    optimizer = task.make_optimizer(model)
    before = task.evaluate(model)
    for step in range(30):
        batch = task.batch(0, range(4 * step, 4 * step + 4))
        inner_step(model, optimizer, task.loss, batch, lr=3e-3, micro_batch=None, clip_norm=1.0)
    assert before == pytest.approx(math.log(256), abs=0.02)
    assert task.evaluate(model) < before - 1.0
    assert all(tensor.dtype == torch.float32 for tensor in model.parameters())


def test_evaluation_repeats_to_the_bit_and_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    task = make_task(train_spec(tmp_path))
    model = task.build_model()
    model.train()
    assert task.evaluate(model) == task.evaluate(model)
    assert model.training
    assert all(tensor.grad is None for tensor in model.parameters())


def test_the_batch_of_a_pass_follows_its_order(tmp_path: Path) -> None:
    task = make_task(train_spec(tmp_path))
    everything = task.batch(0, range(task.num_sequences))
    assert everything.shape == (task.num_sequences, 17)
    assert torch.equal(task.batch(0, [3, 1]), everything[[3, 1]])
    assert not torch.equal(task.batch(1, range(task.num_sequences)), everything)


@pytest.mark.parametrize("tied", [False, True])
def test_size_is_what_plans_reckon_with(tmp_path: Path, tied: bool) -> None:
    spec = train_spec(tmp_path).model_copy(update={"model": SPEC.model_copy(update={"tie_embeddings": tied})})
    task = make_task(spec)
    tensors = task.tensor_specs(task.build_model())
    shape = gpt_shape(spec)
    assert shape.num_tensors == len(tensors)
    assert shape.num_parameters == sum(tensor.numel for tensor in tensors)
    assert shape.num_layers == len({tensor.layer for tensor in tensors} - {None})

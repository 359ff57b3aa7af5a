"""How big a model is, without building it: what fragments, default budget and forecasts are computed from.

The built-in GPT has these tensors and no biases (d = hidden, r = mlpRatio, 256 byte values as vocabulary):
`embedding.weight` [256, d] (embedding); per layer `attention_norm.weight` [d], `qkv.weight` [3d, d],
`query_norm.weight` [d / heads], `key_norm.weight` [d / heads], `attention_out.weight` [d, d], `mlp_norm.weight` [d],
`mlp_up.weight` [rd, d], `mlp_down.weight` [d, rd]; `final_norm.weight` [d]; `head.weight` [256, d] unless tied.
The trainer's module declares the same ones; a test there compares.
"""

from dataclasses import dataclass

from diloco_api.train import TrainSpec

BYTE_VALUES = 256
"""Vocabulary of the byte-level model."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the rules of the synchronisation policy need to know of a model. Tied tensors count once."""

    num_parameters: int
    num_tensors: int
    num_layers: int


def gpt_shape(train: TrainSpec) -> ModelShape:
    """Size of the built-in GPT; `hidden` is taken to be a multiple of `heads` (a rule of its own)."""
    model = train.model
    hidden, head_dim = model.hidden, model.hidden // model.heads
    attention = 3 * hidden * hidden + hidden * hidden + 2 * head_dim
    mlp = 2 * model.mlp_ratio * hidden * hidden
    layer = attention + mlp + 2 * hidden
    tables = 1 if model.tie_embeddings else 2
    return ModelShape(
        num_parameters=model.layers * layer + hidden + tables * BYTE_VALUES * hidden,
        num_tensors=8 * model.layers + 1 + tables,
        num_layers=model.layers,
    )

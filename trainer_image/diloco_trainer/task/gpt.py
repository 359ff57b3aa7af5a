"""The built-in model: a byte-level decoder with RMSNorm, rotary positions, QK-norm and scaled dot-product attention.

No biases; the feed-forward part uses the squared ReLU. Tensor names and shapes are a contract: plans of memory and
bandwidth count them without torch. Initial values come from one CPU generator, so version 0 depends on the seed alone;
the head starts at zero (small when tied), so that the first loss is that of a uniform guess, ln 256 = 5.545 nats.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from diloco_api.train import GptSpec

VOCABULARY = 256
_ROTARY_BASE = 10_000.0
_NORM_EPS = 1e-6


class Weight(nn.Module):
    """A bias-free weight [rows, columns] applied as x @ weight.T, or a vector [columns]."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*shape))


class RmsNorm(Weight):
    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), eps=_NORM_EPS)


class Linear(Weight):
    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight)


def rotary_tables(length: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """cos and sin, each fp32 [length, head_dim / 2]."""
    frequencies = _ROTARY_BASE ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the two halves of each head by its position; x [b, heads, t, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Block(nn.Module):
    """One layer: attention, then feed-forward, both on normalised input and added to the residual stream."""

    def __init__(self, spec: GptSpec) -> None:
        super().__init__()
        hidden, head_dim = spec.hidden, spec.hidden // spec.heads
        self.heads = spec.heads
        self.attention_norm = RmsNorm(hidden)
        self.qkv = Linear(3 * hidden, hidden)
        self.query_norm = RmsNorm(head_dim)
        self.key_norm = RmsNorm(head_dim)
        self.attention_out = Linear(hidden, hidden)
        self.mlp_norm = RmsNorm(hidden)
        self.mlp_up = Linear(spec.mlp_ratio * hidden, hidden)
        self.mlp_down = Linear(hidden, spec.mlp_ratio * hidden)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, hidden = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.heads, hidden // self.heads)
        query, key, value = (part.transpose(1, 2) for part in qkv.unbind(2))  # each [b, heads, t, head_dim]
        query, key = rotate(self.query_norm(query), cos, sin), rotate(self.key_norm(key), cos, sin)
        mixed = functional.scaled_dot_product_attention(
            query.to(value.dtype), key.to(value.dtype), value, is_causal=True
        )
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, length, hidden))
        widened: Tensor = self.mlp_down(functional.relu(self.mlp_up(self.mlp_norm(x))).square())
        return x + widened


class Gpt(nn.Module):
    """Bytes in, next-byte logits out."""

    cos: Tensor
    sin: Tensor

    def __init__(self, spec: GptSpec, sequence_length: int, seed: int) -> None:
        super().__init__()
        if spec.hidden % spec.heads or (spec.hidden // spec.heads) % 2:
            raise ValueError(f"hidden {spec.hidden} divided by heads {spec.heads} must be an even whole number")
        self.embedding = Weight(VOCABULARY, spec.hidden)
        self.layers = nn.ModuleList(Block(spec) for _ in range(spec.layers))
        self.final_norm = RmsNorm(spec.hidden)
        self.head = Linear(VOCABULARY, spec.hidden)
        if spec.tie_embeddings:
            self.head.weight = self.embedding.weight
        cos, sin = rotary_tables(sequence_length, spec.hidden // spec.heads)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._initialise(spec, seed)

    @torch.no_grad()
    def _initialise(self, spec: GptSpec, seed: int) -> None:
        """Matrices normal with variance 1 / columns, outputs of a layer smaller by sqrt(2 layers), norms 1."""
        generator = torch.Generator().manual_seed(seed)
        small = 0.02 if spec.tie_embeddings else 1.0
        for name, weight in self.named_parameters():  # a fixed order: that of definition
            if weight.dim() == 1:
                weight.fill_(1.0)
            elif name == "embedding.weight":
                weight.normal_(0.0, small, generator=generator)
            elif name == "head.weight":
                weight.zero_()
            else:
                deviation = weight.shape[1] ** -0.5
                if name.endswith(("attention_out.weight", "mlp_down.weight")):
                    deviation /= math.sqrt(2 * spec.layers)
                weight.normal_(0.0, deviation, generator=generator)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens int64 [b, t] -> logits [b, t, 256]."""
        x = functional.embedding(tokens, self.embedding.weight)
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        for block in self.layers:
            x = block(x, cos, sin)
        return self.head(self.final_norm(x))  # type: ignore[no-any-return]

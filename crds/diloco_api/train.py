"""`spec.train`: what is trained, on what and how. Immutable: a job is one experiment.

`problems` holds the rules between its fields. `SpecModel` is the base of everything a user writes.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from diloco_api import rules
from diloco_api.errors import Problem
from diloco_api.rules import rule

PATH = "spec.train"


class SpecModel(BaseModel):
    """Base of everything a user writes: camelCase in YAML, unknown fields refused, docstrings become descriptions."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


class GptSpec(SpecModel):
    """The built-in decoder: RMSNorm, rotary positions, QK-norm, scaled dot-product attention; bytes as tokens."""

    model_config = ConfigDict(
        json_schema_extra=rules.cel(rule("self.hidden % (2 * self.heads) == 0", rules.EVEN_HEAD, "hidden"))
    )

    layers: int = Field(default=4, ge=1, le=512)
    """Transformer blocks. Default 4, a model for one CPU core."""
    hidden: int = Field(default=128, ge=8, le=65536)
    """Width of the residual stream. Default 128."""
    heads: int = Field(default=4, ge=1, le=1024)
    """Attention heads; `hidden` must be a multiple of 2 * `heads`. Default 4."""
    mlp_ratio: int = Field(default=4, ge=1, le=16)
    """Width of the feed-forward part over `hidden`. Default 4."""
    tie_embeddings: bool = False
    """Use the embedding table as output head too. Default false."""


class DataSpec(SpecModel):
    """Where the training text comes from."""

    uri: str = Field(min_length=1, max_length=1024, pattern=r"^[^\x00]+$")
    """A path or `file://` URI, which may be a glob (`**` crosses folders); `{stdlib}` stands for the folder of the
    Python standard library."""
    format: Literal["text"] = "text"
    """`text`: files are read as bytes and joined in the order of their names."""
    sequence_length: int = Field(default=256, ge=8, le=1_048_576)
    """Tokens of a training sequence. Default 256."""
    validation_part: float = Field(default=0.01, gt=0, lt=0.5)
    """Share of the sequences kept for validation, never trained on. Default 0.01."""
    max_passes: int | None = Field(default=None, ge=1, le=1_000_000)
    """Passes over the data before the job ends as DataExhausted. Default: as many as the budget needs."""


class AdamWSpec(SpecModel):
    """Inner optimizer; its state is never reset or synchronised at an outer step (arXiv 2311.08105, section 2)."""

    learning_rate: float = Field(default=1e-3, gt=0, le=10)
    """Peak rate. Default 1e-3."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Default 0.9."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """Default 0.95 (OpenDiLoCo's configuration; the DiLoCo paper states none)."""
    eps: float = Field(default=1e-8, gt=0, le=1)
    """Default 1e-8."""
    weight_decay: float = Field(default=0.1, ge=0, le=1)
    """Decoupled weight decay of matrices; vectors have none. Default 0.1 (arXiv 2311.08105, table 5)."""


class ScheduleSpec(SpecModel):
    """Learning rate over the job's progress: linear warm-up, then cosine to `finalFraction` of the peak."""

    warmup_steps: int = Field(default=100, ge=0, le=1_000_000)
    """Steps of the job until the peak. Default 100."""
    final_fraction: float = Field(default=0.05, ge=0, le=1)
    """Rate at the end over the peak. Default 0.05 (arXiv 2503.09799)."""


class BatchSpec(SpecModel):
    """Batch of one Learner."""

    model_config = ConfigDict(
        json_schema_extra=rules.cel(
            rule(
                "!has(self.microBatch) || self.sequences % self.microBatch == 0",
                rules.MICRO_BATCH_DIVIDES,
                "microBatch",
            )
        )
    )

    sequences: int = Field(default=8, ge=1, le=65536)
    """Sequences of one inner step of one Learner. Default 8."""
    micro_batch: int | None = Field(default=None, ge=1, le=65536)
    """Sequences of one forward pass; must divide `sequences`. Default: all at once."""


class EvaluationSpec(SpecModel):
    """Validation loss of the outer parameters, at version 0 and at the end."""

    sequences: int = Field(default=64, ge=1, le=1_000_000)
    """Validation sequences used, spread evenly over the validation part. Default 64."""


class TrainSpec(SpecModel):
    """The training task of a job."""

    task: Literal["gpt"] = "gpt"
    """`gpt`: the built-in byte-level decoder."""
    model: GptSpec = GptSpec()
    """Shape of the model."""
    data: DataSpec
    """The training text. Required."""
    optimizer: AdamWSpec = AdamWSpec()
    """Inner optimizer (AdamW)."""
    schedule: ScheduleSpec = ScheduleSpec()
    """Learning-rate schedule."""
    batch: BatchSpec = BatchSpec()
    """Batch size."""
    clip_norm: Annotated[float, Field(gt=0, le=1e6)] | None = 1.0
    """Gradients are scaled down to this norm before an inner step. Default 1.0; null switches it off."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Arithmetic of forward and backward passes; parameters and optimizer state stay fp32. Default fp32."""
    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    """Seeds version 0, the order of the data and stochastic rounding. Default 0."""
    evaluation: EvaluationSpec = EvaluationSpec()
    """Validation."""

    @property
    def step_tokens(self) -> int:
        """Tokens of one inner step of one Learner."""
        return self.batch.sequences * self.data.sequence_length


def problems(train: TrainSpec) -> Iterator[Problem]:
    """Every broken rule between fields of `spec.train`."""
    model, batch = train.model, train.batch
    if model.hidden % (2 * model.heads):
        yield Problem(f"{PATH}.model.hidden", f"{model.hidden}", f"{rules.EVEN_HEAD} (heads is {model.heads})")
    if batch.micro_batch is not None and batch.sequences % batch.micro_batch:
        rule_text = f"{rules.MICRO_BATCH_DIVIDES} ({batch.sequences})"
        yield Problem(f"{PATH}.batch.microBatch", f"{batch.micro_batch}", rule_text)

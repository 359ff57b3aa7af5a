"""The values of a synchronisation policy: what engine, wire and processes are told, complete and frozen.

Here is no default of a preset and no rule between fields; `diloco_api.sync_policy` resolves and checks. YAML spells the
fields in camelCase (in the job's status), the run config in snake_case; both are read.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class Codec(StrEnum):
    """How a value travels. Block codecs carry one bf16 scale per 256 values."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    INT8 = "int8"
    INT4 = "int4"
    E3M0 = "e3m0"


class Rounding(StrEnum):
    NEAREST = "nearest"
    STOCHASTIC = "stochastic"


class Fragmentation(StrEnum):
    BALANCED_TENSOR = "BalancedTensor"
    LAYER = "Layer"


class Weighting(StrEnum):
    TOKENS = "Tokens"
    UNIFORM = "Uniform"


class MergeRule(StrEnum):
    RADIAL_DIRECTIONAL = "RadialDirectional"
    MEAN = "Mean"


class LateContributions(StrEnum):
    REBASE = "Rebase"
    DROP = "Drop"


class _Frozen(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid", use_attribute_docstrings=True
    )


class AdaptiveGrace(_Frozen):
    """Wait after the quorum for at most gamma * slack, slack = tau * step - (quorum + sync time), never below 0."""

    kind: Literal["Adaptive"] = "Adaptive"
    gamma: float = Field(default=0.5, ge=0, le=1)


class DeadlineGrace(_Frozen):
    """Wait for everyone expected until the round's deadline."""

    kind: Literal["Deadline"] = "Deadline"


class FixedGrace(_Frozen):
    """Wait this long after the quorum."""

    kind: Literal["Fixed"] = "Fixed"
    seconds: float = Field(ge=0)


Grace = Annotated[AdaptiveGrace | DeadlineGrace | FixedGrace, Field(discriminator="kind")]


class GuardPolicy(_Frozen):
    """Which contributions are refused before they can harm the model. Non-finite ones always are."""

    factor: float = Field(default=10.0, gt=1)
    """A norm above factor * the fragment's running median (scaled by steps) is refused."""
    min_samples: int = Field(default=8, ge=1)
    """Norms of a fragment that must be known before the factor applies."""


class SyncPolicy(_Frozen):
    """A complete policy; field names follow the papers' terms."""

    preset: str
    """Name of the preset, for people; no code reads it."""
    synchronous: bool
    """True: K = All, exchange by step schedule. False: turns of the Synchronizer, K = min_quorum."""
    sync_every: int
    """H: inner steps between two exchanges of one fragment."""
    num_fragments: int
    """P."""
    fragmentation: Fragmentation
    sync_delay: int
    """tau: inner steps between stage and adoption."""
    blend_alpha: float
    """alpha: share of the local value kept at adoption."""
    min_quorum: int
    """K of a Decoupled policy (a synchronous one expects everyone)."""
    grace: Grace
    weighting: Weighting
    merge: MergeRule
    encode_up: Codec
    encode_down: Codec
    rounding_up: Rounding
    """How lossy uplink codecs round: stochastic without error feedback, nearest with it."""
    error_feedback: bool
    """Keep what the uplink codec lost and add it to the next contribution."""
    outer_lr: float
    outer_momentum: float
    late: LateContributions
    guard: GuardPolicy | None
    """None switches the norm guard off; non-finite contributions are refused all the same."""
    retained_versions: int = 8
    """R: encoded deltas of a fragment kept for catch-up and Rebase."""
    rejoin_warmup_steps: int = 100
    """Steps over which a replacement without a checkpoint of its own ramps its learning rate."""
    max_steps_ahead: int = 10_000
    """Steps a Learner may hold leased, hence train without the Synchronizer."""
    max_passes: int | None = None
    """Passes over the data before the job ends with DataExhausted; None: as many as the budget needs."""

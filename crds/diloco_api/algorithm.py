"""`spec.algorithm`: a preset and what the user overrides of it. Immutable.

An absent field takes the preset's value, see `diloco_api.sync_policy`; nothing is decided here.
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema

from diloco_api import rules
from diloco_api.policy import Codec, Fragmentation, LateContributions, MergeRule, Weighting
from diloco_api.rules import rule
from diloco_api.train import SpecModel

_INT_OR_STRING = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}
_MAX_LEARNERS = 256
_MAX_GRACE_SECONDS = 600


def _min_learners(value: object) -> object:
    if value == "All" or (type(value) is int and 1 <= value <= _MAX_LEARNERS):
        return value
    raise ValueError(rules.MIN_LEARNERS)


def _grace(value: object) -> object:
    if value in ("Adaptive", "Deadline") or (type(value) is int and 0 <= value <= _MAX_GRACE_SECONDS):
        return value
    raise ValueError(rules.GRACE)


MinLearners = Annotated[
    int | Literal["All"],
    BeforeValidator(_min_learners),
    WithJsonSchema(
        {
            **_INT_OR_STRING,
            "maxLength": 8,
            **rules.cel(rule("type(self) == int ? self >= 1 && self <= 256 : self == 'All'", rules.MIN_LEARNERS)),
        }
    ),
]
GraceSetting = Annotated[
    int | Literal["Adaptive", "Deadline"],
    BeforeValidator(_grace),
    WithJsonSchema(
        {
            **_INT_OR_STRING,
            "maxLength": 8,
            **rules.cel(
                rule("type(self) == int ? self >= 0 && self <= 600 : self in ['Adaptive', 'Deadline']", rules.GRACE)
            ),
        }
    ),
]


class QuorumSpec(SpecModel):
    """Whose contributions an outer step waits for."""

    min_learners: MinLearners | None = None
    """K: contributions an outer step needs, a number under DecoupledDiLoCo (default 1, arXiv 2604.21428), All under the
    synchronous presets."""
    grace: GraceSetting | None = None
    """Waiting for more Learners once there are K: `Adaptive`, at most gamma times the slack the delay leaves (default
    of DecoupledDiLoCo, equation 3), or whole seconds. `Deadline` under the synchronous presets: until the round's
    deadline."""
    gamma: float | None = Field(default=None, ge=0, le=1)
    """Share of the slack an Adaptive grace uses. Default 0.5; the paper gives no value."""


class EncodingSpec(SpecModel):
    """How values travel. int8, int4 and e3m0 carry one bf16 scale per 256 values."""

    up: Codec | None = None
    """Contributions. Default: fp32 (DiLoCo), e3m0 (StreamingDiLoCo, arXiv 2501.18512), int4 (DecoupledDiLoCo)."""
    down: Codec | None = None
    """Published outer steps. Default: fp32 (DiLoCo), bf16 (StreamingDiLoCo), int8 (DecoupledDiLoCo)."""
    error_feedback: bool | None = None
    """Add what a lossy `up` lost to the next contribution. Default: true under DecoupledDiLoCo with a lossy `up`."""


class OuterOptimizerSpec(SpecModel):
    """Nesterov momentum on pseudo-gradients, per fragment."""

    learning_rate: float | None = Field(default=None, gt=0, le=10)
    """Default 0.7 (DiLoCo, arXiv 2311.08105), 0.4 (StreamingDiLoCo, arXiv 2501.18512); DecoupledDiLoCo by
    `learners.replicas` at acceptance: 1 gives 0.4, 2 to 5 give 0.6, more give 0.8 (arXiv 2503.09799)."""
    momentum: float | None = Field(default=None, ge=0, lt=1)
    """Default 0.9 (arXiv 2311.08105)."""


class GuardSpec(SpecModel):
    """Refuses contributions of outlying norm; non-finite ones are refused in any case."""

    enabled: bool = True
    """Default true."""
    factor: float = Field(default=10.0, gt=1, le=1e6)
    """A norm above this many running medians of its fragment, scaled by steps, is refused. Default 10."""
    min_samples: int = Field(default=8, ge=1, le=64)
    """Norms of a fragment known before the factor applies; 64 are remembered. Default 8."""


DEFAULT_SYNC_EVERY = {"DiLoCo": 500, "StreamingDiLoCo": 100, "DecoupledDiLoCo": 24}
"""H of each preset; here, as CEL needs it too."""

_H = (
    f"(has(self.syncEvery) ? self.syncEvery : self.preset == 'DiLoCo' ? {DEFAULT_SYNC_EVERY['DiLoCo']} : "
    f"self.preset == 'StreamingDiLoCo' ? {DEFAULT_SYNC_EVERY['StreamingDiLoCo']} : "
    f"{DEFAULT_SYNC_EVERY['DecoupledDiLoCo']})"
)
_TURNS = "(self.preset == 'DecoupledDiLoCo')"
_K = "self.quorum.minLearners"
_GRACE = "self.quorum.grace"


class AlgorithmSpec(SpecModel):
    """How Learners are kept together: a preset and overrides of it."""

    model_config = ConfigDict(
        json_schema_extra=rules.cel(
            rule(f"!has(self.syncDelay) || self.syncDelay < {_H}", rules.BELOW_SYNC_EVERY, "syncDelay"),
            rule(f"!has(self.fragments) || self.fragments <= {_H}", rules.AT_MOST_SYNC_EVERY, "fragments"),
            rule(
                "!has(self.blendAlpha) || self.blendAlpha == 0.0 || "
                "(has(self.syncDelay) ? self.syncDelay > 0 : self.preset != 'DiLoCo')",
                rules.BLEND_NEEDS_DELAY,
                "blendAlpha",
            ),
            rule(
                "self.preset != 'StreamingDiLoCo' || !has(self.syncDelay) || self.syncDelay >= 1",
                rules.STREAMING_NEEDS_DELAY,
                "syncDelay",
            ),
            rule(
                f"!has({_K}) || type({_K}) == int || !{_TURNS}",
                rules.ALL_NEEDS_SYNCHRONOUS,
                "quorum.minLearners",
            ),
            rule(
                f"!has({_K}) || type({_K}) == string || {_TURNS}",
                rules.NUMBER_NEEDS_TURNS,
                "quorum.minLearners",
            ),
            rule(
                f"!has({_GRACE}) || (type({_GRACE}) == string && {_GRACE} == 'Deadline') || {_TURNS}",
                rules.ADAPTIVE_NEEDS_TURNS,
                "quorum.grace",
            ),
            rule(
                f"!has({_GRACE}) || type({_GRACE}) == int || {_GRACE} != 'Deadline' || !{_TURNS}",
                rules.DEADLINE_NEEDS_ALL,
                "quorum.grace",
            ),
            rule(
                f"!has(self.quorum.gamma) || ({_TURNS} && (!has({_GRACE}) || type({_GRACE}) == string))",
                rules.GAMMA_NEEDS_ADAPTIVE,
                "quorum.gamma",
            ),
            rule(
                "!has(self.encoding.errorFeedback) || !self.encoding.errorFeedback || "
                "(has(self.encoding.up) ? self.encoding.up != 'fp32' : self.preset != 'DiLoCo')",
                rules.FEEDBACK_NEEDS_LOSS,
                "encoding.errorFeedback",
            ),
        )
    )

    preset: Literal["DiLoCo", "StreamingDiLoCo", "DecoupledDiLoCo"] = "DecoupledDiLoCo"
    """Where all defaults come from: DiLoCo (arXiv 2311.08105), StreamingDiLoCo (arXiv 2501.18512) or DecoupledDiLoCo
    (arXiv 2604.21428). Default DecoupledDiLoCo, the one no failure can pause."""
    sync_every: int | None = Field(default=None, ge=1, le=1_000_000)
    """H: inner steps between two exchanges of one fragment. Default 500, 100 or 24, by preset."""
    fragments: int | None = Field(default=None, ge=1, le=4096)
    """P: parts of the model exchanged in turn. Default 1, by size (8, 16, 36 or 40) or 24, at most what `syncEvery`
    and the model allow."""
    fragmentation: Fragmentation | None = None
    """BalancedTensor packs whole tensors into fragments of equal size; Layer deals whole layers to them. Default Layer
    under StreamingDiLoCo, else BalancedTensor."""
    sync_delay: int | None = Field(default=None, ge=0, lt=1_000_000)
    """tau: inner steps between staging a fragment and adopting its outer step. Default 0, 1 or 2, by preset, at most
    `syncEvery` - 1."""
    blend_alpha: float | None = Field(default=None, ge=0, le=1)
    """alpha: share of the local value kept at adoption. Default 0.5 under StreamingDiLoCo, else 0."""
    quorum: QuorumSpec = QuorumSpec()
    """Whom an outer step waits for."""
    weighting: Weighting | None = None
    """Tokens weighs a contribution by tokens * tokens / steps; Uniform counts all the same. Default Tokens under
    DecoupledDiLoCo, else Uniform."""
    merge: MergeRule | None = None
    """RadialDirectional averages lengths and directions apart (embeddings: Mean); Mean averages. Default
    RadialDirectional under DecoupledDiLoCo, else Mean."""
    encoding: EncodingSpec = EncodingSpec()
    """How values travel."""
    outer_optimizer: OuterOptimizerSpec = OuterOptimizerSpec()
    """The outer step."""
    late_contributions: LateContributions | None = None
    """Rebase moves a contribution that missed its round onto the newest version for the next one; Drop discards it.
    Default Rebase."""
    guard: GuardSpec = GuardSpec()
    """Which contributions are refused before they can harm the model."""

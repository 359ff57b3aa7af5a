"""The synchronisation policy of a job: presets, overrides and every rule between fields.

`resolve` turns `spec.algorithm` into a complete `SyncPolicy`; nothing below this module knows a preset's name. What the
user writes is never changed, only refused; a default gives way to what the user wrote and to what the model has.
Sources of the defaults: DiLoCo (arXiv 2311.08105), Streaming DiLoCo (2501.18512), Decoupled DiLoCo (2604.21428).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from diloco_api import rules
from diloco_api.algorithm import DEFAULT_SYNC_EVERY, AlgorithmSpec
from diloco_api.errors import Problem, spec_error
from diloco_api.model_size import ModelShape
from diloco_api.policy import (
    AdaptiveGrace,
    Codec,
    DeadlineGrace,
    FixedGrace,
    Fragmentation,
    Grace,
    GuardPolicy,
    LateContributions,
    MergeRule,
    Rounding,
    SyncPolicy,
    Weighting,
)

__all__ = [
    "PRESETS",
    "AdaptiveGrace",
    "Codec",
    "DeadlineGrace",
    "FixedGrace",
    "Fragmentation",
    "Grace",
    "GuardPolicy",
    "LateContributions",
    "MergeRule",
    "Preset",
    "Rounding",
    "SyncPolicy",
    "Weighting",
    "problems",
    "resolve",
]

PATH = "spec.algorithm"


@dataclass(frozen=True, slots=True)
class Preset:
    """Defaults of one algorithm; None: worked out from model or replicas."""

    synchronous: bool
    sync_every: int
    num_fragments: int | None
    fragmentation: Fragmentation
    sync_delay: int
    min_sync_delay: int
    blend_alpha: float
    weighting: Weighting
    merge: MergeRule
    up: Codec
    down: Codec
    error_feedback: bool
    outer_lr: float | None
    outer_momentum: float = 0.9


PRESETS: Mapping[str, Preset] = {
    "DiLoCo": Preset(
        synchronous=True,
        sync_every=DEFAULT_SYNC_EVERY["DiLoCo"],
        num_fragments=1,
        fragmentation=Fragmentation.BALANCED_TENSOR,
        sync_delay=0,
        min_sync_delay=0,
        blend_alpha=0.0,
        weighting=Weighting.UNIFORM,
        merge=MergeRule.MEAN,
        up=Codec.FP32,
        down=Codec.FP32,
        error_feedback=False,
        outer_lr=0.7,
    ),
    "StreamingDiLoCo": Preset(
        synchronous=True,
        sync_every=DEFAULT_SYNC_EVERY["StreamingDiLoCo"],
        num_fragments=None,
        fragmentation=Fragmentation.LAYER,  # the paper's fragments are whole layers: never more than there are
        sync_delay=1,
        min_sync_delay=1,
        blend_alpha=0.5,
        weighting=Weighting.UNIFORM,
        merge=MergeRule.MEAN,
        up=Codec.E3M0,
        down=Codec.BF16,
        error_feedback=False,
        outer_lr=0.4,
    ),
    "DecoupledDiLoCo": Preset(
        synchronous=False,
        sync_every=DEFAULT_SYNC_EVERY["DecoupledDiLoCo"],
        num_fragments=24,
        fragmentation=Fragmentation.BALANCED_TENSOR,
        sync_delay=2,
        min_sync_delay=0,
        blend_alpha=0.0,
        weighting=Weighting.TOKENS,
        merge=MergeRule.RADIAL_DIRECTIONAL,
        up=Codec.INT4,
        down=Codec.INT8,
        error_feedback=True,
        outer_lr=None,
    ),
}


def resolve(
    algorithm: AlgorithmSpec, *, replicas: int, max_learners: int, shape: ModelShape, max_passes: int | None = None
) -> SyncPolicy:
    """The complete policy of a job; SpecError with the first problem when there is any.

    `replicas` is what the user asks for at acceptance (never the live count), `max_learners` the most there may be,
    `max_passes` comes from `spec.train.data`.
    """
    policy = _fill(algorithm, replicas, shape, max_passes)
    found = list(_broken(algorithm, policy, max_learners, shape))
    if found:
        raise spec_error(found)
    return policy


def problems(algorithm: AlgorithmSpec, *, replicas: int, max_learners: int, shape: ModelShape) -> list[Problem]:
    """Every broken rule of `spec.algorithm`, in the order of its fields."""
    return list(_broken(algorithm, _fill(algorithm, replicas, shape, None), max_learners, shape))


def fragments_by_size(num_parameters: int) -> int:
    """P of Streaming DiLoCo: its authors' suggestion by parameter count, three layers each at the paper's depths."""
    for limit, fragments in ((2e9, 8), (15e9, 16), (150e9, 36)):
        if num_parameters <= limit:
            return fragments
    return 40


def outer_lr_by_replicas(replicas: int) -> float:
    """Best outer rate by number of Learners (arXiv 2503.09799); fixed at acceptance."""
    return 0.4 if replicas == 1 else 0.6 if replicas <= 5 else 0.8


def _fill(spec: AlgorithmSpec, replicas: int, shape: ModelShape, max_passes: int | None) -> SyncPolicy:
    preset = PRESETS[spec.preset]
    sync_every = preset.sync_every if spec.sync_every is None else spec.sync_every
    fragmentation = spec.fragmentation or preset.fragmentation
    num_fragments = spec.fragments
    if num_fragments is None:
        wanted = preset.num_fragments or fragments_by_size(shape.num_parameters)
        num_fragments = min(wanted, sync_every, _pieces(fragmentation, shape))
    sync_delay = spec.sync_delay
    if sync_delay is None:
        sync_delay = max(preset.min_sync_delay, min(preset.sync_delay, sync_every - 1))
    blend_alpha = spec.blend_alpha
    if blend_alpha is None:
        blend_alpha = preset.blend_alpha if sync_delay > 0 else 0.0
    up = spec.encoding.up or preset.up
    error_feedback = spec.encoding.error_feedback
    if error_feedback is None:
        error_feedback = preset.error_feedback and up is not Codec.FP32
    outer = spec.outer_optimizer
    outer_lr = outer.learning_rate or preset.outer_lr or outer_lr_by_replicas(replicas)
    guard = GuardPolicy(factor=spec.guard.factor, min_samples=spec.guard.min_samples)
    return SyncPolicy(
        preset=spec.preset,
        synchronous=preset.synchronous,
        sync_every=sync_every,
        num_fragments=num_fragments,
        fragmentation=fragmentation,
        sync_delay=sync_delay,
        blend_alpha=blend_alpha,
        min_quorum=_quorum(spec, preset, replicas),
        grace=_grace(spec, preset),
        weighting=spec.weighting or preset.weighting,
        merge=spec.merge or preset.merge,
        encode_up=up,
        encode_down=spec.encoding.down or preset.down,
        rounding_up=Rounding.NEAREST if error_feedback or up is Codec.FP32 else Rounding.STOCHASTIC,
        error_feedback=error_feedback,
        outer_lr=outer_lr,
        outer_momentum=preset.outer_momentum if outer.momentum is None else outer.momentum,
        late=spec.late_contributions or LateContributions.REBASE,
        guard=guard if spec.guard.enabled else None,
        max_passes=max_passes,
    )


def _pieces(fragmentation: Fragmentation, shape: ModelShape) -> int:
    """The most fragments this model can be cut into."""
    return shape.num_layers if fragmentation is Fragmentation.LAYER else shape.num_tensors


def _quorum(spec: AlgorithmSpec, preset: Preset, replicas: int) -> int:
    if isinstance(spec.quorum.min_learners, int):
        return spec.quorum.min_learners
    return replicas if preset.synchronous else 1


def _grace(spec: AlgorithmSpec, preset: Preset) -> Grace:
    grace = spec.quorum.grace
    if isinstance(grace, int):
        return FixedGrace(seconds=float(grace))
    if grace == "Deadline" or (grace is None and preset.synchronous):
        return DeadlineGrace()
    return AdaptiveGrace() if spec.quorum.gamma is None else AdaptiveGrace(gamma=spec.quorum.gamma)


def _broken(spec: AlgorithmSpec, policy: SyncPolicy, max_learners: int, shape: ModelShape) -> Iterator[Problem]:
    yield from _broken_schedule(spec, policy, shape)
    yield from _broken_quorum(spec, policy, max_learners)
    if policy.error_feedback and policy.encode_up is Codec.FP32:
        yield Problem(f"{PATH}.encoding.errorFeedback", "true", rules.FEEDBACK_NEEDS_LOSS)


def _broken_schedule(spec: AlgorithmSpec, policy: SyncPolicy, shape: ModelShape) -> Iterator[Problem]:
    """H, P, tau and alpha."""
    every, fragments, delay = policy.sync_every, policy.num_fragments, policy.sync_delay
    layerwise = policy.fragmentation is Fragmentation.LAYER
    if fragments > every:
        yield Problem(f"{PATH}.fragments", f"{fragments}", f"{rules.AT_MOST_SYNC_EVERY} (syncEvery is {every})")
    if fragments > _pieces(policy.fragmentation, shape):
        rule = rules.AT_MOST_LAYERS if layerwise else rules.AT_MOST_TENSORS
        yield Problem(f"{PATH}.fragments", f"{fragments}", f"{rule} ({_pieces(policy.fragmentation, shape)})")
    given = f"{delay}" if spec.sync_delay is not None else f"{delay} (default of {spec.preset})"
    if delay >= every:
        yield Problem(f"{PATH}.syncDelay", given, f"{rules.BELOW_SYNC_EVERY} (syncEvery is {every})")
    if delay < PRESETS[spec.preset].min_sync_delay:
        yield Problem(f"{PATH}.syncDelay", given, rules.STREAMING_NEEDS_DELAY)
    if policy.blend_alpha > 0 and delay == 0:
        yield Problem(f"{PATH}.blendAlpha", f"{policy.blend_alpha:g}", rules.BLEND_NEEDS_DELAY)


def _broken_quorum(spec: AlgorithmSpec, policy: SyncPolicy, max_learners: int) -> Iterator[Problem]:
    quorum, path = spec.quorum, f"{PATH}.quorum"
    if quorum.min_learners == "All" and not policy.synchronous:
        yield Problem(f"{path}.minLearners", "All", rules.ALL_NEEDS_SYNCHRONOUS)
    if isinstance(quorum.min_learners, int):
        if policy.synchronous:
            yield Problem(f"{path}.minLearners", f"{quorum.min_learners}", rules.NUMBER_NEEDS_TURNS)
        if quorum.min_learners > max_learners:
            rule = f"{rules.QUORUM_AT_MOST_LEARNERS}, {max_learners}"
            yield Problem(f"{path}.minLearners", f"{quorum.min_learners}", rule)
    if policy.synchronous and quorum.grace not in (None, "Deadline"):
        yield Problem(f"{path}.grace", f"{quorum.grace}", rules.ADAPTIVE_NEEDS_TURNS)
    if not policy.synchronous and quorum.grace == "Deadline":
        yield Problem(f"{path}.grace", "Deadline", rules.DEADLINE_NEEDS_ALL)
    if quorum.gamma is not None and not isinstance(policy.grace, AdaptiveGrace):
        yield Problem(f"{path}.gamma", f"{quorum.gamma:g}", rules.GAMMA_NEEDS_ADAPTIVE)

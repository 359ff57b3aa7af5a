"""Presets resolve to the table of the papers' defaults; what the user writes wins; defaults give way."""

from typing import get_args

import pytest

from diloco_api.algorithm import AlgorithmSpec
from diloco_api.errors import SpecError
from diloco_api.model_size import ModelShape
from diloco_api.policy import (
    AdaptiveGrace,
    Codec,
    DeadlineGrace,
    FixedGrace,
    Fragmentation,
    GuardPolicy,
    LateContributions,
    MergeRule,
    Rounding,
    SyncPolicy,
    Weighting,
)
from diloco_api.sync_policy import PRESETS, fragments_by_size, outer_lr_by_replicas, resolve

SHAPE = ModelShape(num_parameters=1_000_000, num_tensors=200, num_layers=24)


def resolved(
    preset: str = "DecoupledDiLoCo", *, replicas: int = 3, shape: ModelShape = SHAPE, **fields: object
) -> SyncPolicy:
    spec = AlgorithmSpec.model_validate({"preset": preset, **fields})
    return resolve(spec, replicas=replicas, max_learners=replicas, shape=shape)


TABLE = {
    "DiLoCo": SyncPolicy(
        preset="DiLoCo",
        synchronous=True,
        sync_every=500,
        num_fragments=1,
        fragmentation=Fragmentation.BALANCED_TENSOR,
        sync_delay=0,
        blend_alpha=0.0,
        min_quorum=3,
        grace=DeadlineGrace(),
        weighting=Weighting.UNIFORM,
        merge=MergeRule.MEAN,
        encode_up=Codec.FP32,
        encode_down=Codec.FP32,
        rounding_up=Rounding.NEAREST,
        error_feedback=False,
        outer_lr=0.7,
        outer_momentum=0.9,
        late=LateContributions.REBASE,
        guard=GuardPolicy(factor=10, min_samples=8),
    ),
    "StreamingDiLoCo": SyncPolicy(
        preset="StreamingDiLoCo",
        synchronous=True,
        sync_every=100,
        num_fragments=8,
        fragmentation=Fragmentation.LAYER,
        sync_delay=1,
        blend_alpha=0.5,
        min_quorum=3,
        grace=DeadlineGrace(),
        weighting=Weighting.UNIFORM,
        merge=MergeRule.MEAN,
        encode_up=Codec.E3M0,
        encode_down=Codec.BF16,
        rounding_up=Rounding.STOCHASTIC,
        error_feedback=False,
        outer_lr=0.4,
        outer_momentum=0.9,
        late=LateContributions.REBASE,
        guard=GuardPolicy(factor=10, min_samples=8),
    ),
    "DecoupledDiLoCo": SyncPolicy(
        preset="DecoupledDiLoCo",
        synchronous=False,
        sync_every=24,
        num_fragments=24,
        fragmentation=Fragmentation.BALANCED_TENSOR,
        sync_delay=2,
        blend_alpha=0.0,
        min_quorum=1,
        grace=AdaptiveGrace(gamma=0.5),
        weighting=Weighting.TOKENS,
        merge=MergeRule.RADIAL_DIRECTIONAL,
        encode_up=Codec.INT4,
        encode_down=Codec.INT8,
        rounding_up=Rounding.NEAREST,
        error_feedback=True,
        outer_lr=0.6,
        outer_momentum=0.9,
        late=LateContributions.REBASE,
        guard=GuardPolicy(factor=10, min_samples=8),
    ),
}


@pytest.mark.parametrize("preset", TABLE)
def test_a_preset_resolves_to_the_table(preset: str) -> None:
    assert resolved(preset) == TABLE[preset]


def test_every_preset_a_user_can_name_is_in_the_table() -> None:
    assert set(get_args(AlgorithmSpec.model_fields["preset"].annotation)) == set(PRESETS) == set(TABLE)


OVERRIDES: list[tuple[dict[str, object], dict[str, object]]] = [
    ({"syncEvery": 30}, {"sync_every": 30}),
    ({"fragments": 5}, {"num_fragments": 5}),
    ({"fragmentation": "Layer"}, {"fragmentation": Fragmentation.LAYER}),
    ({"syncDelay": 0}, {"sync_delay": 0}),
    ({"blendAlpha": 0.25}, {"blend_alpha": 0.25}),
    ({"quorum": {"minLearners": 2}}, {"min_quorum": 2}),
    ({"quorum": {"grace": 0}}, {"grace": FixedGrace(seconds=0)}),
    ({"quorum": {"grace": 7}}, {"grace": FixedGrace(seconds=7)}),
    ({"quorum": {"gamma": 0.0}}, {"grace": AdaptiveGrace(gamma=0)}),
    ({"weighting": "Uniform"}, {"weighting": Weighting.UNIFORM}),
    ({"merge": "Mean"}, {"merge": MergeRule.MEAN}),
    ({"encoding": {"down": "fp32"}}, {"encode_down": Codec.FP32}),
    ({"outerOptimizer": {"learningRate": 1, "momentum": 0}}, {"outer_lr": 1.0, "outer_momentum": 0.0}),
    ({"lateContributions": "Drop"}, {"late": LateContributions.DROP}),
    ({"guard": {"enabled": False}}, {"guard": None}),
    ({"guard": {"factor": 3, "minSamples": 64}}, {"guard": GuardPolicy(factor=3, min_samples=64)}),
]


@pytest.mark.parametrize(("fields", "expected"), OVERRIDES, ids=lambda value: str(value))
def test_what_the_user_writes_changes_that_and_nothing_else(
    fields: dict[str, object], expected: dict[str, object]
) -> None:
    assert resolved(**fields) == TABLE["DecoupledDiLoCo"].model_copy(update=expected)


@pytest.mark.parametrize(
    ("up", "feedback", "rounding"),
    [
        ("fp32", None, Rounding.NEAREST),
        ("int8", None, Rounding.NEAREST),
        ("int8", True, Rounding.NEAREST),
        ("int8", False, Rounding.STOCHASTIC),
        ("bf16", False, Rounding.STOCHASTIC),
    ],
)
def test_a_lossy_uplink_rounds_stochastically_unless_its_loss_is_fed_back(
    up: str, feedback: bool | None, rounding: Rounding
) -> None:
    policy = resolved(encoding={"up": up, "errorFeedback": feedback})

    assert policy.rounding_up is rounding
    assert policy.error_feedback is (up != "fp32" if feedback is None else feedback)


@pytest.mark.parametrize(
    ("replicas", "rate"), [(1, 0.4), (2, 0.6), (5, 0.6), (6, 0.8), (200, 0.8)], ids=lambda value: str(value)
)
def test_the_outer_rate_of_turns_follows_the_replicas_wanted(replicas: int, rate: float) -> None:
    assert outer_lr_by_replicas(replicas) == rate
    assert resolved(replicas=replicas).outer_lr == rate
    assert resolved("DiLoCo", replicas=replicas).outer_lr == 0.7
    assert resolved(replicas=replicas, outerOptimizer={"learningRate": 0.1}).outer_lr == 0.1
    assert resolved("DiLoCo", replicas=replicas, outerOptimizer={"learningRate": 0.1}).outer_lr == 0.1


@pytest.mark.parametrize(
    ("parameters", "fragments"),
    [(1, 8), (2 * 10**9, 8), (2 * 10**9 + 1, 16), (15 * 10**9, 16), (10**11, 36), (150 * 10**9, 36), (10**12, 40)],
    ids=lambda value: str(value),
)
def test_streaming_cuts_a_bigger_model_into_more_fragments(parameters: int, fragments: int) -> None:
    assert fragments_by_size(parameters) == fragments
    deep = ModelShape(num_parameters=parameters, num_tensors=1000, num_layers=120)
    assert resolved("StreamingDiLoCo", shape=deep).num_fragments == fragments


SMALL = ModelShape(num_parameters=1000, num_tensors=11, num_layers=1)


@pytest.mark.parametrize(
    ("preset", "shape", "fields", "fragments"),
    [
        ("DecoupledDiLoCo", SMALL, {}, 11),
        ("DecoupledDiLoCo", SMALL, {"fragmentation": "Layer"}, 1),
        ("DecoupledDiLoCo", SHAPE, {"syncEvery": 6}, 6),
        ("StreamingDiLoCo", SMALL, {}, 1),
        ("StreamingDiLoCo", SMALL, {"fragmentation": "BalancedTensor"}, 8),
        ("StreamingDiLoCo", SHAPE, {"syncEvery": 4}, 4),
        ("DiLoCo", SMALL, {}, 1),
    ],
)
def test_default_fragments_give_way_to_the_model_and_to_h(
    preset: str, shape: ModelShape, fields: dict[str, object], fragments: int
) -> None:
    assert resolved(preset, shape=shape, **fields).num_fragments == fragments


@pytest.mark.parametrize(
    ("preset", "fields", "delay", "alpha"),
    [
        ("DecoupledDiLoCo", {"syncEvery": 2}, 1, 0.0),
        ("DecoupledDiLoCo", {"syncEvery": 1}, 0, 0.0),
        ("DiLoCo", {"syncEvery": 1}, 0, 0.0),
        ("DiLoCo", {"syncDelay": 3}, 3, 0.0),
        ("StreamingDiLoCo", {"syncEvery": 2}, 1, 0.5),
    ],
)
def test_default_delay_and_blend_give_way_to_h_and_delay(
    preset: str, fields: dict[str, object], delay: int, alpha: float
) -> None:
    policy = resolved(preset, **fields)
    assert (policy.sync_delay, policy.blend_alpha) == (delay, alpha)


def test_a_broken_rule_is_an_error_that_names_field_value_and_rule() -> None:
    with pytest.raises(
        SpecError, match=r"^spec\.algorithm\.syncDelay: 24: must be below syncEvery.*\(syncEvery is 24\)$"
    ):
        resolved(syncDelay=24)


def test_max_passes_are_taken_from_the_data() -> None:
    spec = AlgorithmSpec()
    assert resolve(spec, replicas=1, max_learners=1, shape=SHAPE, max_passes=3).max_passes == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"syncEvery": 0},
        {"fragments": 0},
        {"syncDelay": -1},
        {"blendAlpha": 1.01},
        {"blendAlpha": float("nan")},
        {"outerOptimizer": {"learningRate": 0}},
        {"outerOptimizer": {"momentum": 1}},
        {"guard": {"factor": 1}},
        {"guard": {"minSamples": 65}},
        {"encoding": {"up": "fp8"}},
        {"preset": "OpenDiLoCo"},
        {"quorum": {"minLearners": True}},
        {"quorum": {"grace": 0.5}},
        {"quorum": {"gamma": 2}},
    ],
    ids=lambda value: str(value),
)
def test_a_value_out_of_its_own_bounds_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        AlgorithmSpec.model_validate(fields)


def test_a_policy_is_read_back_from_both_spellings() -> None:
    policy = resolved()
    assert SyncPolicy.model_validate_json(policy.model_dump_json()) == policy
    assert SyncPolicy.model_validate_json(policy.model_dump_json(by_alias=True)) == policy
    assert "sync_every" in policy.model_dump()
    assert "syncEvery" in policy.model_dump(by_alias=True)

"""The norm guard."""

import json
import math

import pytest

from diloco_api.sync_policy import GuardPolicy
from diloco_trainer.algorithm.events import RefusalReason
from diloco_trainer.algorithm.guard import WINDOW, NormHistory, judge

RATE = 1.0
POLICY = GuardPolicy(factor=10.0, min_samples=8)


def history(count: int, norm: float = 1.0, c_steps: int = 20) -> NormHistory:
    result = NormHistory()
    for _ in range(count):
        result = result.with_merged(norm, c_steps, RATE, index=0, incarnation=1)
    return result


@pytest.mark.parametrize("norm", [math.nan, math.inf])
@pytest.mark.parametrize("policy", [None, POLICY])
def test_non_finite_norm_is_refused_by_name_with_or_without_a_policy(policy: GuardPolicy | None, norm: float) -> None:
    verdict = judge(policy, NormHistory(), norm, 1, RATE)
    assert (verdict.ok, verdict.reason) == (False, RefusalReason.NON_FINITE)


@pytest.mark.parametrize(
    ("samples", "norm", "c_steps", "ok"),
    [
        pytest.param(7, 1e9, 20, True, id="too few samples"),
        pytest.param(8, 10.0, 20, True, id="at the limit"),
        pytest.param(8, 10.001, 20, False, id="above the limit"),
        pytest.param(8, 9.9, 10, True, id="fewer steps do not lower the limit"),
        pytest.param(8, 10.001, 10, False, id="fewer steps do not raise the limit"),
        pytest.param(8, 39.9, 80, True, id="four times the steps raise it"),
        pytest.param(8, 40.1, 80, False, id="four times the steps raise it four times only"),
        pytest.param(8, 0.0, 20, True, id="zero"),
    ],
)
def test_outliers_are_refused(samples: int, norm: float, c_steps: int, ok: bool) -> None:
    verdict = judge(POLICY, history(samples), norm, c_steps, RATE)
    assert verdict.ok is ok
    assert verdict.reason is (None if ok else RefusalReason.NORM_OUTLIER)
    assert bool(verdict.message) is not ok


def test_without_a_policy_any_finite_norm_passes() -> None:
    assert judge(None, history(20), 1e30, 1, RATE).ok


def test_median_ignores_a_few_wild_samples() -> None:
    mixed = history(6)
    for norm in (1e6, 1e7):
        mixed = mixed.with_merged(norm, 20, RATE, index=0, incarnation=1)
    assert not judge(POLICY, mixed, 11.0, 20, RATE).ok


def test_first_movement_after_nothing_but_zeros_passes() -> None:
    assert judge(POLICY, history(10, norm=0.0), 5.0, 20, RATE).ok


def test_history_keeps_the_last_64_and_survives_a_snapshot() -> None:
    full = history(WINDOW, norm=100.0)
    for place in range(40):
        full = full.with_merged(float(place), place, RATE, index=0, incarnation=1)
    assert len(full.samples) == WINDOW
    assert full.samples[-1] == (39.0, 39, RATE)
    assert NormHistory.from_json(json.loads(json.dumps(full.to_json()))) == full


def test_warm_up_makes_no_outliers() -> None:
    """A healthy body at the peak rate among samples made at a hundredth of it."""
    warm = NormHistory()
    for _ in range(20):
        warm = warm.with_merged(0.01, 20, 1e-5, index=0, incarnation=1)
    assert judge(POLICY, warm, 1.0, 20, 1e-3).ok
    assert not judge(POLICY, warm, 1.0, 20, 1e-5).ok


@pytest.mark.parametrize("rate", [0.0, 1e-9, 1e-2])
def test_a_rate_near_zero_lets_leftovers_of_error_feedback_pass_and_nothing_longer_than_usual(rate: float) -> None:
    assert judge(POLICY, history(10), 0.15, 20, rate * RATE).ok
    assert judge(POLICY, history(10), 1.0, 20, rate * RATE).ok
    assert not judge(POLICY, history(10), 1.001, 20, rate * RATE).ok


def test_leftovers_among_the_samples_do_not_open_the_guard() -> None:
    """Residuals sent at rate zero count as made at a tenth of the usual rate, not as infinitely long steps."""
    mixed = history(10)
    for _ in range(9):
        mixed = mixed.with_merged(0.15, 20, 0.0, index=0, incarnation=1)
    assert not judge(POLICY, mixed, 15.1, 20, RATE).ok


def test_where_no_rate_is_known_norms_are_compared_as_they_are() -> None:
    still = NormHistory()
    for _ in range(10):
        still = still.with_merged(1.0, 20, 0.0, index=0, incarnation=1)
    assert judge(POLICY, still, 9.9, 20, 0.0).ok
    assert not judge(POLICY, still, 10.1, 20, 0.0).ok


def test_what_error_feedback_carries_over_from_a_long_stretch_is_not_held_against_a_short_one() -> None:
    merged = history(20).with_merged(400.0, 800, RATE, index=3, incarnation=2)
    carried = merged.norm_before(3, 2)
    assert carried == 400.0
    assert not judge(POLICY, merged, 60.0, 1, RATE).ok
    assert judge(POLICY, merged, 60.0, 1, RATE, carried=carried).ok
    assert judge(POLICY, merged, 410.0, 20, RATE, carried=carried).ok
    verdict = judge(POLICY, merged, 410.1, 20, RATE, carried=carried)
    assert verdict.reason is RefusalReason.NORM_OUTLIER
    assert "less 400 carried over" in verdict.message


def test_nothing_is_carried_over_from_another_learner_or_an_earlier_incarnation() -> None:
    merged = history(20).with_merged(400.0, 800, RATE, index=3, incarnation=2)
    assert (merged.norm_before(2, 1), merged.norm_before(3, 3)) == (0.0, 0.0)

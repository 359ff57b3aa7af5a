"""Weights of contributions."""

import pytest

from diloco_api.sync_policy import Weighting
from diloco_trainer.algorithm.weights import weight


def test_token_weight_is_tokens_times_mean_batch() -> None:
    assert weight(Weighting.TOKENS, 6000, 3) == 6000 * 2000


def test_twice_the_batch_at_equal_steps_weighs_four_times() -> None:
    assert weight(Weighting.TOKENS, 2000, 10) == 4 * weight(Weighting.TOKENS, 1000, 10)


def test_twice_the_steps_at_equal_batch_weighs_twice() -> None:
    assert weight(Weighting.TOKENS, 2000, 20) == 2 * weight(Weighting.TOKENS, 1000, 10)


def test_uniform_weight_is_one() -> None:
    assert weight(Weighting.UNIFORM, 123, 4) == weight(Weighting.UNIFORM, 99999, 1) == 1.0


@pytest.mark.parametrize("rule", list(Weighting))
def test_no_step_weighs_nothing(rule: Weighting) -> None:
    assert weight(rule, 0, 0) == 0.0


@pytest.mark.parametrize("rule", list(Weighting))
def test_negative_counts_are_refused(rule: Weighting) -> None:
    with pytest.raises(ValueError, match="negative"):
        weight(rule, -1, 1)

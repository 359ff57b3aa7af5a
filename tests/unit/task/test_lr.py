"""Learning rate over progress."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diloco_api.train import DataSpec, TrainSpec
from diloco_trainer.task.lr import LearningRate, StampedProgress, budget_steps, make_learning_rate, ramp

TRAIN = TrainSpec(data=DataSpec(uri="x", sequence_length=100))  # 8 sequences a batch, 100 steps of warm-up


@pytest.mark.parametrize(
    ("progress", "rate"),
    [(0.0, 0.0), (0.05, 0.5), (0.1, 1.0), (0.55, 0.55), (1.0, 0.1), (2.0, 0.1)],
)
def test_rate_rises_linearly_then_falls_as_a_cosine(progress: float, rate: float) -> None:
    assert LearningRate(1.0, warmup_fraction=0.1, final_fraction=0.1).at(progress) == pytest.approx(rate)


def test_no_warmup_starts_at_the_peak() -> None:
    assert LearningRate(2.0, warmup_fraction=0.0, final_fraction=0.0).at(0.0) == 2.0


def test_a_warmup_as_long_as_the_job_ends_at_the_peak() -> None:
    rate = make_learning_rate(TRAIN, replicas=10, budget_tokens=1000)
    assert rate.warmup_fraction == 1.0
    assert rate.at(1.0) == pytest.approx(TRAIN.optimizer.learning_rate)


def test_warmup_counts_steps_of_the_job() -> None:
    rate = make_learning_rate(TRAIN, replicas=4, budget_tokens=4 * 8 * 100 * 1000)
    assert rate.warmup_fraction == pytest.approx(0.1)


@given(st.lists(st.floats(0, 1), min_size=2), st.floats(0, 0.9), st.floats(0, 1))
def test_rate_is_monotone_on_both_sides_of_the_peak(values: list[float], warmup: float, final: float) -> None:
    rate = LearningRate(1.0, warmup, final)
    for before, after in itertools.pairwise(sorted(values)):
        if after < warmup:
            assert rate.at(before) <= rate.at(after)
        elif before >= warmup:
            assert rate.at(before) >= rate.at(after)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1e6), st.floats(1e-3, 10))))
def test_stamped_progress_never_falls_and_never_passes_one(events: list[tuple[float, float, float]]) -> None:
    progress = StampedProgress(nominal_step=0.001)
    last = 0.0
    for stamp, pace, step_seconds in events:
        progress.adopted(stamp, pace)
        reached = progress.next_step(step_seconds, budget_tokens=10**6)
        assert last <= reached <= 1.0
        last = reached


def test_progress_runs_at_the_pace_of_the_job_between_stamps() -> None:
    progress = StampedProgress(nominal_step=0.01)
    assert progress.next_step(None, 1000) == pytest.approx(0.01)
    progress.adopted(0.5, tokens_per_second=20.0)
    assert progress.next_step(1.0, 1000) == pytest.approx(0.52)
    assert progress.next_step(1.0, 1000) == pytest.approx(0.54)


def test_an_older_stamp_changes_nothing() -> None:
    progress = StampedProgress(nominal_step=0.01)
    progress.adopted(0.5, tokens_per_second=20.0)
    progress.next_step(1.0, 1000)
    progress.adopted(0.4, tokens_per_second=99.0)
    assert progress.next_step(1.0, 1000) == pytest.approx(0.54)


def test_budget_in_steps_is_rounded_up_to_whole_steps_of_all_learners() -> None:
    assert budget_steps(TRAIN, replicas=2, budget_tokens=1600) == 1
    assert budget_steps(TRAIN, replicas=2, budget_tokens=1601) == 2


def test_a_replacement_ramps_to_the_full_rate() -> None:
    assert [ramp(step, 4) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert ramp(0, 0) == 1.0

"""The learning rate a step gets."""

import itertools
from pathlib import Path

import pytest

from diloco_api.run_config import RunConfig
from diloco_api.train import ScheduleSpec
from diloco_trainer.learner.rate import Rate
from fakes.learners import make_run
from fakes.sync_jobs import decoupled, synchronous


def job(tmp_path: Path, is_synchronous: bool, warmup_steps: int = 10) -> RunConfig:
    run = make_run(tmp_path, synchronous() if is_synchronous else decoupled(), {"budget_tokens": 64 * 100})
    schedule = ScheduleSpec(warmup_steps=warmup_steps)
    return run.model_copy(update={"train": run.train.model_copy(update={"schedule": schedule})})


@pytest.mark.parametrize("is_synchronous", [True, False])
def test_the_rate_rises_to_the_peak_and_falls_to_the_end_of_the_budget(tmp_path: Path, is_synchronous: bool) -> None:
    rate = Rate(job(tmp_path, is_synchronous))
    rates = [rate.next(step, None) for step in range(100)]
    assert rates[0] == pytest.approx(1e-4)
    assert max(rates) == pytest.approx(1e-3)
    assert rates[99] == pytest.approx(5e-5)
    assert all(a < b for a, b in itertools.pairwise(rates[:10]))
    assert all(a > b for a, b in itertools.pairwise(rates[10:]))


def test_a_joiner_of_a_synchronous_job_takes_the_step_of_the_job(tmp_path: Path) -> None:
    run = job(tmp_path, is_synchronous=True)
    old, new = Rate(run), Rate(run)
    for step in range(50):
        old.next(step, None)
    assert new.next(50, None) == old.next(50, None)


def test_a_stamp_moves_a_decoupled_learner_on(tmp_path: Path) -> None:
    rate = Rate(job(tmp_path, is_synchronous=False))
    first = rate.next(0, None)
    rate.adopted(0.9, 640.0)
    assert rate.next(1, 0.1) < 1e-3 * 0.2
    assert first == pytest.approx(1e-4)


def test_a_replacement_ramps_up_on_top_of_the_schedule(tmp_path: Path) -> None:
    run = job(tmp_path, is_synchronous=True)
    plain, ramped = Rate(run), Rate(run)
    ramped.joined(rejoin=True)
    plain.joined(rejoin=False)
    shares = [ramped.next(step, None) / plain.next(step, None) for step in range(100)]
    assert shares[:3] == pytest.approx([0.01, 0.02, 0.03])
    assert shares[99] == 1.0
    assert (ramped.warmup_left, plain.warmup_left) == (0, 0)


def test_what_is_left_of_the_ramp_is_known(tmp_path: Path) -> None:
    rate = Rate(job(tmp_path, is_synchronous=True))
    rate.joined(rejoin=True)
    rate.next(0, None)
    assert rate.warmup_left == 99

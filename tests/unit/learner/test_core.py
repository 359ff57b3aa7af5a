"""What stages and adoptions do to model, optimizer and counters."""

from pathlib import Path

import pytest
import torch

from diloco_api.train import BatchSpec
from diloco_trainer.algorithm.fragments import gather
from diloco_trainer.learner.core import Adopted, Adoption, LearnerCore
from diloco_trainer.task.task import Task
from fakes.learners import anchors_of, make_core, make_run
from fakes.sync_jobs import decoupled, synchronous


def train(task: Task, core: LearnerCore, steps: int, first: int = 0) -> list[float]:
    batches = [task.batch(0, range(4 * step, 4 * step + 4)) for step in range(first, first + steps)]
    return [core.train_step(batch, 1e-2) for batch in batches]


def adopt(core: LearnerCore, stage, published: torch.Tensor, version: int = 1, **more: object) -> Adopted:
    return core.adopt(Adoption(stage.fragment, version, published, stage, **more))


def test_steps_and_tokens_are_counted_per_fragment_since_its_adoption(tmp_path: Path) -> None:
    task, core = make_core(make_run(tmp_path, decoupled()))
    train(task, core, 2)
    core.train_step(task.batch(0, [0, 1]), 1e-2)  # a short batch
    assert [(clock.c_tokens, clock.c_steps) for clock in core.clocks] == [(160, 3), (160, 3)]
    adopt(core, core.stage(0), anchors_of(core)[0])
    train(task, core, 1)
    assert [(clock.c_tokens, clock.c_steps, clock.base_version) for clock in core.clocks] == [(64, 1, 1), (224, 4, 0)]
    assert (core.token_clock, core.job_step, core.steps) == (224, 4, 4)


def test_a_stage_is_a_copy_that_later_steps_do_not_touch(tmp_path: Path) -> None:
    task, core = make_core(make_run(tmp_path, decoupled()))
    train(task, core, 1)
    stage = core.stage(0)
    before = stage.values.clone()
    train(task, core, 1)
    assert torch.equal(stage.values, before)
    assert not torch.equal(anchors_of(core)[0], before)
    assert (stage.job_step, stage.token_clock, stage.c_tokens, stage.c_steps) == (1, 64, 64, 1)


def test_a_fragment_that_has_not_moved_is_staged_without_values(tmp_path: Path) -> None:
    _, core = make_core(make_run(tmp_path, decoupled()))
    stage = core.stage(1)
    assert (stage.c_steps, stage.values.numel()) == (0, 0)


def test_a_timely_adoption_overwrites_and_counts_from_itself(tmp_path: Path) -> None:
    task, core = make_core(make_run(tmp_path, decoupled({"sync_delay": 2, "sync_every": 4})))
    train(task, core, 3)
    stage = core.stage(0)
    train(task, core, 2)
    published = torch.randn_like(stage.values)
    assert adopt(core, stage, published) is Adopted.TIMELY
    assert torch.equal(gather(core.layout.fragments[0], core.params), published)
    assert (core.clocks[0].c_tokens, core.clocks[0].c_steps) == (0, 0)


def test_a_timely_adoption_blends_with_alpha(tmp_path: Path) -> None:
    task, core = make_core(make_run(tmp_path, synchronous({"sync_delay": 1, "blend_alpha": 0.5})))
    train(task, core, 1)
    stage = core.stage(0)
    train(task, core, 1)
    local, published = anchors_of(core)[0], torch.randn_like(stage.values)
    assert adopt(core, stage, published) is Adopted.TIMELY
    assert torch.equal(anchors_of(core)[0], 0.5 * local + 0.5 * published)


@pytest.mark.parametrize("alpha", [0.0, 0.25])
def test_a_late_adoption_keeps_the_steps_since_the_stage(tmp_path: Path, alpha: float) -> None:
    task, core = make_core(make_run(tmp_path, decoupled({"blend_alpha": alpha})))  # tau = 1
    train(task, core, 2)
    stage = core.stage(0)
    train(task, core, 2)
    local, published = anchors_of(core)[0], torch.randn_like(stage.values)
    assert adopt(core, stage, published) is Adopted.LATE
    assert torch.equal(anchors_of(core)[0], local + (1 - alpha) * (published - stage.values))
    assert (core.clocks[0].c_tokens, core.clocks[0].c_steps) == (128, 2)


def test_values_that_are_not_finite_are_thrown_away_however_late(tmp_path: Path) -> None:
    task, core = make_core(make_run(tmp_path, decoupled()))
    train(task, core, 1)
    with torch.no_grad():
        core.params[core.layout.fragments[0].tensors[0].name].fill_(torch.nan)
    stage = core.stage(0)
    train(task, core, 5)
    published = torch.randn_like(stage.values)
    assert adopt(core, stage, published, overwrite=True) is Adopted.OVERWRITTEN
    assert torch.equal(anchors_of(core)[0], published)
    assert core.clocks[0].c_steps == 0


def test_an_adoption_of_other_fragments_leaves_the_rest_alone(tmp_path: Path) -> None:
    task, core = make_core(make_run(tmp_path, decoupled()))
    train(task, core, 1)
    before = anchors_of(core)
    adopt(core, core.stage(0), torch.zeros_like(before[0]))
    assert torch.equal(anchors_of(core)[1], before[1])


def test_the_state_of_the_inner_optimizer_survives_every_adoption_and_rejoin(tmp_path: Path) -> None:
    """Adopting one's own values changes nothing: training goes on as a plain loop would, to the bit."""
    run = make_run(tmp_path, synchronous({"num_fragments": 1}))
    task, core = make_core(run)
    _, plain = make_core(run)
    losses, wanted = [], train(task, plain, 12)
    for step in range(12):
        losses += train(task, core, 1, first=step)
        stage = core.stage(0)
        adopt(core, stage, stage.values.clone(), version=step + 1)
        if step == 6:
            core.install([step + 1], anchors_of(core), core.job_step)
    assert losses == wanted
    assert all(torch.equal(core.params[name], plain.params[name]) for name in core.params)
    counts = {int(state["step"]) for state in core.optimizer.state.values()}
    assert counts == {12}


def test_micro_batches_take_the_same_step_as_the_whole_batch(tmp_path: Path) -> None:
    task, whole = make_core(make_run(tmp_path, decoupled()))
    _, parts = make_core(make_run(tmp_path, decoupled(), batch=BatchSpec(sequences=4, micro_batch=2)))
    assert train(task, parts, 3) == pytest.approx(train(task, whole, 3), rel=1e-5)


def test_a_gradient_that_is_not_finite_changes_nothing(tmp_path: Path) -> None:
    task, core = make_core(make_run(tmp_path, decoupled()))
    train(task, core, 1)
    weight = core.params["head.weight"]
    with torch.no_grad():
        saved = weight.clone()
        weight.fill_(torch.inf)
    train(task, core, 2)
    with torch.no_grad():
        weight.copy_(saved)
    assert all(bool(torch.isfinite(loss)) for loss in map(torch.tensor, train(task, core, 2)))
    moments = [tensor for state in core.optimizer.state.values() for tensor in state.values()]
    assert all(bool(torch.isfinite(tensor).all()) for tensor in moments)

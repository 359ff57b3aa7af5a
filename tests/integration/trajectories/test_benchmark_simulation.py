"""The one-process simulation of `benchmarks/learners_scaling.py` equals the reference bit for bit.

Compared: outer parameters, momentum and published values of the last version of every fragment, int4 up with error
feedback and int8 down, for Learners in lock-step whose versions are adopted tau = 1 steps after their stage.
"""

import importlib.util
from pathlib import Path

import torch

from diloco_trainer.task.task import make_task
from reference import decoupled, lockstep
from reference.hand import run_config
from reference.task_inner import TaskInner, fixed_work

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "learners_scaling.py"
STEPS = 20


def load_script():
    spec = importlib.util.spec_from_file_location("learners_scaling", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_simulation_of_the_scaling_benchmark_equals_the_reference(tmp_path):
    script = load_script()
    changes = {"algorithm.syncEvery": 6, "algorithm.fragments": 3, "algorithm.syncDelay": script.ADOPTED_AFTER_STEPS}
    run = run_config(tmp_path, "DecoupledDiLoCo", replicas=2, steps=STEPS, changes=changes)
    task = make_task(run.train)
    simulation = script.Simulation(run, task)
    outcome = simulation.train(STEPS)
    common = {"replicas": 2, "steps": STEPS, "num_sequences": task.num_sequences}
    fragments = simulation.cores[0].layout.fragments
    inners = [TaskInner(task, run.train, fragments, fixed_work(run.train, index=m, **common)) for m in range(2)]
    rules = decoupled.Rules(
        lr=0.6, mu=0.9, sync_delay=script.ADOPTED_AFTER_STEPS, up="int4", down="int8", error_feedback=True
    )
    wanted = lockstep.train_in_turns(inners, rules, steps=STEPS, sync_every=6)
    for f, state in enumerate(simulation.states):
        newest = wanted.newest(f)
        assert state.version == newest.version > 2
        for name in ("theta", "momentum", "published"):
            bits = [getattr(side, name).view(torch.int32) for side in (state, newest)]
            assert torch.equal(*bits), f"{name} of fragment {f}"
    assert 0 < outcome.loss < 5.5

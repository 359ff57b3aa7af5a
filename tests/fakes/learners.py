"""Tiny Learners for tests of the learner package: a GPT of two thousand parameters on a text of a few kilobytes."""

from collections.abc import Mapping
from pathlib import Path

import torch

from diloco_api.policy import SyncPolicy
from diloco_api.run_config import RunConfig
from diloco_api.tokens import Identity
from diloco_api.train import BatchSpec, DataSpec, GptSpec, TrainSpec
from diloco_trainer.learner.core import LearnerCore
from diloco_trainer.learner.uplink import Uplink
from diloco_trainer.task.task import Task, make_task
from fakes.synchronizer_backend import JOB

CPU = torch.device("cpu")
ME = Identity(JOB, 0, 1)


def make_run(
    folder: Path, policy: SyncPolicy, changes: Mapping[str, object] | None = None, *, batch: BatchSpec | None = None
) -> RunConfig:
    (folder / "text.txt").write_bytes(b"the quick brown fox jumps over the lazy dog. " * 80)
    train = TrainSpec(
        model=GptSpec(layers=1, hidden=8, heads=1, mlp_ratio=1),
        data=DataSpec(uri=str(folder / "text.txt"), sequence_length=16, validation_part=0.1),
        batch=batch or BatchSpec(sequences=4),
    )
    fields: dict[str, object] = {
        "job_name": "toy",
        "job_namespace": "default",
        "job_uid": JOB,
        "policy": policy,
        "train": train,
        "budget_tokens": 100_000,
        "replicas": 1,
        "min_learners": 1,
        "synchronizer_port": 0,
        "admin_port": 0,
        "synchronizer_metrics_port": 0,
        "learner_metrics_port": 0,
    }
    return RunConfig.model_validate({**fields, **(changes or {})})


def make_core(run: RunConfig) -> tuple[Task, LearnerCore]:
    """A core that has joined at version 0 with its own initial values."""
    task = make_task(run.train)
    core = LearnerCore(task, run.train, run.policy, CPU)
    core.install([0] * run.policy.num_fragments, anchors_of(core), 0)
    return task, core


def anchors_of(core: LearnerCore) -> list[torch.Tensor]:
    """Present values of every fragment, flat."""
    return [
        torch.cat([core.params[tensor.name].detach().flatten() for tensor in fragment.tensors])
        for fragment in core.layout.fragments
    ]


def make_uplink(run: RunConfig, core: LearnerCore) -> Uplink:
    uplink = Uplink(ME, core.layout, run.policy, run.train.seed)
    uplink.install(7, [0] * run.policy.num_fragments, anchors_of(core))
    return uplink

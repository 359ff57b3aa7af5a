"""Run configs and in-process Synchronizers for tests of the Synchronizer: tiny, on a toy task, under a manual clock."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from diloco_api.policy import (
    AdaptiveGrace,
    Codec,
    DeadlineGrace,
    Fragmentation,
    GuardPolicy,
    LateContributions,
    MergeRule,
    Rounding,
    SyncPolicy,
    Weighting,
)
from diloco_api.run_config import RunConfig
from diloco_api.tokens import make_token
from diloco_api.train import BatchSpec, DataSpec, TrainSpec
from diloco_trainer.algorithm.fragments import FragmentLayout, make_layout
from diloco_trainer.synchronizer.assembly import Synchronizer, inline
from diloco_trainer.synchronizer.commit import Committer, InlineCommitter
from diloco_trainer.synchronizer.housekeeping import Limits
from diloco_trainer.synchronizer.log import Log
from diloco_trainer.wire.memory import MemorySynchronizer
from fakes.clock import ManualClock
from fakes.scripted_learner import ScriptedLearner
from fakes.toy_task import ToyTask

KEY = b"k" * 32
UID = "0a1b2c3d-0000-4000-8000-000000000000"


def decoupled(changes: Mapping[str, object] | None = None) -> SyncPolicy:
    fields: dict[str, object] = {
        "preset": "test",
        "synchronous": False,
        "sync_every": 2,
        "num_fragments": 2,
        "fragmentation": Fragmentation.BALANCED_TENSOR,
        "sync_delay": 1,
        "blend_alpha": 0.0,
        "min_quorum": 1,
        "grace": AdaptiveGrace(),
        "weighting": Weighting.TOKENS,
        "merge": MergeRule.RADIAL_DIRECTIONAL,
        "encode_up": Codec.INT4,
        "encode_down": Codec.INT8,
        "rounding_up": Rounding.NEAREST,
        "error_feedback": True,
        "outer_lr": 0.6,
        "outer_momentum": 0.9,
        "late": LateContributions.REBASE,
        "guard": GuardPolicy(),
    }
    return SyncPolicy.model_validate({**fields, **(changes or {})})


def synchronous(changes: Mapping[str, object] | None = None) -> SyncPolicy:
    fields: dict[str, object] = {
        "synchronous": True,
        "sync_delay": 0,
        "grace": DeadlineGrace(),
        "weighting": Weighting.UNIFORM,
        "merge": MergeRule.MEAN,
        "encode_up": Codec.FP32,
        "encode_down": Codec.FP32,
        "error_feedback": False,
    }
    return decoupled({**fields, **(changes or {})})


def run_config(
    policy: SyncPolicy, budget_tokens: int = 100_000, replicas: int = 2, changes: Mapping[str, object] | None = None
) -> RunConfig:
    train = TrainSpec(data=DataSpec(uri="unused", sequence_length=8), batch=BatchSpec(sequences=2), clip_norm=None)
    fields: dict[str, object] = {
        "job_name": "toy",
        "job_namespace": "default",
        "job_uid": UID,
        "policy": policy,
        "train": train,
        "budget_tokens": budget_tokens,
        "replicas": replicas,
        "min_learners": 1,
        "synchronizer_port": 0,
        "admin_port": 0,
        "synchronizer_metrics_port": 0,
        "learner_metrics_port": 0,
    }
    return RunConfig.model_validate({**fields, **(changes or {})})


def toy_layout(run: RunConfig) -> FragmentLayout:
    task = ToyTask()
    return make_layout(task.tensor_specs(task.build_model()), run.policy.num_fragments, run.policy.fragmentation)


class Bench:
    """A real engine without threads, and Learners that speak to it through the in-memory exchange."""

    def __init__(
        self,
        run: RunConfig,
        folder: Path,
        clock: ManualClock | None = None,
        limits: Limits | None = None,
        committer: Callable[[Log, Callable[[int], None]], Committer] = InlineCommitter,
    ) -> None:
        self.run = run
        self.folder = folder
        self.clock = clock or ManualClock()
        self.layout = toy_layout(run)
        self.synchronizer: Synchronizer = inline(run, ToyTask(), folder, self.clock, limits, committer)
        self.engine = self.synchronizer.engine
        self.engine.start()

    def learner(self, index: int, incarnation: int = 1) -> ScriptedLearner:
        return ScriptedLearner(self.run, self.layout, self.wire(index, incarnation), index, incarnation)

    def wire(self, index: int, incarnation: int = 1) -> MemorySynchronizer:
        token = make_token(KEY, self.run.job_uid, index, incarnation)
        return MemorySynchronizer(self.synchronizer.backend, key=KEY, job_uid=self.run.job_uid, token=token)

    def advance(self, seconds: float) -> None:
        """Let time pass, and the engine notice."""
        self.clock.advance(seconds)
        self.engine.post(self._tick)

    def _tick(self) -> None:
        self.engine.tick()

    def crashed(self) -> "Bench":
        """A new Synchronizer on what is on the volume at this instant; this one is of no use any more."""
        copy = self.folder.with_name(self.folder.name + "+")
        shutil.copytree(self.folder, copy)
        return Bench(self.run, copy, self.clock)

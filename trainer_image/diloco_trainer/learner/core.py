"""The training half of a Learner: model, inner optimizer, and what stages and adoptions do to them.

No threads, no I/O, no clock: the training thread drives it, and so can a test, step by step. Per fragment it counts
the tokens and steps since the last adoption. The inner optimizer's state is never reset or exchanged (DiLoCo, arXiv
2311.08105, section 2). Adoption: Streaming DiLoCo (2501.18512, algorithm 2) and Decoupled DiLoCo (2604.21428, section
3); one that comes later than tau keeps the steps since the stage. What is sent and when: `uplink` and `loop`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import torch
from torch import Tensor

from diloco_api.sync_policy import SyncPolicy
from diloco_api.train import TrainSpec
from diloco_trainer.algorithm.fragments import FragmentLayout, gather, make_layout, scatter
from diloco_trainer.algorithm.pseudo_gradient import adopt, adopt_late
from diloco_trainer.learner.staging import Stager
from diloco_trainer.task.optimizer import inner_step
from diloco_trainer.task.task import Task


@dataclass(frozen=True)
class Stage:
    """A fragment as it was at a step boundary; answers one turn, or none."""

    fragment: int
    generation: int
    """Number of the Join the stretch belongs to: stages of an earlier life are worthless."""
    base_version: int
    """Version of the anchor the stretch started from."""
    job_step: int
    token_clock: int
    """Tokens this incarnation had trained."""
    c_tokens: int
    """Tokens since the fragment was adopted."""
    c_steps: int
    mean_lr: float
    """Mean learning rate of those steps."""
    rate_sum: float
    """Sum of the rates of all steps of this incarnation."""
    values: Tensor = field(repr=False)
    """fp32 [numel] on the CPU, valid once `ready` has returned; empty when there was no step since the adoption."""
    ready: Callable[[], object] = field(repr=False)


@dataclass(frozen=True)
class Adoption:
    """A published version on its way into the model."""

    fragment: int
    version: int
    published: Tensor = field(repr=False)
    """fp32 [numel], the new anchor."""
    stage: Stage
    """What the settled contribution was made of."""
    stamp: float = 0.0
    """Share of the budget trained when the version was published."""
    tokens_per_second: float = 0.0
    overwrite: bool = False
    """Throw away the local values whatever their age: they are not finite."""


class Adopted(StrEnum):
    """What an adoption did to the steps since the stage."""

    TIMELY = "timely"  # overwritten, or blended with alpha
    LATE = "late"  # kept
    OVERWRITTEN = "overwritten"


@dataclass
class FragmentClock:
    """Counters of one fragment."""

    base_version: int = 0
    c_tokens: int = 0
    c_steps: int = 0
    c_rates: float = 0.0
    """Sum of the learning rates of those steps."""


class LearnerCore:
    """Owns model and inner optimizer; only the training thread may touch it."""

    def __init__(self, task: Task, train: TrainSpec, policy: SyncPolicy, device: torch.device) -> None:
        self._task = task
        self._train = train
        self._policy = policy
        self._device = device
        self.model = task.build_model().to(device)
        self.model.train()
        self.optimizer = task.make_optimizer(self.model)
        self.params = task.parameters(self.model)
        self.layout: FragmentLayout = make_layout(
            task.tensor_specs(self.model), policy.num_fragments, policy.fragmentation
        )
        self.clocks = [FragmentClock() for _ in self.layout.fragments]
        self.generation = 0
        self.job_step = 0
        self.steps = 0
        self.token_clock = 0
        self.rate_sum = 0.0
        self._stager = Stager(device)

    def install(self, versions: Sequence[int], anchors: Sequence[Tensor], job_step: int) -> None:
        """Take the published values of all fragments over after a Join; what was local is thrown away."""
        self._stager.before_change()
        for fragment, version, anchor in zip(self.layout.fragments, versions, anchors, strict=True):
            scatter(fragment, anchor, self.params)
            self.clocks[fragment.index] = FragmentClock(base_version=version)
        self.job_step = job_step
        self.generation += 1

    def train_step(self, batch: Tensor, lr: float) -> float:
        """One inner step on `batch` int64 [b, T + 1]; returns its mean loss in nats per token."""
        self._stager.before_change()
        loss = inner_step(
            self.model,
            self.optimizer,
            self._task.loss,
            batch.to(self._device),
            lr=lr,
            micro_batch=self._train.batch.micro_batch,
            clip_norm=self._train.clip_norm,
        )
        tokens = batch.shape[0] * (batch.shape[1] - 1)
        self.job_step += 1
        self.steps += 1
        self.token_clock += tokens
        self.rate_sum += lr
        for clock in self.clocks:
            clock.c_tokens += tokens
            clock.c_steps += 1
            clock.c_rates += lr
        return loss.item()

    def stage(self, index: int) -> Stage:
        """Copy a fragment at this step boundary."""
        clock = self.clocks[index]
        values: Tensor = torch.empty(0)
        ready: Callable[[], object] = _nothing_to_wait_for
        if clock.c_steps > 0:
            values, ready = self._stager.copy(self.layout.fragments[index], self.params)
        return Stage(
            fragment=index,
            generation=self.generation,
            base_version=clock.base_version,
            job_step=self.job_step,
            token_clock=self.token_clock,
            c_tokens=clock.c_tokens,
            c_steps=clock.c_steps,
            mean_lr=clock.c_rates / clock.c_steps if clock.c_steps else 0.0,
            rate_sum=self.rate_sum,
            values=values,
            ready=ready,
        )

    def adopt(self, adoption: Adoption) -> Adopted:
        """Take a published version over at this step boundary; timely within tau steps of the stage, else late."""
        fragment = self.layout.fragments[adoption.fragment]
        clock, stage, alpha = self.clocks[adoption.fragment], adoption.stage, self._policy.blend_alpha
        self._stager.before_change()
        if adoption.overwrite:
            kind, values = Adopted.OVERWRITTEN, adoption.published
        elif self.job_step - stage.job_step <= self._policy.sync_delay:
            kind, values = Adopted.TIMELY, adoption.published
            if alpha > 0.0:
                values = adopt(gather(fragment, self.params), adoption.published, alpha)
        else:
            kind = Adopted.LATE
            values = adopt_late(gather(fragment, self.params), adoption.published, stage.values, alpha)
        scatter(fragment, values, self.params)
        keeps_steps = kind is Adopted.LATE
        clock.c_tokens = self.token_clock - stage.token_clock if keeps_steps else 0
        clock.c_steps = self.job_step - stage.job_step if keeps_steps else 0
        clock.c_rates = self.rate_sum - stage.rate_sum if keeps_steps else 0.0
        clock.base_version = adoption.version
        return kind


def _nothing_to_wait_for() -> None:
    """An empty stage is ready at once."""

"""Decoupled DiLoCo (arXiv 2604.21428) in one process: what Learners and the Synchronizer compute, in a given order.

The paper leaves the order of events to the outside world, so does this module: a test, a tape (`replay`) or `lockstep`
calls `step`, `stage`, `contribute`, `merge` and `adopt` in the order they happened. Per Learner and fragment: c_steps
and c_tokens since the last adoption, weight c_tokens * (c_tokens / c_steps) (section 3.2), pseudo-gradient against the
Synchronizer's value last adopted (appendix D.2), RDA or direct merge, Nesterov (section 3).

What the paper leaves to the implementation, as it is here: Learners hold the published value (running sum of
quantised differences); int4 uplinks keep what they lost as a bf16 residual, which changes only when the contribution
is settled; a stage is a copy at a step boundary, and the steps after it are lost when the adoption comes within tau
steps (overlap), kept when it comes later; a body that comes too late for its round is rebased into the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from reference import arithmetic
from reference.codecs import decode, encode, round_bf16
from reference.diloco import Version
from reference.inner import Inner


@dataclass(frozen=True)
class Rules:
    """The constants of a run."""

    lr: float
    mu: float
    sync_delay: int
    blend_alpha: float = 0.0
    merge: str = "RadialDirectional"
    weighting: str = "Tokens"
    up: str = "fp32"
    down: str = "fp32"
    error_feedback: bool = False


class Stage(NamedTuple):
    """A fragment as it was at a step boundary."""

    fragment: int
    values: Tensor
    step: int
    c_tokens: int
    c_steps: int


class Contribution(NamedTuple):
    """One Learner's answer; `lost` is what quantisation took from it."""

    stage: Stage
    base: int
    body: bytes
    lost: Tensor


@dataclass
class Learner:
    """One incarnation; starts from the published values of version `bases`."""

    inner: Inner
    rules: Rules
    anchors: list[Tensor]
    bases: list[int]
    step_count: int = 0
    token_clock: int = 0
    c_tokens: list[int] = field(init=False)
    c_steps: list[int] = field(init=False)
    residual: list[Tensor] = field(init=False)
    open: dict[int, Contribution] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.c_tokens, self.c_steps = [0 for _ in self.anchors], [0 for _ in self.anchors]
        self.residual = [torch.zeros_like(anchor) for anchor in self.anchors]
        for fragment, anchor in enumerate(self.anchors):
            self.inner.write(fragment, anchor)

    def step(self) -> None:
        tokens = self.inner.step()
        self.step_count += 1
        self.token_clock += tokens
        self.c_tokens = [c + tokens for c in self.c_tokens]
        self.c_steps = [c + 1 for c in self.c_steps]

    def stage(self, fragment: int) -> Stage:
        clocks = self.step_count, self.c_tokens[fragment], self.c_steps[fragment]
        return Stage(fragment, self.inner.read(fragment), *clocks)

    def contribute(self, stage: Stage, draws: Sequence[float] | None = None) -> Contribution:
        """Anchor minus staged, plus what earlier contributions lost, encoded. Open until `settle`."""
        f = stage.fragment
        meant = arithmetic.pseudo_gradient(self.anchors[f], stage.values)
        if self.rules.error_feedback:
            meant = meant + self.residual[f]
        body = encode(self.rules.up, meant, draws)
        self.open[f] = Contribution(stage, self.bases[f], body, meant - decode(self.rules.up, body, meant.numel()))
        return self.open[f]

    def settle(self, fragment: int, outcome: str) -> Contribution:
        """`merged`, `guard` (refused as harmful: residual to zero) or `lost` (residual as before the stage)."""
        contribution = self.open.pop(fragment)
        if self.rules.error_feedback and outcome == "merged":
            self.residual[fragment] = round_bf16(contribution.lost)
        if outcome == "guard":
            self.residual[fragment] = torch.zeros_like(self.residual[fragment])
        return contribution

    def adopt(self, fragment: int, version: int, published: Tensor, stage: Stage) -> None:
        """Take a published value over; within tau steps of the stage the steps since are overwritten, else kept."""
        f, local = fragment, self.inner.read(fragment)
        if self.step_count - stage.step <= self.rules.sync_delay:
            self.inner.write(f, arithmetic.blend(local, published, self.rules.blend_alpha))
            self.c_tokens[f], self.c_steps[f] = 0, 0
        else:
            self.inner.write(f, arithmetic.blend_late(local, published, stage.values, self.rules.blend_alpha))
            self.c_tokens[f] -= stage.c_tokens
            self.c_steps[f] -= stage.c_steps
        self.anchors[f], self.bases[f] = published, version


class Synchronizer:
    """Theta, v and the published value of every fragment, with every version there ever was."""

    def __init__(self, initial: Sequence[Tensor], shapes: Sequence[arithmetic.Shape], rules: Rules) -> None:
        self.rules, self.shapes = rules, shapes
        self.versions = [[Version(f, 0, x, torch.zeros_like(x), x)] for f, x in enumerate(initial)]
        self.deltas: list[list[Tensor]] = [[] for _ in initial]  # deltas[f][v] leads from version v to v + 1
        self.branches: dict[tuple[int, int], str] = {}  # of (fragment, version)

    def newest(self, fragment: int) -> Version:
        return self.versions[fragment][-1]

    def merge(self, fragment: int, contributions: Sequence[Contribution]) -> Version:
        """Contributions in Learner order; those with an older base are rebased first."""
        f, rules, last = fragment, self.rules, self.newest(fragment)
        deltas, weights = [], []
        for contribution in contributions:
            delta = decode(rules.up, contribution.body, last.theta.numel())
            if contribution.base < last.version:
                delta = arithmetic.rebase(delta, self.deltas[f][contribution.base :])
            deltas.append(delta)
            stage = contribution.stage
            tokens = rules.weighting == "Tokens"
            weights.append(arithmetic.token_weight(stage.c_tokens, stage.c_steps) if tokens else 1.0)
        merged = arithmetic.merge(rules.merge, self.shapes[f], deltas, weights)
        theta, momentum = arithmetic.outer_step(last.theta, last.momentum, merged.delta, rules.lr, rules.mu)
        sent = decode(rules.down, encode(rules.down, theta - last.published), theta.numel())
        self.deltas[f].append(sent)
        self.branches[f, last.version + 1] = merged.branch
        self.versions[f].append(Version(f, last.version + 1, theta, momentum, last.published + sent))
        return self.newest(f)

"""Whether a contribution is let near the model.

A norm that is not finite is refused by name. Once enough merged bodies of the fragment are known, a norm above
factor * median norm * max(1, c_steps / median c_steps) is refused as an outlier: a longer stretch may be longer in
proportion. Norms are compared per unit of the learning rate they were made with, since an inner step is as long as its
rate: without that, warm-up would make outliers of healthy bodies, and hide sick ones. Torch-free; the caller computes
the norm (before any rebasing) and adds merged ones to the history.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from diloco_api.sync_policy import GuardPolicy
from diloco_trainer.algorithm.events import RefusalReason

WINDOW = 64
"""Merged bodies of a fragment that are remembered."""
LEAST_RATE = 1e-12
"""Stands for a rate of zero, at which nothing should have moved."""


@dataclass(frozen=True)
class NormHistory:
    """The last merged bodies of one fragment as (norm per learning rate, c_steps), oldest first."""

    samples: tuple[tuple[float, int], ...] = ()

    def with_merged(self, norm: float, c_steps: int, mean_lr: float) -> "NormHistory":
        """The history after one more merged body, made in `c_steps` inner steps of mean rate `mean_lr`."""
        return NormHistory((*self.samples, (_per_rate(norm, mean_lr), c_steps))[-WINDOW:])

    def to_json(self) -> list[list[float]]:
        return [[norm, c_steps] for norm, c_steps in self.samples]

    @classmethod
    def from_json(cls, data: Sequence[Sequence[float]]) -> "NormHistory":
        return cls(tuple((float(norm), int(c_steps)) for norm, c_steps in data))


@dataclass(frozen=True)
class Verdict:
    ok: bool
    reason: RefusalReason | None
    message: str
    """One line for log and event; empty when it is ok."""


_OK = Verdict(True, None, "")


def judge(policy: GuardPolicy | None, history: NormHistory, norm: float, c_steps: int, mean_lr: float) -> Verdict:
    """Judge a body by its L2 norm, the inner steps it covers and their mean learning rate.

    Without a policy only finiteness counts.
    """
    if not math.isfinite(norm):
        return Verdict(False, RefusalReason.NON_FINITE, f"norm is {norm}")
    if policy is None or len(history.samples) < policy.min_samples:
        return _OK
    usual_norm = median(norm for norm, _ in history.samples)
    usual_steps = median(steps for _, steps in history.samples)
    if usual_norm == 0.0:  # nothing moved so far: any first movement would be infinitely above it
        return _OK
    stretch = max(1.0, c_steps / usual_steps) if usual_steps > 0 else 1.0
    limit = policy.factor * usual_norm * stretch
    found = _per_rate(norm, mean_lr)
    if found > limit:
        parts = f"{policy.factor:g} x median {usual_norm:.4g} x {stretch:.3g} (steps)"
        message = f"norm {norm:.4g} over {c_steps} steps of rate {mean_lr:.3g} ({found:.4g} per rate) is above {parts}"
        return Verdict(False, RefusalReason.NORM_OUTLIER, message)
    return _OK


def _per_rate(norm: float, mean_lr: float) -> float:
    return norm / max(mean_lr, LEAST_RATE)

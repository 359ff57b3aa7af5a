"""Whether a contribution is let near the model.

A norm that is not finite is refused by name. Once enough merged bodies of the fragment are known, a norm above
factor * median norm * max(1, c_steps / median c_steps) is refused as an outlier: a longer stretch may be longer in
proportion. Norms are compared per unit of the learning rate they were made with, since an inner step is as long as its
rate: without that, warm-up would make outliers of healthy bodies, and hide sick ones. Not all of a body is its own
steps' doing, though: error feedback adds what the Learner's body before had lost. That is at most as long as that body
was, so only what is above its norm is judged (a short stretch after a long outage would be refused otherwise), and a
rate counts as no less than the usual one over `factor`, which lets any body pass that is no longer than a usual one.
Torch-free; the caller computes the norm (before any rebasing) and adds merged ones to the history.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from diloco_api.sync_policy import GuardPolicy
from diloco_trainer.algorithm.events import RefusalReason

WINDOW = 64
"""Merged bodies of a fragment that are remembered."""


@dataclass(frozen=True)
class NormHistory:
    """The last merged bodies of one fragment as (norm, c_steps, mean learning rate), oldest first."""

    samples: tuple[tuple[float, int, float], ...] = ()
    newest: Mapping[int, tuple[int, float]] = field(default_factory=dict)
    """Learner index -> (incarnation, norm) of its last merged body."""

    def with_merged(self, norm: float, c_steps: int, mean_lr: float, *, index: int, incarnation: int) -> "NormHistory":
        """The history after one more merged body, made in `c_steps` inner steps of mean rate `mean_lr`."""
        samples = (*self.samples, (norm, c_steps, mean_lr))[-WINDOW:]
        return NormHistory(samples, {**self.newest, index: (incarnation, norm)})

    def norm_before(self, index: int, incarnation: int) -> float:
        """Norm of this incarnation's last merged body; 0 before there is one."""
        merged_by, norm = self.newest.get(index, (incarnation, 0.0))
        return norm if merged_by == incarnation else 0.0

    def to_json(self) -> dict[str, list[list[float]]]:
        newest = [[index, incarnation, norm] for index, (incarnation, norm) in sorted(self.newest.items())]
        return {"samples": [list(sample) for sample in self.samples], "newest": newest}

    @classmethod
    def from_json(cls, data: Mapping[str, Sequence[Sequence[float]]]) -> "NormHistory":
        samples = tuple((float(norm), int(c_steps), float(mean_lr)) for norm, c_steps, mean_lr in data["samples"])
        return cls(samples, {int(index): (int(incarnation), norm) for index, incarnation, norm in data["newest"]})


@dataclass(frozen=True)
class Verdict:
    ok: bool
    reason: RefusalReason | None
    message: str
    """One line for log and event; empty when it is ok."""


_OK = Verdict(True, None, "")


def judge(
    policy: GuardPolicy | None,
    history: NormHistory,
    norm: float,
    c_steps: int,
    mean_lr: float,
    *,
    carried: float = 0.0,
) -> Verdict:
    """Judge a body by its L2 norm, the inner steps it covers and their mean learning rate.

    `carried` is the most that error feedback may have added to the norm. Without a policy only finiteness counts.
    """
    if not math.isfinite(norm):
        return Verdict(False, RefusalReason.NON_FINITE, f"norm is {norm}")
    if policy is None or len(history.samples) < policy.min_samples:
        return _OK
    least_rate = median(rate for _, _, rate in history.samples) / policy.factor
    usual_norm = median(_per_rate(sample, rate, least_rate) for sample, _, rate in history.samples)
    usual_steps = median(steps for _, steps, _ in history.samples)
    if usual_norm == 0.0:  # nothing moved so far: any first movement would be infinitely above it
        return _OK
    stretch = max(1.0, c_steps / usual_steps) if usual_steps > 0 else 1.0
    limit = policy.factor * usual_norm * stretch
    found = _per_rate(max(0.0, norm - carried), mean_lr, least_rate)
    if found > limit:
        parts = f"{policy.factor:g} x median {usual_norm:.4g} x {stretch:.3g} (steps)"
        less = f" less {carried:.4g} carried over" if carried else ""
        text = f"norm {norm:.4g}{less} over {c_steps} steps of rate {mean_lr:.3g} ({found:.4g} per rate)"
        message = f"{text} is above {parts}"
        return Verdict(False, RefusalReason.NORM_OUTLIER, message)
    return _OK


def _per_rate(norm: float, mean_lr: float, least_rate: float) -> float:
    """Norms are compared as they are where the usual rate is zero."""
    return norm / max(mean_lr, least_rate) if least_rate > 0 else norm

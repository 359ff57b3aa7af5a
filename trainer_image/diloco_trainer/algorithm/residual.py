"""Error feedback of the uplink: what a codec lost of one contribution is added to the next one.

One value per Learner and fragment. The residual changes when a contribution is settled and at no other time: merged, it
becomes what that contribution lost; refused by the guard, zero; anything else (stale, dropped, lost, refused for
another reason), it stays as it was before the stage. So a contribution that never counted leaves no trace.

Bound, per element, over n merged contributions d_1..d_n with decoded values c_1..c_n, starting from no residual:
|sum c - sum d| <= |residual_n| + sum over j of (2^-8 * |lost_j| + 2^-23 * |meant_j|), with lost_j <= the codec's bound:
the residual is kept in bf16 (half an ulp, 2^-8 relative), the two fp32 operations round once each.
"""

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor


class Settled(StrEnum):
    """How an open contribution ended, as far as the residual is concerned."""

    MERGED = "merged"
    GUARD_REFUSED = "guard_refused"
    OTHER = "other"


@dataclass(frozen=True)
class ErrorFeedback:
    """Residual of one fragment at one Learner. Methods return a new value."""

    residual: Tensor | None = None
    """bf16 [numel], what the last merged contribution lost; None is zero."""
    open_residual: Tensor | None = None
    """bf16 [numel], what the open contribution lost; becomes the residual if it is merged."""
    is_open: bool = False

    def prepare(self, delta: Tensor) -> Tensor:
        """delta + residual, fp32 [numel]: what the contribution is meant to say."""
        return delta.clone() if self.residual is None else torch.add(delta, self.residual.float())

    def opened(self, meant: Tensor, decoded: Tensor) -> "ErrorFeedback":
        """The contribution that encodes `meant` is on its way; `decoded` is what its receiver will read."""
        if self.is_open:
            raise ValueError("one contribution of the fragment is open already")
        return ErrorFeedback(self.residual, torch.sub(meant, decoded).bfloat16(), True)

    def settle(self, how: Settled) -> "ErrorFeedback":
        """The open contribution was settled."""
        if not self.is_open:
            raise ValueError("no contribution of the fragment is open")
        match how:
            case Settled.MERGED:
                return ErrorFeedback(self.open_residual)
            case Settled.GUARD_REFUSED:
                return ErrorFeedback(None)
            case Settled.OTHER:
                return ErrorFeedback(self.residual)

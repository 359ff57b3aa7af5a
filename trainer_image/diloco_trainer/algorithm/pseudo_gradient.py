"""The pseudo-gradient of a fragment and what adoption does to the local parameters.

Sign as in DiLoCo (arXiv 2311.08105, Algorithm 1): anchor minus local, so that the outer optimiser descends. Blend as in
Streaming DiLoCo (arXiv 2501.18512, Algorithm 2). All tensors are flat fp32 [numel]; multiply and add are separate
operations so that every Learner gets the same bits. Nothing is changed in place.
"""

import torch
from torch import Tensor


def pseudo_gradient(anchor: Tensor, staged: Tensor) -> Tensor:
    """anchor - staged: what the outer optimiser should take away from the anchor."""
    return torch.sub(anchor, staged)


def adopt(local: Tensor, published: Tensor, alpha: float) -> Tensor:
    """alpha * local + (1 - alpha) * published. With alpha 0 the published values themselves."""
    if alpha == 0.0:
        return published.clone()
    return torch.mul(local, alpha).add_(torch.mul(published, 1.0 - alpha))


def adopt_late(local: Tensor, published: Tensor, staged: Tensor, alpha: float) -> Tensor:
    """local + (1 - alpha) * (published - staged): the steps taken since the stage are kept."""
    return torch.sub(published, staged).mul_(1.0 - alpha).add_(local)

"""DiLoCo (arXiv 2311.08105, algorithm 1) in one process.

for t = 1..T: every Learner takes H inner steps from theta(t-1); Delta = mean over Learners of theta(t-1) - theta_m;
theta(t) = OuterOpt(theta(t-1), Delta) with Nesterov momentum; everybody continues from theta(t).

What the paper leaves to the implementation, as it is here: Learners hold the *published* parameters, the running sum
of theta - published as it was sent to them (with fp32 that differs from theta by rounding only), and take their
pseudo-gradient against those. If the inner steps end between two rounds, one closing round merges the rest. A Learner
that is missing from a round goes on from its own parameters (section 3.1, "dropped communication"); its next
pseudo-gradient is against the present theta(t-1) like everybody's: taken against the anchor it has, then rebased.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from reference import arithmetic
from reference.codecs import through
from reference.inner import Inner


class Version(NamedTuple):
    """One outer step of one fragment."""

    fragment: int
    version: int
    theta: Tensor
    momentum: Tensor
    published: Tensor


def train(
    inners: Sequence[Inner],
    *,
    steps: int,
    sync_every: int,
    lr: float,
    mu: float,
    absent: Collection[tuple[int, int]] = (),
) -> list[Version]:
    """Train all Learners (one fragment each, equal parameters at the start); every version, version 0 first.

    `absent` names (Learner, version) whose contribution was lost.
    """
    theta = inners[0].read(0)
    published, momentum = theta.clone(), torch.zeros_like(theta)
    versions = [Version(0, 0, theta, momentum, published)]
    bases = [0 for _ in inners]  # version each Learner started from
    sent: list[Tensor] = []  # sent[v] leads from version v to v + 1
    for t in range(1, steps + 1):
        for inner in inners:
            inner.step()
        if t % sync_every != 0 and t != steps:
            continue
        version = len(versions)
        there = [m for m in range(len(inners)) if (m, version) not in absent]
        deltas = []
        for m in there:
            local = arithmetic.pseudo_gradient(versions[bases[m]].published, inners[m].read(0))
            deltas.append(arithmetic.rebase(local, sent[bases[m] :]) if bases[m] < version - 1 else local)
        delta = arithmetic.mean(deltas, [1.0] * len(deltas))
        theta, momentum = arithmetic.outer_step(theta, momentum, delta, lr, mu)
        sent.append(through("fp32", theta - published))
        published = published + sent[-1]
        for m in there:
            inners[m].write(0, published)
            bases[m] = version
        versions.append(Version(0, version, theta, momentum, published))
    return versions

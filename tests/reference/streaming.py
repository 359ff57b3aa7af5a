"""Streaming DiLoCo (arXiv 2501.18512, algorithm 2) in one process.

P fragments, fragment p with offset t_p = floor(p H / P). At inner step t of every Learner:
  send   when t > 0 and (t - t_p) mod H = 0: Delta_m = theta_p - theta_m,p, quantised before it leaves the Learner;
         the reduction and the outer step are fp32;
  apply  tau steps later: theta_m,p <- alpha theta_m,p + (1 - alpha) theta_p, theta_p being the new global value.

What the paper leaves to the implementation, as it is here: the global value of Learners is the *published* one, the
running sum of quantised differences theta - published (so the downlink has error feedback built in). At the end what
was sent and not yet applied is applied, and every fragment has one closing round for the steps since its last one.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from reference import arithmetic
from reference.codecs import decode, encode, through
from reference.diloco import Version
from reference.inner import Inner

Uplink = Callable[[int, int, int, Tensor], Tensor]
"""(Learner, fragment, number of its contribution from 1, pseudo-gradient) -> what arrives."""


def plain_uplink(codec: str) -> Uplink:
    """Quantise to the nearest code."""
    return lambda m, p, number, delta: decode(codec, encode(codec, delta), delta.numel())


def train(
    inners: Sequence[Inner],
    *,
    steps: int,
    sync_every: int,
    sync_delay: int,
    blend_alpha: float,
    lr: float,
    mu: float,
    uplink: Uplink,
    down: str = "fp32",
) -> list[Version]:
    """Train all Learners (equal parameters at the start); every version of every fragment in order of time."""
    fragments = range(len(inners[0].shapes))
    theta = [inners[0].read(p) for p in fragments]
    momentum = [torch.zeros_like(x) for x in theta]
    published = [x.clone() for x in theta]
    count = [0 for _ in fragments]
    fresh_steps = [0 for _ in fragments]  # steps since the last apply, the same for every Learner
    in_flight: dict[int, int] = {}  # fragment -> step at which it was sent
    versions = [Version(p, 0, theta[p], momentum[p], published[p]) for p in fragments]
    anchors = list(published)

    def send(p: int) -> None:
        """Every Learner's quantised pseudo-gradient, their mean, the outer step, the new published value."""
        count[p] += 1
        deltas = [
            uplink(m, p, count[p], arithmetic.pseudo_gradient(anchors[p], inner.read(p)))
            for m, inner in enumerate(inners)
        ]
        delta = arithmetic.mean(deltas, [1.0] * len(deltas))
        theta[p], momentum[p] = arithmetic.outer_step(theta[p], momentum[p], delta, lr, mu)
        published[p] = published[p] + through(down, theta[p] - published[p])
        versions.append(Version(p, count[p], theta[p], momentum[p], published[p]))

    def apply(p: int) -> None:
        for inner in inners:
            inner.write(p, arithmetic.blend(inner.read(p), published[p], blend_alpha))
        anchors[p] = published[p]
        fresh_steps[p] = 0
        in_flight.pop(p, None)

    for t in range(1, steps + 1):
        for inner in inners:
            inner.step()
        for p in fragments:
            fresh_steps[p] += 1
            if (t - p * sync_every // len(fragments)) % sync_every == 0:
                send(p)
                in_flight[p] = t
            if in_flight.get(p) == t - sync_delay:
                apply(p)
    for p in fragments:
        if p in in_flight:
            apply(p)
    for p in fragments:
        if fresh_steps[p] > 0:
            send(p)
            apply(p)
    return versions

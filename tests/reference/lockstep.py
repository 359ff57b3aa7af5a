"""Decoupled DiLoCo (arXiv 2604.21428) where nothing is decoupled: one speed, everybody in every merge."""

from collections.abc import Sequence

from reference.decoupled import Learner, Rules, Synchronizer
from reference.inner import Inner


def train_in_turns(inners: Sequence[Inner], rules: Rules, *, steps: int, sync_every: int) -> Synchronizer:
    """All Learners at one speed: after step t the turns n with floor(n H / P) = t ask for fragment n mod P.

    Everybody answers from the boundary the turn falls on and adopts tau steps later (the paper's figure: M = 2, P = 3,
    H = 3, tau = 2); at the end every fragment has one closing round.
    """
    fragments = range(len(inners[0].shapes))
    start = [inners[0].read(f) for f in fragments]
    synchronizer = Synchronizer(start, inners[0].shapes, rules)
    learners = [Learner(inner, rules, list(start), [0 for _ in fragments]) for inner in inners]

    def exchange(f: int) -> None:
        synchronizer.merge(f, [learner.contribute(learner.stage(f)) for learner in learners])

    def settle_and_adopt(f: int) -> None:
        newest = synchronizer.newest(f)
        for learner in learners:
            learner.adopt(f, newest.version, newest.published, learner.settle(f, "merged").stage)

    for t in range(1, steps + 1):
        for learner in learners:
            learner.step()
        for f in fragments:
            if (t - f * sync_every // len(fragments)) % sync_every == 0:
                exchange(f)
            if f in learners[0].open and t - learners[0].open[f].stage.step == rules.sync_delay:
                settle_and_adopt(f)
    for f in fragments:
        if f in learners[0].open:
            settle_and_adopt(f)
        if learners[0].c_steps[f] > 0:
            exchange(f)
            settle_and_adopt(f)
    return synchronizer

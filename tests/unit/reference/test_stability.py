"""Eight Learners of random speeds and phases: stable under turns, divergent when each pushes on its own clock.

Under turns one round collects the answers of everybody, and momentum 0.9 runs once per H steps. With pushes on own
clocks and K = 1 there are eight one-contributor merges per H steps, so momentum runs eight times too often: the same
outer learning rate diverges, by 20 orders of magnitude when deltas are taken against the anchor a Learner started from;
rebased onto the present value first, for most cadences.
"""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diloco_trainer.algorithm.round_state import RoundConfig
from reference.decoupled import Rules
from reference.inner import Quadratic
from reference.turn_loop import Cadence, UnderTurns, on_own_clocks

NUM_LEARNERS, NUM_FRAGMENTS, SYNC_EVERY, SECONDS = 8, 6, 12, 400.0
RULES = Rules(lr=0.8, mu=0.9, sync_delay=2)
OPTIMUM = torch.linspace(-2.0, 3.0, 2 * NUM_FRAGMENTS)
ROUNDS = RoundConfig(
    num_fragments=NUM_FRAGMENTS,
    sync_every=SYNC_EVERY,
    sync_delay=2,
    synchronous=False,
    min_quorum=1,
    replicas=NUM_LEARNERS,
    min_learners=1,
    grace_gamma=0.5,
    grace_seconds=None,
    drop_late=False,
    retained_versions=8,
    dead_after=30.0,
    stall_timeout=600.0,
    scheduling_timeout=300.0,
    deadline_floor=60.0,
    deadline_factor=3.0,
    answer_patience=1.0,
    reunion=10.0,
)


def quadratics(noise=0.0):
    curvature = torch.linspace(0.05, 1.0, OPTIMUM.numel())
    sizes = [2] * NUM_FRAGMENTS
    return [
        Quadratic(sizes=sizes, optimum=OPTIMUM, curvature=curvature, lr=0.2, seed=m, noise=noise, tokens=64)
        for m in range(NUM_LEARNERS)
    ]


def cadences(seed):
    draw = random.Random(seed)
    return [Cadence(draw.uniform(0.5, 2.0), draw.uniform(0.0, 2.0)) for _ in range(NUM_LEARNERS)]


def distance(synchronizer):
    """Largest coordinate of published minus optimum, over that of the start (0)."""
    published = torch.cat([synchronizer.newest(f).published for f in range(NUM_FRAGMENTS)])
    return ((published - OPTIMUM).abs().max() / OPTIMUM.abs().max()).item()


@settings(max_examples=4, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000))
def test_turns_are_stable_where_pushes_on_own_clocks_diverge(seed):
    run = UnderTurns(quadratics(noise=0.01), RULES, ROUNDS, cadences(seed), random.Random(seed))
    turned = run.run(SECONDS)
    assert min(turned.newest(f).version for f in range(NUM_FRAGMENTS)) >= 12
    assert distance(turned) < 0.2
    pushed = on_own_clocks(quadratics(), RULES, cadences(seed), sync_every=SYNC_EVERY, until=SECONDS, rebase=False)
    assert distance(pushed) > 1e6


@pytest.mark.parametrize("seed", [100, 101, 102, 104])
def test_rebasing_does_not_save_pushes_on_own_clocks(seed):
    pushed = on_own_clocks(quadratics(), RULES, cadences(seed), sync_every=SYNC_EVERY, until=SECONDS, rebase=True)
    assert distance(pushed) > 100.0


def test_learners_four_times_apart_in_speed_are_all_in_nearly_every_merge():
    run = UnderTurns(quadratics(), RULES, ROUNDS, cadences(1), random.Random(1))
    run.run(SECONDS)
    assert sum(run.merges) / len(run.merges) > 0.9 * NUM_LEARNERS

"""Identities between the three papers' algorithms and their degenerate cases, on the references themselves.

If a reference were wrong, the trajectories that are compared with it would prove nothing; these identities tie the
references to each other and to things that need no reference (the inner optimizer alone, plain averaging).
"""

from dataclasses import replace

import pytest
import torch

from reference import decoupled, diloco, lockstep, streaming
from reference.inner import Quadratic

SIZES = (5, 3, 4)


def learners(count, sizes=SIZES, noise=0.3, tokens=7, momentum=0.9):
    """Learners with their own data (noise) and a stateful inner optimizer."""
    numel = sum(sizes)
    optimum, curvature = torch.linspace(-2, 3, numel), torch.linspace(0.2, 2.0, numel)
    return [
        Quadratic(
            sizes=sizes,
            optimum=optimum,
            curvature=curvature,
            lr=0.05,
            seed=m,
            noise=noise,
            tokens=tokens,
            momentum=momentum,
        )
        for m in range(count)
    ]


def same(left, right):
    return (left.fragment, left.version) == (right.fragment, right.version) and all(
        torch.equal(a, b) for a, b in zip(left[2:], right[2:], strict=True)
    )


def within_ulp(left, right, *scale, ulps=1):
    """Equal within ulps of the largest magnitude involved: x - (x - l) is not l in floating point."""
    largest = torch.stack([x.abs() for x in (left, right, *scale)]).amax(0)
    ulp = torch.nextafter(largest, torch.tensor(float("inf"))) - largest
    return bool(((left - right).abs() <= ulps * ulp).all())


def test_one_learner_one_step_and_plain_outer_sgd_is_the_inner_optimizer_alone():
    versions = diloco.train(learners(1, (12,)), steps=40, sync_every=1, lr=1.0, mu=0.0)
    (alone,) = learners(1, (12,))
    assert len(versions) == 41
    for version in versions[1:]:
        alone.step()
        torch.testing.assert_close(version.published, alone.read(0), rtol=1e-5, atol=1e-6)


def test_one_round_of_plain_outer_sgd_is_averaging_within_an_ulp():
    start, *_ = diloco.train(learners(3, (12,)), steps=10, sync_every=10, lr=1.0, mu=0.0)
    *_, last = diloco.train(learners(3, (12,)), steps=10, sync_every=10, lr=1.0, mu=0.0)
    local = learners(3, (12,))
    for learner in local:
        for _ in range(10):
            learner.step()
    average = sum(learner.read(0) for learner in local) / 3
    assert within_ulp(last.published, average, start.published, *(x.read(0) for x in local), ulps=3)


def test_many_rounds_of_plain_outer_sgd_are_federated_averaging():
    versions = diloco.train(learners(3, (12,)), steps=50, sync_every=5, lr=1.0, mu=0.0)
    local = learners(3, (12,))
    for version in versions[1:]:
        for learner in local:
            for _ in range(5):
                learner.step()
        average = sum(learner.read(0) for learner in local) / 3
        for learner in local:
            learner.write(0, average)
        torch.testing.assert_close(version.published, average, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("steps", [30, 33], ids=["whole rounds", "with a closing round"])
def test_streaming_with_one_fragment_no_delay_and_no_blend_is_diloco_bit_for_bit(steps):
    common = {"steps": steps, "sync_every": 6, "lr": 0.7, "mu": 0.9}
    plain = diloco.train(learners(3, (12,)), **common)
    streamed = streaming.train(
        learners(3, (12,)), **common, sync_delay=0, blend_alpha=0.0, uplink=streaming.plain_uplink("fp32")
    )
    assert len(plain) == len(streamed) == (6 if steps == 30 else 7)
    assert all(same(a, b) for a, b in zip(plain, streamed, strict=True))


@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize("steps", [24, 29], ids=["whole rounds", "with closing rounds"])
def test_decoupled_with_everyone_equal_tokens_and_direct_merge_is_streaming_bit_for_bit(delay, steps):
    rules = decoupled.Rules(lr=0.4, mu=0.9, sync_delay=delay, merge="Mean")
    streamed = streaming.train(
        learners(3),
        steps=steps,
        sync_every=6,
        sync_delay=delay,
        blend_alpha=0.0,
        lr=0.4,
        mu=0.9,
        uplink=streaming.plain_uplink("fp32"),
    )
    turned = lockstep.train_in_turns(learners(3), rules, steps=steps, sync_every=6)
    assert sum(len(versions) for versions in turned.versions) == len(streamed)
    for version in streamed:
        assert same(version, turned.versions[version.fragment][version.version])


def test_momentum_of_the_inner_optimizer_outlives_outer_steps():
    """With a reset at each outer step the trajectory is another one, so the identity tests above would notice."""

    def run(reset):
        (learner,) = learners(1, (12,))
        original = learner.write

        def write(fragment, values):
            original(fragment, values)
            if reset:
                learner.velocity = 0 * learner.velocity

        learner.write = write
        return diloco.train([learner], steps=20, sync_every=5, lr=0.7, mu=0.9)[-1]

    assert not torch.equal(run(reset=True).published, run(reset=False).published)


def test_a_learner_that_was_absent_goes_on_from_its_own_parameters():
    everyone = diloco.train(learners(2, (12,)), steps=12, sync_every=4, lr=0.7, mu=0.9)
    once_absent = diloco.train(learners(2, (12,)), steps=12, sync_every=4, lr=0.7, mu=0.9, absent={(1, 2)})
    alone = diloco.train(learners(2, (12,)), steps=12, sync_every=4, lr=0.7, mu=0.9, absent={(1, 1), (1, 2), (1, 3)})
    first = diloco.train(learners(1, (12,)), steps=12, sync_every=4, lr=0.7, mu=0.9)
    assert same(everyone[1], once_absent[1])
    assert not same(everyone[2], once_absent[2])
    assert all(same(a, b) for a, b in zip(alone, first, strict=True))


def test_a_late_adoption_keeps_the_steps_since_the_stage_and_a_timely_one_drops_them():
    rules = decoupled.Rules(lr=0.4, mu=0.9, sync_delay=2)
    for steps_since, kept in ((2, 0), (3, 3)):
        (inner,) = learners(1, noise=0.0, momentum=0.0)
        learner = decoupled.Learner(inner, rules, [inner.read(f) for f in range(3)], [0, 0, 0])
        for _ in range(4):
            learner.step()
        stage = learner.stage(0)
        learner.contribute(stage)
        for _ in range(steps_since):
            learner.step()
        moved = inner.read(0) - stage.values
        published = torch.full((5,), 0.25)
        learner.adopt(0, 1, published, learner.settle(0, "merged").stage)
        assert (learner.c_steps[0], learner.c_tokens[0]) == (kept, 7 * kept)
        torch.testing.assert_close(inner.read(0), published + moved if kept else published)


@pytest.mark.parametrize(("outcome", "expected"), [("merged", "lost"), ("guard", "zero"), ("lost", "before")])
def test_the_residual_changes_at_the_settlement_only(outcome, expected):
    rules = replace(decoupled.Rules(lr=0.4, mu=0.9, sync_delay=2), up="int4", error_feedback=True)
    (inner,) = learners(1)
    learner = decoupled.Learner(inner, rules, [inner.read(f) for f in range(3)], [0, 0, 0])
    learner.step()
    before = learner.residual[0] = torch.full((5,), 0.5)
    contribution = learner.contribute(learner.stage(0))
    assert torch.equal(learner.residual[0], before)
    learner.settle(0, outcome)
    wanted = {"lost": contribution.lost.to(torch.bfloat16).float(), "zero": torch.zeros(5), "before": before}
    assert torch.equal(learner.residual[0], wanted[expected])

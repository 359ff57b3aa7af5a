"""Decoupled DiLoCo under scripted arrivals: real engine, real wire, manual clock; equal to the reference bit for bit.

One script drives both sides: what the reference is told is only who stepped on which data at which rate, when fragments
were staged, which contributions a merge took, and when versions were adopted. Compared: outer parameters, momentum and
published values of every version, RDA's branch, every Learner's losses and final local parameters. The preset's own
policy: int4 up with error feedback, int8 down, RDA, token weights (one Learner has twice the batch), K = 1.
"""

import random

import pytest

from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from reference.both import Both, same_bits
from reference.hand import run_config
from reference.hand_learner import until

FRAGMENTS = 3
CHANGES = {"algorithm.syncEvery": 6, "algorithm.fragments": FRAGMENTS}
GRACE_OVER = 1.25  # more than gamma * tau * step = 1 s


async def test_late_absent_and_empty_answers_equal_the_reference_bit_for_bit(tmp_path):
    run = run_config(tmp_path, "DecoupledDiLoCo", replicas=3, steps=200, changes=CHANGES)
    assert (run.policy.encode_up, run.policy.encode_down, run.policy.error_feedback) == ("int4", "int8", True)
    async with Both.start(run, tmp_path) as both:
        await both.train(0, 3)
        await both.train(1, 3, sequences=8)
        await both.train(2, 1)
        f = await both.turn()
        for m in range(3):
            assert await both.answer(m, f) in (pb.RECEIVED, pb.MERGED)
        await both.merged(f, [0, 1, 2])
        await both.train(0, 1)
        assert await both.adopt(0, f) == "timely"
        assert await both.adopt(1, f) == "timely"
        await both.train(2, 3)
        assert await both.adopt(2, f) == "late"

        f = await both.turn()
        stage = both.stage(0, f)
        await both.train(0, 1)  # asked in mid-step: the answer is the stage of the boundary before
        await both.answer(0, f, stage)
        await both.answer(1, f)
        await both.merged(f, [0, 1], after=GRACE_OVER)  # Learner 2 is absent
        await both.adopt(0, f)
        await both.adopt(1, f)
        late_turn = both.turn_number
        assert await both.answer(2, f, turn=late_turn) == pb.HELD
        await both.train(2, 2)

        f = await both.turn()
        for m in range(3):
            await both.answer(m, f)
        await both.merged(f, [0, 1, 2])
        for m in range(3):
            await both.adopt(m, f)

        f = await both.turn()  # Learner 1 has not stepped since it adopted this fragment
        await both.answer(0, f)
        assert both.references[1].c_steps[f] == 0
        await both.answer(1, f)
        await both.answer(2, f)
        await both.merged(f, [0, 2])
        await both.adopt(0, f)
        await both.adopt(2, f)

        await both.train(0, 2)
        await both.train(1, 2, sequences=8)
        f = await both.turn()
        await both.answer(0, f)
        await both.answer(1, f)
        await both.merged(f, [0, 1, 2])  # the held one of Learner 2, rebased over one version
        await both.train(2, 1)
        assert [await both.adopt(m, f) for m in range(3)] == ["timely", "timely", "late"]

        assert set(both.synchronizer.branches.values()) == {"rda", "mean"}, "the mean for the embedding table alone"


async def one_round(both, who=(0, 1, 2), *, after=0.0):
    """A step of everybody, a turn, answers, the merge, adoptions."""
    for m in range(3):
        await both.train(m, 2, sequences=8 if m == 1 else None)
    f = await both.turn()
    for m in who:
        await both.answer(m, f)
    await both.merged(f, list(who), after=after)
    for m in who:
        await both.adopt(m, f)
    return f


async def test_a_late_answer_is_dropped_and_its_residual_kept_under_drop(tmp_path):
    changes = CHANGES | {"algorithm.lateContributions": "Drop"}
    run = run_config(tmp_path, "DecoupledDiLoCo", replicas=3, steps=200, changes=changes)
    async with Both.start(run, tmp_path) as both:
        for _ in range(FRAGMENTS):
            await one_round(both)
        f = await one_round(both, who=(0, 1), after=GRACE_OVER)
        residual = both.references[2].residual[f].clone()
        assert residual.abs().max() > 0
        await both.answer(2, f)
        assert await both.adopt_refused(2, f, "lost") == "Dropped"
        assert same_bits(both.references[2].residual[f], residual)
        for _ in range(2 * FRAGMENTS):
            await one_round(both)


async def test_an_outlier_is_refused_by_the_guard_and_its_residual_becomes_zero(tmp_path):
    run = run_config(tmp_path, "DecoupledDiLoCo", replicas=3, steps=300, changes=CHANGES)
    async with Both.start(run, tmp_path) as both:
        for _ in range(4 * FRAGMENTS):  # norms of more than 8 bodies of each fragment
            await one_round(both)
        for m in range(3):
            await both.train(m, 2)
        f = await both.turn()
        for params in (both.learners[1].core.params, both.references[1].inner.params):
            for tensor in both.learners[1].core.layout.fragments[f].tensors:
                params[tensor.name].data.add_(3.0)
        for m in range(3):
            await both.answer(m, f)
        await both.merged(f, [0, 2])
        assert await both.adopt_refused(1, f, "guard") == "NormOutlier"
        assert both.references[1].residual[f].abs().max() == 0
        await both.adopt(0, f)
        await both.adopt(2, f)
        for _ in range(FRAGMENTS):
            await one_round(both)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("preset", ["as it is", "blended, fp32"])
async def test_random_arrivals_equal_the_reference_bit_for_bit(tmp_path, seed, preset):
    """Forty turns of random steps, absences, late and empty answers, then the closing rounds."""
    draw = random.Random(seed)
    changes = dict(CHANGES)
    if preset == "blended, fp32":
        changes |= {"algorithm.encoding": {"up": "fp32", "down": "fp32"}, "algorithm.blendAlpha": 0.5}
    run = run_config(tmp_path, "DecoupledDiLoCo", replicas=3, steps=60, changes=changes)
    async with Both.start(run, tmp_path) as both:
        for _ in range(40):
            for m in range(3):
                await both.train(m, draw.randrange(4), sequences=8 if m == 1 else None)
            for m, f in sorted(both.merged_in):
                if draw.random() < 0.6:  # the others adopt later, perhaps after the fragment's next turn
                    await both.adopt(m, f)
            await random_turn(both, draw)
        await close(both)


async def random_turn(both, draw):
    """One turn, to which one Learner that could answer perhaps does not, or too late."""
    f = await both.turn()
    free = [m for m in range(3) if f not in both.references[m].open]
    moved = [m for m in free if both.references[m].c_steps[f] > 0]
    absent = draw.choice(moved) if len(moved) > 1 and draw.random() < 0.5 else None
    for m in free:
        if m != absent:
            await both.answer(m, f)
    contributors = sorted(m for m, fragment in both.ready if fragment == f)
    # A Learner that has not adopted yet says nothing, so that the round waits for it until the grace is over.
    silent = absent is not None or any(f == fragment for _, fragment in both.merged_in)
    if not contributors and silent:
        raise AssertionError("the script lets a round hang")
    if contributors:
        await both.merged(f, contributors, after=GRACE_OVER if silent else 0.0)
    if absent is not None and draw.random() < 0.7:
        assert await both.answer(absent, f) == pb.HELD


async def close(both):
    """Train what is left, adopt, say so, answer the closing turns."""
    for m in range(3):
        while await both.train(m):
            pass
    for m, f in sorted(both.merged_in):
        await both.adopt(m, f)
    for learner in both.learners:
        await learner.heartbeat(drained=True)
    for learner in both.learners:
        await until(lambda who=learner: sum(turn.closing for turn in who.turns) == FRAGMENTS or None)
    for f in range(FRAGMENTS):
        (turn,) = [turn for turn in both.learners[0].turns if turn.closing and turn.fragment == f]
        for m in range(3):
            if f not in both.references[m].open:
                await both.answer(m, f, turn=turn.number)
        contributors = sorted(m for m, fragment in both.ready if fragment == f)
        if contributors:
            await both.merged(f, contributors)
            for m in contributors:
                await both.adopt(m, f)
    assert (await both.learners[0].heartbeat(drained=True)).phase == pb.COMPLETE

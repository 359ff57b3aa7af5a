"""DiLoCo and Streaming DiLoCo through the real engine and the real wire equal the references bit for bit.

Compared: outer parameters, outer momentum and published values of every version of every fragment (the digest of each
version is recomputed by the reference's own formula as it appears), and every Learner's training losses, in fp32 and
with Streaming DiLoCo's own codecs, whose bodies the reference makes with its naive ones. Learners are driven by hand:
real gRPC, manual clock, no waiting.
"""

import pytest
import torch

from diloco_trainer.algorithm.fragments import make_layout
from diloco_trainer.learner.uplink import rounding_seed
from diloco_trainer.task.task import make_task
from reference import diloco, streaming
from reference.codecs import decode, encode
from reference.hand import Scripted, run_config
from reference.hand_learner import HandLearner, until
from reference.task_inner import TaskInner, fixed_work

STEPS = 26  # not a whole number of rounds: the closing rounds have something to merge


async def train_by_hand(run, folder, *, steps, absent=()):
    """The synchronous schedule: exchange after step t where (t - offset) mod H = 0, adopt tau steps later, close.

    `absent` names (Learner, version) whose contribution does not come: the round closes at its deadline.
    """
    async with await Scripted.start(run, folder) as scripted:
        learners = [await HandLearner.join(scripted, index) for index in range(run.replicas)]
        for learner in learners:
            await learner.restore()
        await exchange_by_schedule(scripted, learners, steps, absent)
        await close(learners, run.policy.num_fragments)
    return scripted.versions, learners


async def exchange_by_schedule(scripted, learners, steps, absent):
    policy = scripted.run.policy
    staged = {}
    for t in range(1, steps + 1):
        for learner in learners:
            await learner.train()
        for f in range(policy.num_fragments):
            if (t - f * policy.sync_every // policy.num_fragments) % policy.sync_every == 0:
                staged[f] = t
                version = scripted.fragments[f].version + 1
                there = [learner for learner in learners if (learner.identity.index, version) not in absent]
                for learner in there:
                    await learner.answer(f, learner.core.clocks[f].base_version + 1)
                if len(there) < len(learners):
                    await pass_deadline(scripted, learners)
            if staged.get(f) == t - policy.sync_delay:
                for learner in learners:
                    if learner.uplink.fragments[f].open is not None:
                        await learner.adopt(f)


async def pass_deadline(scripted, learners):
    """60 seconds after the first contribution; meanwhile everybody is heard."""
    for _ in range(4):
        scripted.advance(16.0)
        for learner in learners:
            await learner.heartbeat()


async def close(learners, num_fragments):
    """No work is left: adopt what is open, say so, answer the closing turns."""
    for learner in learners:
        assert not await learner.lease(1)
        for f in range(num_fragments):
            if learner.uplink.fragments[f].open is not None:
                await learner.adopt(f)
    for learner in learners:
        await learner.heartbeat(drained=True)
    for learner in learners:
        await until(lambda who=learner: sum(turn.closing for turn in who.turns) == num_fragments or None)
    for f in range(num_fragments):
        for learner in learners:
            (turn,) = [turn for turn in learner.turns if turn.closing and turn.fragment == f]
            await learner.answer(f, turn.number)
    phases = [await learner.heartbeat(drained=True) for learner in learners]
    assert {reply.phase for reply in phases} == {6}, "complete"


def reference_inners(run, *, steps, **options):
    task = make_task(run.train)
    layout = make_layout(task.tensor_specs(task.build_model()), run.policy.num_fragments, run.policy.fragmentation)
    common = {"replicas": run.replicas, "steps": steps, "num_sequences": task.num_sequences}
    return [
        TaskInner(task, run.train, layout.fragments, fixed_work(run.train, index=m, **common), **options)
        for m in range(run.replicas)
    ]


def assert_same(versions, wanted):
    """Every version of every fragment, all bits."""
    left = {(v.fragment, v.version): v for v in versions}
    right = {(v.fragment, v.version): v for v in wanted}
    assert sorted(left) == sorted(right)
    for key, version in left.items():
        for name in ("theta", "momentum", "published"):
            bits = [getattr(v, name).view(torch.int32) for v in (version, right[key])]
            assert torch.equal(*bits), f"{name} of fragment {key[0]} version {key[1]} differs"


def seeded_uplink(run):
    """Streaming DiLoCo's uplink: e3m0, rounded stochastically with the random bits of that contribution."""

    def uplink(m, p, number, delta):
        generator = torch.Generator().manual_seed(rounding_seed(run.train.seed, m, p, number))
        words = torch.empty(-(-delta.numel() // 256) * 64, dtype=torch.int64)
        bits = words.random_(-(2**63), None, generator=generator).view(torch.int16).tolist()
        draws = [1 - (n + 32768 + 0.5) / 65536 for n in bits[: delta.numel()]]
        return decode("e3m0", encode("e3m0", delta, draws), delta.numel())

    return uplink


@pytest.mark.parametrize("replicas", [2, 3])
async def test_diloco_equals_the_reference_bit_for_bit(tmp_path, replicas):
    run = run_config(tmp_path, "DiLoCo", replicas=replicas, steps=STEPS, changes={"algorithm.syncEvery": 6})
    versions, learners = await train_by_hand(run, tmp_path, steps=STEPS)
    inners = reference_inners(run, steps=STEPS)
    wanted = diloco.train(inners, steps=STEPS, sync_every=6, lr=0.7, mu=0.9)
    assert len(wanted) == 1 + 4 + 1
    assert_same(versions, wanted)
    assert [learner.losses for learner in learners] == [inner.losses for inner in inners]
    assert learners[0].losses[-1] < learners[0].losses[0] - 0.5, "it does train"


async def test_diloco_over_several_passes_of_short_data_equals_the_reference_bit_for_bit(tmp_path):
    changes = {"algorithm.syncEvery": 6}
    run = run_config(tmp_path, "DiLoCo", replicas=2, steps=STEPS, changes=changes, lines=60)
    assert 2 * make_task(run.train).num_sequences < 2 * 4 * STEPS, "more than two passes"
    versions, learners = await train_by_hand(run, tmp_path, steps=STEPS)
    inners = reference_inners(run, steps=STEPS)
    assert_same(versions, diloco.train(inners, steps=STEPS, sync_every=6, lr=0.7, mu=0.9))
    assert [learner.losses for learner in learners] == [inner.losses for inner in inners]


async def test_diloco_without_one_lost_contribution_equals_the_reference_bit_for_bit(tmp_path):
    """The round closes at its deadline; the absent Learner goes on from its own parameters and is rebased next time."""
    run = run_config(tmp_path, "DiLoCo", replicas=3, steps=STEPS, changes={"algorithm.syncEvery": 6})
    absent = {(1, 2)}
    versions, learners = await train_by_hand(run, tmp_path, steps=STEPS, absent=absent)
    inners = reference_inners(run, steps=STEPS)
    assert_same(versions, diloco.train(inners, steps=STEPS, sync_every=6, lr=0.7, mu=0.9, absent=absent))
    assert [learner.losses for learner in learners] == [inner.losses for inner in inners]


@pytest.mark.parametrize("delay", [1, 2])
async def test_streaming_equals_the_reference_bit_for_bit_in_fp32(tmp_path, delay):
    changes = {
        "algorithm.syncEvery": 6,
        "algorithm.fragments": 3,
        "algorithm.fragmentation": "BalancedTensor",
        "algorithm.syncDelay": delay,
        "algorithm.encoding": {"up": "fp32", "down": "fp32"},
    }
    run = run_config(tmp_path, "StreamingDiLoCo", replicas=2, steps=STEPS, changes=changes)
    versions, learners = await train_by_hand(run, tmp_path, steps=STEPS)
    inners = reference_inners(run, steps=STEPS)
    wanted = streaming.train(inners, **streaming_rules(run), uplink=streaming.plain_uplink("fp32"))
    assert_same(versions, wanted)
    assert [learner.losses for learner in learners] == [inner.losses for inner in inners]


async def test_streaming_with_e3m0_up_and_bf16_down_equals_the_reference_bit_for_bit(tmp_path):
    changes = {"algorithm.syncEvery": 6, "algorithm.fragments": 3, "algorithm.fragmentation": "BalancedTensor"}
    run = run_config(tmp_path, "StreamingDiLoCo", replicas=2, steps=STEPS, changes=changes)
    assert (run.policy.encode_up, run.policy.encode_down, run.policy.rounding_up) == ("e3m0", "bf16", "stochastic")
    versions, learners = await train_by_hand(run, tmp_path, steps=STEPS)
    inners = reference_inners(run, steps=STEPS)
    wanted = streaming.train(inners, **streaming_rules(run), uplink=seeded_uplink(run), down="bf16")
    assert_same(versions, wanted)
    assert [learner.losses for learner in learners] == [inner.losses for inner in inners]


def streaming_rules(run):
    policy = run.policy
    return {
        "steps": STEPS,
        "sync_every": policy.sync_every,
        "sync_delay": policy.sync_delay,
        "blend_alpha": policy.blend_alpha,
        "lr": 0.4,
        "mu": 0.9,
    }


async def test_a_reset_of_the_inner_optimizer_at_outer_steps_would_be_noticed(tmp_path):
    """The system equals the reference that keeps AdamW's moments, and differs from the one that makes them anew."""
    run = run_config(tmp_path, "DiLoCo", replicas=2, steps=12, changes={"algorithm.syncEvery": 4})
    versions, _ = await train_by_hand(run, tmp_path, steps=12)
    kept = diloco.train(reference_inners(run, steps=12), steps=12, sync_every=4, lr=0.7, mu=0.9)
    reset = diloco.train(reference_inners(run, steps=12, reset_at_write=True), steps=12, sync_every=4, lr=0.7, mu=0.9)
    assert_same(versions, kept)
    assert torch.equal(reset[1].theta, kept[1].theta), "until the first outer step nothing was reset"
    assert not torch.equal(reset[2].theta, kept[2].theta)

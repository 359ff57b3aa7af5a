"""The engine under scripted time: what is told to whom, when, and what survives a crash."""

from contextlib import aclosing
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from diloco_api.progress import Phase
from diloco_trainer.algorithm.fragments import gather
from diloco_trainer.synchronizer.housekeeping import Limits
from diloco_trainer.synchronizer.log import segment_numbers
from diloco_trainer.wire.errors import Fenced, Reason, Refused, WireError
from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from fakes.scripted_learner import ScriptedLearner
from fakes.sync_jobs import Bench, decoupled, run_config, synchronous


async def started(bench: Bench, count: int) -> list[ScriptedLearner]:
    """Learners that have joined, adopted version 0 and hold work."""
    learners = [bench.learner(index) for index in range(count)]
    for learner in learners:
        await learner.join()
    for learner in learners:
        await learner.pull_everything()
        await learner.lease(want=400)
    return learners


async def synchronous_round(learners: list[ScriptedLearner], fragment: int) -> None:
    """Everyone trains two steps, contributes, and adopts what came of it."""
    for learner in learners:
        learner.train(2)
    for learner in learners:
        await learner.contribute(fragment, learner.parts[fragment].version + 1)
    for learner in learners:
        await learner.adopt(await learner.resend(fragment))


async def test_a_synchronous_round_merges_when_everyone_has_contributed(tmp_path: Path) -> None:
    bench = Bench(run_config(synchronous()), tmp_path / "state")
    first, second = await started(bench, 2)
    first.train(2)
    second.train(2)
    assert (await first.contribute(0, 1)).outcome == pb.RECEIVED
    assert (await second.contribute(0, 1)).outcome == pb.RECEIVED
    settled = await second.resend(0)
    assert (settled.outcome, settled.version) == (pb.MERGED, 1)
    assert (await first.resend(0)).outcome == pb.MERGED
    await first.adopt(await first.resend(0))
    await second.adopt(settled)
    assert torch.equal(first.parts[0].anchor, second.parts[0].anchor)
    progress = await bench.synchronizer.backend.progress()
    assert (progress.outer_steps, progress.outer_rounds) == (1, 0)


async def test_the_merge_is_what_the_outer_optimiser_says(tmp_path: Path) -> None:
    bench = Bench(run_config(synchronous({"num_fragments": 1})), tmp_path / "state")
    learners = await started(bench, 2)
    theta = learners[0].parts[0].anchor.clone()
    momentum = torch.zeros_like(theta)
    for sequence in (1, 2, 3):
        await synchronous_round(learners, 0)
        delta = (learners[0].delta(0, sequence) + learners[1].delta(0, sequence)) / 2
        momentum = 0.9 * momentum + delta
        theta = theta - 0.6 * (delta + 0.9 * momentum)
    torch.testing.assert_close(learners[0].parts[0].anchor, theta, rtol=0, atol=1e-6)


@pytest.mark.parametrize("policy", [synchronous(), synchronous({"encode_up": "int4", "encode_down": "int8"})])
async def test_a_crash_after_any_reply_loses_nothing(tmp_path: Path, policy: object) -> None:
    bench = Bench(run_config(policy), tmp_path / "state")  # type: ignore[arg-type]
    learners = await started(bench, 2)
    for _ in range(3):
        await synchronous_round(learners, 0)
        await synchronous_round(learners, 1)
        for learner in learners:
            await learner.heartbeat()
        before = await bench.synchronizer.backend.progress()
        states = bench.engine.fragments
        bench = bench.crashed()
        after = await bench.synchronizer.backend.progress()
        assert after.digests == before.digests
        assert after.outer_steps == before.outer_steps
        for one, other in zip(states, bench.engine.fragments, strict=True):
            assert torch.equal(one.theta, other.theta)
            assert torch.equal(one.momentum, other.momentum)
            assert torch.equal(one.published, other.published)
            assert one.norms == other.norms
        assert after.tokens.merged == before.tokens.merged
        assert after.tokens.overlap == before.tokens.overlap
        assert after.tokens.discarded == before.tokens.discarded
        for learner in learners:
            learner.wire = bench.wire(learner.index)


async def test_a_contribution_sent_again_is_merged_once_also_after_a_crash(tmp_path: Path) -> None:
    bench = Bench(run_config(synchronous()), tmp_path / "state")
    learners = await started(bench, 2)
    for learner in learners:
        learner.train(2)
        await learner.contribute(0, 1)
    for _ in range(2):
        for learner in learners:
            settled = await learner.resend(0)
            assert (settled.outcome, settled.version, settled.sequence) == (pb.MERGED, 1, 1)
        progress = await bench.synchronizer.backend.progress()
        assert progress.outer_steps == 1
        assert progress.tokens.merged == pytest.approx(
            2 * 2 * 16 * bench.layout.fragments[0].numel / bench.layout.numel
        )
        bench = bench.crashed()
        for learner in learners:
            learner.wire = bench.wire(learner.index)


async def test_a_body_without_a_record_is_taken_again_after_a_crash(tmp_path: Path) -> None:
    bench = Bench(run_config(synchronous()), tmp_path / "state")
    first, second = await started(bench, 2)
    first.train(2)
    second.train(2)
    assert (await first.contribute(0, 1)).outcome == pb.RECEIVED
    bench = bench.crashed()
    for learner in (first, second):
        learner.wire = bench.wire(learner.index)
    assert (await second.contribute(0, 1)).outcome == pb.RECEIVED
    await first.resend(0)
    assert (await first.resend(0)).outcome == pb.MERGED


async def test_a_repeated_lease_request_has_the_same_answer_also_after_a_crash(tmp_path: Path) -> None:
    bench = Bench(run_config(decoupled()), tmp_path / "state")
    learner = bench.learner(0)
    await learner.join()
    granted = await learner.lease(want=10)
    assert await learner.lease(want=10, again=True) == granted
    bench = bench.crashed()
    learner.wire = bench.wire(0)
    assert await learner.lease(want=10, again=True) == granted
    other = await learner.lease(want=10)
    assert other.ranges[0].start == granted.ranges[-1].stop


async def test_two_contributions_of_one_fragment_cannot_be_open(tmp_path: Path) -> None:
    bench = Bench(run_config(synchronous()), tmp_path / "state")
    first, _ = await started(bench, 2)
    first.train(2)
    await first.contribute(0, 1)
    payload = bytes(4 * first.parts[0].anchor.numel())
    with pytest.raises(Refused, match="still open") as caught:
        await first.wire.contribute(first.header(0, 1, 2, payload), payload)
    assert caught.value.reason == Reason.BAD_HEADER
    with pytest.raises(Refused, match="another body"):
        await first.wire.contribute(first.header(0, 1, 1, payload), payload)


async def test_a_body_beyond_the_lease_is_settled_as_refused_and_its_tokens_are_never_overlap(tmp_path: Path) -> None:
    policy = decoupled({"num_fragments": 1, "grace": {"kind": "Fixed", "seconds": 0}})
    bench = Bench(run_config(policy), tmp_path / "state")
    first, second = await started(bench, 2)
    left, leased = bench.engine.control.pool.available, first.leased
    first.train(1000)  # 16 000 tokens, of which it had been leased 3200
    settled = await first.contribute(0, 1)
    assert (settled.outcome, settled.reason, settled.discarded_by_guard) == (pb.REFUSED, "BeyondLease", False)
    after = bench.crashed()
    for life in (bench, after):
        progress = await life.synchronizer.backend.progress()
        assert progress.tokens.discarded == {"BeyondLease": 3200}
        assert (progress.tokens.trained, progress.tokens.overlap, progress.tokens.in_flight) == (3200, 0, 0)
        # What it had been leased is leased again, what nobody had leased is not.
        assert life.engine.control.pool.available == left + leased
    first.wire = after.wire(0)
    assert await first.resend(0) == settled
    await first.adopt(settled)
    await first.lease(want=10_000)
    first.train(2)
    second.wire = after.wire(1)
    for learner in (first, second):
        await learner.heartbeat()
        await learner.listen()
    after.advance(2.5)
    await first.contribute(0, 1)
    await first.adopt(await first.resend(0))
    progress = await after.synchronizer.backend.progress()
    assert progress.tokens.discarded == {"BeyondLease": 1000 * first.batch_tokens}
    assert (progress.tokens.merged, progress.tokens.overlap) == (2 * first.batch_tokens, 0)


async def test_a_body_beyond_the_lease_is_never_read_and_keeps_no_round_waiting(tmp_path: Path) -> None:
    bench = Bench(run_config(synchronous()), tmp_path / "state")
    first, second = await started(bench, 2)
    first.train(1000)
    second.train(2)
    await second.contribute(0, 1)
    payload = bytes(4 * first.parts[0].anchor.numel())
    header = first.header(0, 1, 1, payload)
    offered = await bench.synchronizer.backend.offer(header)
    assert offered is not None
    assert (offered.outcome, offered.reason) == (pb.REFUSED, "BeyondLease")
    assert (await second.resend(0)).outcome == pb.MERGED
    assert await bench.synchronizer.backend.offer(header) == offered


async def test_an_answer_of_nothing_beyond_the_lease_is_turned_away(tmp_path: Path) -> None:
    bench = Bench(run_config(synchronous()), tmp_path / "state")
    first, _ = await started(bench, 2)
    first.train(1000)
    first.parts[0].adopted_clock = first.clock
    with pytest.raises(Refused, match="beyond") as caught:
        await first.nothing(0, 1)
    assert caught.value.reason == Reason.BEYOND_LEASE


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        pytest.param({"mean_lr": 1.1e-3}, r"mean_lr is 0\.0011, above 0\.001", id="a rate above the peak"),
        pytest.param({"c_steps": 5}, "32 tokens make no 5 steps: one takes 8 tokens", id="more steps than sequences"),
    ],
)
async def test_figures_that_would_blind_the_guard_are_refused(
    tmp_path: Path, fields: dict[str, float], words: str
) -> None:
    bench = Bench(run_config(synchronous()), tmp_path / "state")
    first, _ = await started(bench, 2)
    first.train(2)
    payload = bytes(4 * first.parts[0].anchor.numel())
    header = first.header(0, 1, 1, payload)
    for name, value in fields.items():
        setattr(header, name, value)
    with pytest.raises(Refused, match=words) as caught:
        await first.wire.contribute(header, payload)
    assert caught.value.reason == Reason.BAD_HEADER


async def test_the_highest_true_figures_are_taken(tmp_path: Path) -> None:
    """Every step of one sequence, all at the peak rate; their mean may be rounded up."""
    bench = Bench(run_config(synchronous()), tmp_path / "state")
    first, _ = await started(bench, 2)
    first.train(2)
    payload = bytes(4 * first.parts[0].anchor.numel())
    header = first.header(0, 1, 1, payload)
    header.c_steps, header.mean_lr = 4, 1e-3 * (1 + 1e-9)
    assert (await first.wire.contribute(header, payload)).outcome == pb.RECEIVED


async def test_progress_is_reported_once_a_second_and_when_the_phase_changes(tmp_path: Path) -> None:
    bench = Bench(run_config(synchronous()), tmp_path / "state")
    first = bench.engine.latest
    bench.advance(0.9)
    assert bench.engine.latest is first
    bench.advance(0.1)
    waiting = bench.engine.latest
    assert (waiting is first, waiting.phase) == (False, Phase.WAITING)
    await started(bench, 2)
    bench.advance(0.1)
    assert bench.engine.latest.phase == Phase.RUNNING


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
async def test_a_value_that_is_not_finite_is_refused_by_name_and_harms_nothing(tmp_path: Path, bad: float) -> None:
    bench = Bench(run_config(synchronous()), tmp_path / "state")
    first, second = await started(bench, 2)
    for learner in (first, second):
        learner.train(2)
    delta = first.delta(0, 1)
    delta[3] = bad
    payload = bytes(delta.numpy())
    settled = await first.send(first.header(0, 1, 1, payload), payload)
    assert (settled.outcome, settled.reason, settled.discarded_by_guard) == (pb.REFUSED, "NonFinite", True)
    await second.contribute(0, 1)
    merged = await second.resend(0)
    assert merged.outcome == pb.MERGED
    await second.adopt(merged)
    assert bool(second.parts[0].anchor.isfinite().all())
    bench = bench.crashed()
    progress = await bench.synchronizer.backend.progress()
    assert progress.tokens.discarded["NonFinite"] > 0
    first.wire = bench.wire(0)
    assert (await first.resend(0)).reason == "NonFinite"


async def test_a_newer_incarnation_fences_the_older_one(tmp_path: Path) -> None:
    bench = Bench(run_config(decoupled()), tmp_path / "state")
    old = (await started(bench, 1))[0]
    old.train(1)
    new = bench.learner(0, incarnation=2)
    assert (await new.join()).rejoin is False
    with pytest.raises(Fenced):
        await old.heartbeat()
    with pytest.raises(Fenced):
        await old.contribute(0, 1)
    bench = bench.crashed()
    old.wire = bench.wire(0, 1)
    with pytest.raises(Fenced):
        await old.join()
    assert [learner.gone for learner in (await bench.synchronizer.backend.progress()).learners] == [True, False]
    await bench.wire(0, 2).leave(pb.LeaveRequest(index=0, incarnation=2))
    bench = bench.crashed()
    with pytest.raises(Fenced):
        await bench.learner(0, incarnation=1).join()


async def test_the_work_of_a_gone_learner_is_leased_again(tmp_path: Path) -> None:
    bench = Bench(run_config(decoupled(), budget_tokens=8 * 100), tmp_path / "state")
    first = bench.learner(0)
    await first.join()
    granted = await first.lease(want=20)
    await first.wire.leave(pb.LeaveRequest(index=0, incarnation=1))
    second = bench.learner(1)
    await second.join()
    assert (await second.lease(want=20)).ranges == granted.ranges


async def test_the_units_of_an_index_nobody_holds_are_shared_among_the_live_once_they_are_done(tmp_path: Path) -> None:
    bench = Bench(run_config(synchronous(), budget_tokens=3 * 16 * 4, replicas=3), tmp_path / "state")
    first, second, absent = await started(bench, 3)
    assert absent.leased == 8
    await absent.wire.leave(pb.LeaveRequest(index=2, incarnation=1))
    for learner in (first, second):
        assert (learner.leased, (await learner.lease()).exhausted) == (8, True)
        learner.train(4)
    await first.heartbeat(drained=True)
    bench.advance(1)
    assert not (await first.heartbeat(drained=True)).lease_available  # the second may still be training
    await second.heartbeat(drained=True)
    bench.advance(1)
    assert (await first.heartbeat(drained=True)).lease_available
    bench = bench.crashed()
    granted: list[tuple[int, int]] = []
    for learner in (first, second):
        learner.wire = bench.wire(learner.index)
        reply = await learner.lease()
        assert reply.exhausted
        granted += [(part.start, part.stop) for part in reply.ranges]
    # Unit u is 2 sequences; index 2 of 3 had units 2, 5, 8 and 11, of which the even ones go to the first.
    assert sorted(granted) == [(4, 6), (10, 12), (16, 18), (22, 24)]
    assert (first.leased, second.leased) == (12, 12)
    assert not bench.engine.control.pool.has_work


async def test_version_0_is_not_handed_out_before_the_start(tmp_path: Path) -> None:
    bench = Bench(run_config(synchronous()), tmp_path / "state")
    first = bench.learner(0)
    assert (await first.join()).started is False
    with pytest.raises(WireError, match="not handed out"):
        await first.pull_everything()
    await bench.learner(1).join()
    await first.pull_everything()
    assert [part.version for part in first.parts] == [0, 0]


async def test_an_unheard_learner_leaves_the_round_and_is_gone_later(tmp_path: Path) -> None:
    bench = Bench(run_config(synchronous()), tmp_path / "state")
    first, second = await started(bench, 2)
    for learner in (first, second):
        learner.train(2)
    await first.contribute(0, 1)
    for _ in range(7):
        bench.advance(5)
        await first.heartbeat()
    assert (await first.resend(0)).outcome == pb.MERGED
    for _ in range(121):
        bench.advance(5)
        await first.heartbeat()
    assert (await bench.synchronizer.backend.progress()).learners[1].gone
    with pytest.raises(Refused) as caught:
        await second.heartbeat()
    assert caught.value.reason == Reason.NOT_ADMITTED


async def test_a_behind_learner_gets_deltas_while_they_are_retained_and_the_anchor_afterwards(tmp_path: Path) -> None:
    bench = Bench(run_config(synchronous({"retained_versions": 2})), tmp_path / "state")
    learners = await started(bench, 2)
    for _ in range(3):
        await synchronous_round(learners, 0)
    pull = pb.PullRequest(index=0, incarnation=1, fragment=0, have_version=1, want_version=3)
    assert [item.version async for item in bench.wire(0).pull(pull)] == [2, 3]
    pull.have_version = 0
    with pytest.raises(Refused, match="pull it raw"):
        _ = [item async for item in bench.wire(0).pull(pull)]
    pull.raw = True
    items = [item async for item in bench.wire(0).pull(pull)]
    assert [(item.version, item.raw) for item in items] == [(3, True)]
    assert torch.equal(torch.frombuffer(bytearray(items[0].payload), dtype=torch.float32), learners[0].parts[0].anchor)


async def test_a_finished_job_is_told_at_once_and_shown_when_its_parameters_are_on_disk(tmp_path: Path) -> None:
    bench = Bench(run_config(synchronous(), budget_tokens=2 * 16 * 4), tmp_path / "state")
    learners = await started(bench, 2)
    for fragment in (0, 1):
        await synchronous_round(learners, fragment)
    for learner in learners:
        assert (await learner.lease()).exhausted
    for learner in learners:
        reply = await learner.heartbeat(drained=True)
    progress = await bench.synchronizer.backend.progress()
    assert (progress.phase, reply.phase) == ("Closing", pb.CLOSING)
    for fragment in (0, 1):
        for learner in learners:
            version = learner.parts[fragment].version
            if learner.step > learner.parts[fragment].adopted_step:
                await learner.contribute(fragment, version + 1)
            else:
                nothing = learner.header(fragment, version + 1, learner.parts[fragment].sequence + 1, b"")
                nothing.nothing, nothing.c_steps, nothing.c_tokens = True, 0, 0
                await learner.wire.contribute(nothing, b"")
    for learner in learners:
        assert (await learner.heartbeat(drained=True)).phase == pb.COMPLETE
    progress = await bench.synchronizer.backend.progress()
    assert (progress.phase, progress.reason) == ("Complete", "TokenBudgetReached")
    assert progress.loss_final is not None
    named = load_file(bench.folder / "outer.safetensors")
    fragment = bench.layout.fragments[0]
    assert torch.equal(gather(fragment, named), bench.engine.fragments[0].published)
    assert progress.tokens.discarded == {}
    assert progress.tokens.trained == progress.tokens.merged + progress.tokens.overlap == 2 * 16 * 4
    bench = bench.crashed()
    progress = await bench.synchronizer.backend.progress()
    assert (progress.phase, progress.reason) == ("Complete", "TokenBudgetReached")
    with pytest.raises(Refused) as caught:
        await bench.learner(0, 2).join()
    assert caught.value.reason == Reason.JOB_ENDED


async def test_a_drained_job_stops_and_the_next_start_resumes_it(tmp_path: Path) -> None:
    bench = Bench(run_config(synchronous()), tmp_path / "state")
    learners = await started(bench, 2)
    await synchronous_round(learners, 0)
    await bench.synchronizer.backend.drain()
    for learner in learners:
        assert (await learner.heartbeat(drained=False)).phase == pb.DRAINING
    for learner in learners:
        await learner.heartbeat(drained=True)
    for learner in learners:
        nothing = learner.header(0, learner.parts[0].version + 1, 2, b"")
        nothing.nothing, nothing.c_steps, nothing.c_tokens = True, 0, 0
        await learner.wire.contribute(nothing, b"")
        await learner.contribute(1, 1)
    assert (await learners[0].heartbeat(drained=True)).phase == pb.STOPPED
    progress = await bench.synchronizer.backend.progress()
    assert (progress.phase, progress.reason, progress.outer_steps) == ("Stopped", None, 2)
    bench = bench.crashed()
    progress = await bench.synchronizer.backend.progress()
    assert (progress.phase, progress.outer_steps) == ("Running", 2)
    for learner in learners:
        learner.wire = bench.wire(learner.index)
        await learner.adopt(await learner.resend(1))
    await synchronous_round(learners, 0)


async def test_uptime_ends_when_the_last_merge_is_older_than_the_deadline(tmp_path: Path) -> None:
    bench = Bench(run_config(synchronous()), tmp_path / "state")
    learners = await started(bench, 2)
    await synchronous_round(learners, 0)
    for _ in range(20):
        bench.advance(5)
        for learner in learners:
            await learner.heartbeat()
    progress = await bench.synchronizer.backend.progress()
    assert (progress.total_served_seconds, progress.uptime_seconds) == (100, 60)
    assert progress.last_merge_age_seconds == 100
    bench = bench.crashed()
    progress = await bench.synchronizer.backend.progress()
    assert (progress.total_served_seconds, progress.uptime_seconds) == (100, 60)


async def test_a_snapshot_replaces_the_log_and_loses_nothing(tmp_path: Path) -> None:
    bench = Bench(run_config(synchronous()), tmp_path / "state", limits=Limits(least_log_bytes=1))
    learners = await started(bench, 2)
    segments = []
    for _ in range(6):
        await synchronous_round(learners, 0)
        await synchronous_round(learners, 1)
        bench.advance(1)
        segments.append(segment_numbers(bench.folder))
    assert segments[-1][0] > 1
    assert len(segments[-1]) == 1
    before = await bench.synchronizer.backend.progress()
    states = bench.engine.fragments
    bench = bench.crashed()
    assert (await bench.synchronizer.backend.progress()).digests == before.digests
    for one, other in zip(states, bench.engine.fragments, strict=True):
        assert torch.equal(one.momentum, other.momentum)
        assert one.norms == other.norms
    for learner in learners:
        learner.wire = bench.wire(learner.index)
    await synchronous_round(learners, 0)


async def test_notices_tell_the_phase_turns_and_settlements(tmp_path: Path) -> None:
    bench = Bench(run_config(decoupled({"grace": {"kind": "Fixed", "seconds": 0}})), tmp_path / "state")
    first, second = await started(bench, 2)
    async with aclosing(first.wire.turns()) as notices:
        assert (await anext(notices)).phase == pb.RUNNING
        for learner in (first, second):
            learner.train(2)
            await learner.heartbeat(step_seconds=1.0)
        bench.advance(1.5)
        turn = (await anext(notices)).turn
        assert (turn.number, turn.closing) == (1, False)
        await first.contribute(turn.fragment, turn.number)
        settlement = (await anext(notices)).settlement
        assert (settlement.outcome, settlement.version, settlement.fragment) == (pb.MERGED, 1, turn.fragment)
    await first.adopt(settlement)


async def test_a_late_body_is_held_and_merged_in_the_next_round_rebased(tmp_path: Path) -> None:
    plain = {"weighting": "Uniform", "merge": "Mean", "encode_up": "fp32", "encode_down": "fp32"}
    policy = decoupled({"grace": {"kind": "Fixed", "seconds": 0}, "num_fragments": 1, "guard": None, **plain})
    bench = Bench(run_config(policy), tmp_path / "state")
    first, second = await started(bench, 2)
    version_0 = first.parts[0].anchor.clone()
    for learner in (first, second):
        learner.train(2)
        await learner.heartbeat(step_seconds=1.0)
    bench.advance(2.5)
    await first.contribute(0, 1)
    await first.adopt(await first.resend(0))
    version_1 = first.parts[0].anchor.clone()
    assert (await second.contribute(0, 1)).outcome == pb.HELD
    assert (await second.resend(0)).outcome == pb.HELD
    bench.advance(2.5)
    first.train(2)
    await first.contribute(0, 2)
    settled = await second.resend(0)
    assert (settled.outcome, settled.version) == (pb.MERGED, 2)
    await second.adopt(settled)
    await first.adopt(await first.resend(0))
    assert torch.equal(first.parts[0].anchor, second.parts[0].anchor)
    rebased = second.delta(0, 1) + (version_1 - version_0)
    delta = (first.delta(0, 2) + rebased) / 2
    momentum = 0.9 * first.delta(0, 1) + delta
    version_2 = version_1 - 0.6 * (delta + 0.9 * momentum)
    torch.testing.assert_close(first.parts[0].anchor, version_2, rtol=0, atol=1e-6)
    assert torch.equal(bench.crashed().engine.fragments[0].theta, bench.engine.fragments[0].theta)


async def test_a_turn_left_unanswered_is_asked_again_with_the_heartbeat(tmp_path: Path) -> None:
    bench = Bench(run_config(decoupled({"num_fragments": 1})), tmp_path / "state")
    first, second = await started(bench, 2)
    async with aclosing(first.wire.turns()) as notices:
        await anext(notices)
        for learner in (first, second):
            learner.train(2)
            await learner.heartbeat(step_seconds=1.0)
        bench.advance(2.5)
        turn = (await anext(notices)).turn
        bench.advance(1)
        await first.heartbeat()
        bench.advance(5)
        await first.heartbeat()
        assert (await anext(notices)).turn.number == turn.number
        await first.contribute(0, turn.number)
        assert (await anext(notices)).settlement.outcome == pb.MERGED


async def test_an_answer_of_nothing_books_what_the_adoption_overwrote(tmp_path: Path) -> None:
    """Steps between the stage and its adoption, and none since: overlap, and nothing left in flight."""
    bench = Bench(run_config(decoupled({"num_fragments": 1})), tmp_path / "state")
    (learner,) = await started(bench, 1)
    learner.train(4)
    await learner.heartbeat(step_seconds=1.0)
    bench.advance(25)
    settled = await learner.contribute(0, 1)
    learner.train(2)
    await learner.heartbeat(step_seconds=1.0)
    await learner.adopt(await learner.resend(0) if settled.outcome == pb.RECEIVED else settled)
    bench.advance(25)
    assert (await learner.nothing(0, 2)).outcome == pb.RECEIVED
    await learner.nothing(0, 2)
    for life in (bench, bench.crashed()):
        tokens = (await life.synchronizer.backend.progress()).tokens
        trained, overwritten = 4 * learner.batch_tokens, 2 * learner.batch_tokens
        assert (tokens.merged, tokens.overlap, tokens.in_flight) == (trained, overwritten, 0)

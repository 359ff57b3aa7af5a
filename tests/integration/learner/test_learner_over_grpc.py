"""A whole Learner, both threads, against a real gRPC server on loopback with a backend that merges at once."""

import asyncio
import random
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from diloco_api.exit_codes import ExitCode
from diloco_api.policy import SyncPolicy
from diloco_api.run_config import RunConfig
from diloco_api.timeouts import Timeouts
from diloco_trainer.learner.account import Account
from diloco_trainer.learner.core import LearnerCore
from diloco_trainer.learner.exchange import Exchange
from diloco_trainer.learner.heartbeat import Self
from diloco_trainer.learner.loop import Link, TrainingLoop
from diloco_trainer.learner.messages import Depart, Ended, Granted, Installed, LeaseWanted, Restored, Staged, TurnSeen
from diloco_trainer.learner.tape import Tape
from diloco_trainer.task.task import make_task
from diloco_trainer.wire.errors import Fenced, LayoutMismatch, Reason, Refused, Unauthenticated
from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from fakes.exchanges import GrpcExchange
from fakes.learners import CPU, ME, anchors_of, make_run
from fakes.merging_backend import MergingBackend
from fakes.sync_jobs import decoupled, synchronous

Message = TypeVar("Message")
SYNCHRONOUS = synchronous({"sync_every": 4, "num_fragments": 2})
DECOUPLED = decoupled({"encode_up": "fp32", "encode_down": "fp32", "error_feedback": False})


@dataclass
class Setting:
    """Server, backend and Learner of a test."""

    run: RunConfig
    backend: MergingBackend
    server: GrpcExchange
    core: LearnerCore
    account: Account
    exchange: Exchange
    loop: TrainingLoop
    folder: Path
    ended: list[Ended] = field(default_factory=list)
    running: "asyncio.Task[None] | None" = None

    def start(self) -> None:
        """Train on a thread of its own; the test's loop serves."""
        self.exchange.start()

        async def train() -> None:
            self.ended.append(await asyncio.to_thread(self.loop.run))

        self.running = asyncio.create_task(train())

    async def until(self, question: Callable[[], object]) -> None:
        """Wait until the answer is yes; what ends the Learner meanwhile is raised."""
        async with asyncio.timeout(60):
            while not question():
                assert self.running is not None
                if self.running.done():
                    await self.running
                    raise AssertionError(f"the Learner has ended: {self.ended}")
                await asyncio.sleep(0.005)

    async def end(self) -> Ended:
        assert self.running is not None
        async with asyncio.timeout(60):
            await self.running
        return self.ended[0]


async def until(question: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not question():
            await asyncio.sleep(0.005)


def next_of(exchange: Exchange, kind: type[Message], fits: Callable[[Message], bool] = lambda message: True) -> Message:
    """The next message of a kind that the training thread is sent."""
    while True:
        message = exchange.inbox.get(timeout=60)
        assert not isinstance(message, Ended), message
        if isinstance(message, kind) and fits(message):
            return message


Maker = Callable[..., Awaitable[Setting]]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncGenerator[Maker, None]:
    made: list[Setting] = []

    async def setting(policy: SyncPolicy, *, steps: int = 16, **timeouts: float) -> Setting:
        run = make_run(tmp_path, policy, {"budget_tokens": steps * 64, "timeouts": Timeouts(**timeouts)})
        task = make_task(run.train)
        core = LearnerCore(task, run.train, policy, CPU)
        anchors = [[anchor + 0.01] for anchor in anchors_of(core)]
        backend = MergingBackend(core.layout, anchors, steps * 4, task.num_sequences)
        server = await GrpcExchange.start(backend, tmp_path)
        account, tape, clock = Account(time.monotonic), Tape(tmp_path / "tape.jsonl"), time.monotonic
        exchange = Exchange(
            lambda: server.learner(ME.index, ME.incarnation, call_retry_seconds=0.5),
            run,
            Self(ME, "here", core.layout.digest, metrics_port=1234),
            core.layout,
            account=account,
            tape=tape,
            clock=clock,
            rng=random.Random(0),
        )
        link = Link(exchange.inbox, exchange.post, lambda: exchange.unheard_seconds)
        loop = TrainingLoop(task, core, run, link, account=account, tape=tape, clock=clock)
        made.append(Setting(run, backend, server, core, account, exchange, loop, tmp_path))
        return made[-1]

    yield setting
    for it in made:
        it.loop.stop()
        if it.running is not None:
            await it.end()
        await asyncio.to_thread(it.exchange.join, 20.0)
        await it.server.close()


async def drained(it: Setting) -> None:
    await it.until(lambda: it.backend.heartbeats and it.backend.heartbeats[-1].drained)


async def test_a_synchronous_job_runs_to_its_end(make: Maker) -> None:
    it = await make(SYNCHRONOUS)
    it.start()
    await drained(it)
    assert it.core.steps == 16
    for fragment in range(2):
        it.backend.turn(5 + fragment, fragment, closing=True)
    await it.until(lambda: sum(header.nothing for header in it.backend.headers) == 1)
    it.backend.become(pb.COMPLETE)
    assert await it.end() == Ended(ExitCode.COMPLETE, "")
    sent = [(h.stage_step, h.fragment, h.turn, h.base_version, h.c_steps) for h in it.backend.headers if not h.nothing]
    schedule = [(4 * n, 0, n, n - 1, 4) for n in range(1, 5)] + [(2, 1, 1, 0, 2)]
    schedule += [(4 * n - 2, 1, n, n - 1, 4) for n in range(2, 5)] + [(16, 1, 6, 4, 2)]
    assert sorted(sent) == sorted(schedule), "fragment 0 has nothing left for its closing round, fragment 1 two steps"
    (leave,) = it.backend.left
    assert (leave.totals.step, leave.totals.token_clock, leave.totals.metrics_port) == (16, 1024, 1234)
    assert it.account.report().bytes_up == sum(map(len, it.backend.bodies))


async def test_what_is_published_is_what_a_learner_holds(make: Maker) -> None:
    it = await make(SYNCHRONOUS)
    it.start()
    await drained(it)
    newest = [versions[-1] for versions in it.backend.anchors]
    assert torch.equal(anchors_of(it.core)[0], newest[0]), "adopted at the last step"
    assert [clock.base_version for clock in it.core.clocks] == [4, 4]


async def test_turns_are_answered_and_adopted_while_training_goes_on(make: Maker) -> None:
    it = await make(DECOUPLED, steps=4000)
    it.start()
    await it.until(lambda: it.account.report().step > 2)
    for number in range(1, 13):
        it.backend.turn(number, number % 2)
        await it.until(lambda: it.backend.headers and it.backend.headers[-1].turn == number)  # noqa: B023
    await it.until(lambda: all(clock.base_version >= 4 for clock in it.core.clocks))
    bodies = [header for header in it.backend.headers if not header.nothing]
    assert len(bodies) >= 8
    assert it.account.report().state_seconds["sync_wait"] == 0.0
    assert [h.sequence for h in bodies if h.fragment == 0] == sorted(h.sequence for h in bodies if h.fragment == 0)


async def test_a_turn_is_answered_from_the_stage_in_the_middle_of_a_step(make: Maker) -> None:
    it = await make(DECOUPLED)
    it.exchange.start()
    restored = await asyncio.to_thread(next_of, it.exchange, Restored)
    it.core.install(restored.versions, restored.anchors, restored.job_step)
    it.core.train_step(torch.randint(0, 256, (4, 17)), 1e-2)
    it.exchange.post(Staged(it.core.stage(1), None))
    it.core.train_step(torch.randint(0, 256, (4, 17)), 1e-2)  # the boundary after it never comes
    await until(lambda: it.backend.subscribers)
    it.backend.turn(1, 1)
    await until(lambda: it.backend.headers)
    assert (it.backend.headers[0].stage_step, it.backend.headers[0].c_steps) == (1, 1)
    it.backend.turn(2, 0)
    seen = await asyncio.to_thread(next_of, it.exchange, TurnSeen, lambda turn: turn.number == 2)
    assert seen.needs_stage
    it.exchange.post(Staged(it.core.stage(0), None))
    await until(lambda: len(it.backend.headers) == 2)
    assert (it.backend.headers[1].turn, it.backend.headers[1].stage_step) == (2, 2)
    it.exchange.post(Depart("over", within_seconds=5.0))


async def test_after_a_broken_stream_open_contributions_are_sent_again_verbatim(make: Maker) -> None:
    it = await make(DECOUPLED, steps=4000)
    it.backend.outcome = pb.RECEIVED
    it.start()
    await it.until(lambda: it.account.report().step > 2)
    it.backend.turn(1, 1)
    await it.until(lambda: len(it.backend.headers) == 1)
    it.backend.tell(None)
    await it.until(lambda: len(it.backend.headers) == 2)
    assert it.backend.headers[0] == it.backend.headers[1]
    assert it.backend.bodies[0] == it.backend.bodies[1]
    it.backend.settle(it.backend.headers[0], it.backend.bodies[0], tell=True)
    await it.until(lambda: it.core.clocks[1].base_version == 1)
    it.backend.tell(None)
    await it.until(lambda: it.backend.calls["turns"] == 3)
    assert len(it.backend.headers) == 2, "what is settled is not sent again"


async def test_a_settlement_that_was_missed_is_learned_from_the_resend(make: Maker) -> None:
    it = await make(DECOUPLED, steps=4000)
    it.backend.outcome = pb.RECEIVED
    it.start()
    await it.until(lambda: it.account.report().step > 2)
    it.backend.turn(1, 1)
    await it.until(lambda: len(it.backend.headers) == 1)
    it.backend.settle(it.backend.headers[0], it.backend.bodies[0], tell=False)
    it.backend.tell(None)
    await it.until(lambda: it.core.clocks[1].base_version == 1)
    assert len(it.backend.headers) == 1, "the Synchronizer knew it by its header"


async def test_a_synchronizer_that_comes_back_finds_the_learner_training(make: Maker) -> None:
    it = await make(DECOUPLED, steps=100_000)
    it.start()
    await it.until(lambda: it.account.report().step > 2)
    await it.server.server.stop(0)
    before = it.account.report().step
    await it.until(lambda: it.account.report().step > before + 20)
    returned = await GrpcExchange.start(it.backend, it.folder)
    it.server.server = returned.server
    heartbeats = len(it.backend.heartbeats)
    await it.until(lambda: len(it.backend.heartbeats) > heartbeats and it.backend.subscribers)
    it.backend.turn(1, 1)
    await it.until(lambda: it.core.clocks[1].base_version == 1)
    assert it.backend.calls["join"] == 1
    assert it.account.report().state_seconds["sync_wait"] == 0.0


async def test_a_wrong_digest_is_pulled_raw_and_counted(make: Maker) -> None:
    it = await make(SYNCHRONOUS)
    it.start()
    await it.until(lambda: it.backend.calls["lease"])
    it.backend.wrong_digests = 1
    await drained(it)
    assert it.account.report().digest_mismatches == 1
    assert sum(pull.raw for pull in it.backend.pulls) == 2 + 1, "both fragments at the start, one of them again"
    assert [clock.base_version for clock in it.core.clocks] == [4, 4]


async def test_a_version_no_longer_retained_is_pulled_raw(make: Maker) -> None:
    it = await make(SYNCHRONOUS)
    it.backend.retained = -1
    it.start()
    await drained(it)
    assert [clock.base_version for clock in it.core.clocks] == [4, 4]
    assert {pull.raw for pull in it.backend.pulls} == {True, False}
    assert it.account.report().digest_mismatches == 0


async def test_a_refused_contribution_is_thrown_away_and_the_newest_version_adopted(make: Maker) -> None:
    it = await make(SYNCHRONOUS)
    it.backend.outcome = pb.REFUSED
    it.start()
    await drained(it)
    assert [clock.base_version for clock in it.core.clocks] == [0, 0]
    assert torch.equal(anchors_of(it.core)[0], it.backend.anchors[0][0])
    assert {header.base_version for header in it.backend.headers} == {0}


async def test_a_learner_that_was_given_up_joins_anew(make: Maker) -> None:
    it = await make(DECOUPLED, steps=100_000)
    it.start()
    await it.until(lambda: it.account.report().step > 2)
    it.backend.turn(1, 1)
    await it.until(lambda: len(it.backend.headers) == 1)
    it.backend.failures["heartbeat"] = [Refused(Reason.NOT_ADMITTED, "join first")]
    await it.until(lambda: it.core.generation == 2)
    moments = {int(state["step"]) for state in it.core.optimizer.state.values()}
    assert min(moments) > 2, "the inner optimizer goes on"
    steps = it.account.report().step
    await it.until(lambda: it.account.report().step > steps)
    it.backend.turn(2, 1)
    await it.until(lambda: it.backend.headers[-1].sequence == 2)
    assert it.backend.calls["join"] == 2


async def test_bytes_damaged_on_the_way_are_sent_again(make: Maker) -> None:
    it = await make(SYNCHRONOUS)
    it.backend.failures["contribute"] = [Refused(Reason.BAD_CHECKSUM, "send it again")]
    it.start()
    await drained(it)
    assert [clock.base_version for clock in it.core.clocks] == [4, 4]


@pytest.mark.parametrize(
    ("call", "error", "code"),
    [
        ("heartbeat", Fenced("learner 0 runs as incarnation 2"), ExitCode.FENCED),
        ("turns", Fenced("learner 0 runs as incarnation 2"), ExitCode.FENCED),
        ("offer", Fenced("learner 0 runs as incarnation 2"), ExitCode.FENCED),
        ("join", LayoutMismatch("other parameters"), ExitCode.INCOMPATIBLE),
        ("join", Refused(Reason.JOB_ENDED, "the job is Complete"), ExitCode.JOB_ENDED),
        ("lease", Refused(Reason.JOB_ENDED, "the job is Complete"), ExitCode.JOB_ENDED),
    ],
)
async def test_a_final_refusal_ends_it_with_its_own_code(
    make: Maker, call: str, error: Exception, code: ExitCode
) -> None:
    it = await make(SYNCHRONOUS)
    it.backend.failures[call] = [error]  # type: ignore[list-item]
    it.start()
    ended = await it.end()
    assert ended == Ended(code, str(error))


async def test_a_refused_token_is_called_an_auth_failure(make: Maker) -> None:
    it = await make(SYNCHRONOUS)
    it.backend.failures["join"] = [Unauthenticated("not this job's key")]
    it.start()
    assert await it.end() == Ended(ExitCode.UNAUTHENTICATED, "AuthFailure: not this job's key")


async def test_a_tape_that_cannot_be_written_neither_stops_it_nor_hides_its_end(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = await make(SYNCHRONOUS)
    (it.folder / "tape.jsonl").mkdir()
    it.start()
    await drained(it)
    it.backend.become(pb.COMPLETE)
    assert await it.end() == Ended(ExitCode.COMPLETE, "")


async def test_its_end_is_said_before_the_tape_is_written(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    it = await make(SYNCHRONOUS)
    seen = list[bool]()
    monkeypatch.setattr(Tape, "flush", lambda tape: seen.append(it.exchange.inbox.empty()))
    it.backend.failures["join"] = [Refused(Reason.JOB_ENDED, "the job is Complete")]
    it.exchange.start()
    await asyncio.to_thread(it.exchange.join, 20.0)
    assert seen == [False]


async def test_after_a_rejoin_it_asks_for_work_only_when_the_step_under_way_is_counted(make: Maker) -> None:
    it = await make(DECOUPLED, steps=100_000)
    it.exchange.start()
    first = await asyncio.to_thread(next_of, it.exchange, Restored)
    it.core.install(first.versions, first.anchors, first.job_step)
    it.exchange.post(Installed(1))
    granted = await asyncio.to_thread(next_of, it.exchange, Granted)
    it.backend.failures["heartbeat"] = [Refused(Reason.NOT_ADMITTED, "join first")]
    await asyncio.to_thread(next_of, it.exchange, Restored)
    it.exchange.post(LeaseWanted())
    heartbeats = len(it.backend.heartbeats)
    await until(lambda: len(it.backend.heartbeats) > heartbeats + 3)
    assert it.backend.calls["lease"] == 1, "a step of the life before is still under way"
    it.account.took(4)  # of the lease before
    it.account.stepped(step=1, job_step=1, token_clock=64, seconds=1.0, loss=1.0, rate=1e-3, warmup_left=0)
    it.exchange.post(Installed(1))  # said before the rejoin
    it.exchange.post(Installed(2))
    await asyncio.to_thread(next_of, it.exchange, Granted)
    request = it.backend.leases[1]
    assert (request.token_clock, request.remaining_sequences) == (64, 0)
    assert granted.ranges
    it.exchange.post(Depart("over", within_seconds=5.0))


@pytest.mark.parametrize("retained", [100, -1], ids=["by deltas", "raw"])
async def test_without_work_it_keeps_up_with_what_the_others_publish(make: Maker, retained: int) -> None:
    it = await make(DECOUPLED)
    it.start()
    await drained(it)
    for fragment in range(2):
        it.backend.turn(1 + fragment, fragment)
    await it.until(lambda: [clock.base_version for clock in it.core.clocks] == [1, 1])
    it.backend.retained = retained
    for _ in range(3):
        it.backend.anchors[1].append(it.backend.anchors[1][-1] + 0.25)
    pulls = it.backend.calls["pull"]
    it.backend.turn(3, 1)
    await it.until(lambda: it.core.clocks[1].base_version == 4)
    assert torch.equal(anchors_of(it.core)[1], it.backend.anchors[1][4])
    it.backend.turn(4, 1)
    it.backend.turn(5, 0)
    await it.until(lambda: {4, 5} <= {header.turn for header in it.backend.headers})
    assert [header.base_version for header in it.backend.headers if header.turn == 4] == [4]
    assert [clock.base_version for clock in it.core.clocks] == [1, 4], "nothing newer, nothing adopted"
    assert it.backend.calls["pull"] >= pulls + 1
    assert it.account.report().digest_mismatches == 0


async def test_an_empty_answer_beyond_its_lease_does_not_end_it(make: Maker) -> None:
    it = await make(DECOUPLED)
    it.start()
    await drained(it)
    for fragment in range(2):
        it.backend.turn(1 + fragment, fragment, closing=True)
    await it.until(lambda: [clock.base_version for clock in it.core.clocks] == [1, 1])
    offers = it.backend.calls["offer"]
    it.backend.failures["offer"] = [Refused(Reason.BEYOND_LEASE, "beyond the tokens leased")]
    it.backend.turn(3, 0, closing=True)
    await it.until(lambda: it.backend.calls["offer"] > offers)
    it.backend.turn(4, 1, closing=True)
    await it.until(lambda: it.backend.headers[-1].turn == 4)
    it.backend.become(pb.COMPLETE)
    assert await it.end() == Ended(ExitCode.COMPLETE, "")


async def test_an_orphan_ends_itself(make: Maker) -> None:
    it = await make(DECOUPLED, steps=100_000, orphan_timeout_seconds=1.0, rpc_timeout_seconds=0.5)
    it.start()
    await it.until(lambda: it.account.report().step > 2)
    await it.server.server.stop(0)
    ended = await it.end()
    assert ended.code == ExitCode.ORPHANED
    assert re.fullmatch(r"the Synchronizer has not been heard for 1 s: UNAVAILABLE: .+", ended.line)


async def test_asked_to_stop_it_hands_over_what_it_trained(make: Maker) -> None:
    it = await make(DECOUPLED, steps=100_000)
    it.backend.outcome = pb.RECEIVED
    it.start()
    await it.until(lambda: it.account.report().step > 5)
    it.loop.stop()
    assert (await it.end()).code == ExitCode.COMPLETE
    assert sorted(header.fragment for header in it.backend.headers) == [0, 1]
    assert {header.c_steps for header in it.backend.headers} == {it.core.steps}
    (leave,) = it.backend.left
    assert leave.reason == "Terminated"


async def test_waiting_for_version_0_it_is_heard(make: Maker) -> None:
    it = await make(SYNCHRONOUS)
    it.backend.phase = pb.WAITING
    it.start()
    await it.until(lambda: len(it.backend.heartbeats) > 2)
    assert (it.core.generation, it.backend.calls["pull"]) == (0, 0)
    it.backend.become(pb.RUNNING)
    await drained(it)
    assert it.core.steps == 16

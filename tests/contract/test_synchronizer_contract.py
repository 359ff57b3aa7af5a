"""What every way to reach the Synchronizer keeps to, in memory, over gRPC, over TLS: the same calls and refusals."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from diloco_api.tokens import make_token
from diloco_trainer.wire.errors import (
    Fenced,
    LayoutMismatch,
    ProtocolMismatch,
    Reason,
    Refused,
    SynchronizerUnavailable,
    Unauthenticated,
    WireError,
)
from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from diloco_trainer.wire.service import PullItem, Synchronizer
from fakes.exchanges import Exchange, GrpcExchange, MemoryExchange
from fakes.synchronizer_backend import EPOCH, JOB, KEY, FakeBackend, delta, header, join_request, payload_of


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture(params=["memory", "grpc", "tls"])
async def exchange(request: pytest.FixtureRequest, backend: FakeBackend, tmp_path: Path) -> AsyncIterator[Exchange]:
    made: Exchange = MemoryExchange(backend)
    if request.param != "memory":
        made = await GrpcExchange.start(backend, tmp_path, tls=request.param == "tls")
    yield made
    await made.close()


async def joined(exchange: Exchange, index: int = 0, incarnation: int = 0) -> Synchronizer:
    learner = exchange.learner(index, incarnation)
    await learner.join(join_request(index, incarnation))
    return learner


async def pulled(learner: Synchronizer, request: pb.PullRequest) -> list[PullItem]:
    return [item async for item in learner.pull(request)]


async def first_notice(learner: Synchronizer) -> pb.Notice:
    async with aclosing(learner.turns()) as notices:
        return await anext(notices)


async def send(learner: Synchronizer, fragment: int = 0, index: int = 0, incarnation: int = 0) -> pb.Settlement:
    payload = payload_of(fragment)
    return await learner.contribute(header(payload, fragment=fragment, index=index, incarnation=incarnation), payload)


CALLS: dict[str, Callable[[Synchronizer], Awaitable[object]]] = {
    "join": lambda learner: learner.join(join_request()),
    "heartbeat": lambda learner: learner.heartbeat(pb.HeartbeatRequest()),
    "turns": first_notice,
    "lease": lambda learner: learner.lease(pb.LeaseRequest(want_sequences=8)),
    "contribute": send,
    "pull": lambda learner: pulled(learner, pb.PullRequest(raw=True)),
    "leave": lambda learner: learner.leave(pb.LeaveRequest()),
}
"""Every call, as learner 0 incarnation 0 makes it."""

each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


async def test_join_brings_what_the_backend_answers_and_may_be_repeated(exchange: Exchange) -> None:
    learner = exchange.learner(2, 1)
    first = await learner.join(join_request(2, 1))
    assert (first.epoch, list(first.versions), first.started) == (EPOCH, [5, 5], True)
    assert await learner.join(join_request(2, 1)) == first


async def test_another_protocol_version_is_refused_before_the_backend_hears_of_it(
    exchange: Exchange, backend: FakeBackend
) -> None:
    request = join_request()
    request.protocol_version += 1
    with pytest.raises(ProtocolMismatch, match=r"speaks protocol 2, the Synchronizer 1"):
        await exchange.learner().join(request)
    assert not backend.calls


async def test_another_layout_is_refused_in_the_backends_words(exchange: Exchange) -> None:
    request = join_request()
    request.layout_digest = "cd" * 32
    with pytest.raises(LayoutMismatch, match=r"^the Learner built other parameters than the Synchronizer$"):
        await exchange.learner().join(request)


@each_call
async def test_every_call_needs_a_token_of_this_jobs_key(
    exchange: Exchange, backend: FakeBackend, call: Callable[[Synchronizer], Awaitable[object]]
) -> None:
    for token in (make_token(bytes(32), JOB, 0, 0), "", "v1.e30.e30", "garbage"):
        with pytest.raises(Unauthenticated):
            await call(exchange.learner(token=token))
    assert not backend.calls


@each_call
async def test_every_call_needs_a_token_of_this_job(
    exchange: Exchange, backend: FakeBackend, call: Callable[[Synchronizer], Awaitable[object]]
) -> None:
    with pytest.raises(Refused, match=f"job {JOB}, not of 'another'") as caught:
        await call(exchange.learner(token=make_token(KEY, "another", 0, 0)))
    assert caught.value.reason is Reason.FOREIGN_JOB
    assert not backend.calls


@pytest.mark.parametrize(("index", "incarnation"), [(1, 0), (0, 1)], ids=["index", "incarnation"])
@pytest.mark.parametrize("name", [name for name in CALLS if name != "turns"])
async def test_a_message_may_not_speak_for_another_incarnation_than_its_token(
    exchange: Exchange, backend: FakeBackend, name: str, index: int, incarnation: int
) -> None:
    with pytest.raises(Unauthenticated, match=f"made for learner {index} incarnation {incarnation}"):
        await CALLS[name](exchange.learner(index, incarnation))
    assert not backend.calls


async def test_totals_of_a_leave_may_not_speak_for_another_incarnation(exchange: Exchange) -> None:
    learner = await joined(exchange)
    with pytest.raises(Unauthenticated):
        await learner.leave(pb.LeaveRequest(totals=pb.HeartbeatRequest(index=1)))


@each_call
async def test_an_older_incarnation_is_fenced_and_the_newer_one_goes_on(
    exchange: Exchange, backend: FakeBackend, call: Callable[[Synchronizer], Awaitable[object]]
) -> None:
    older = await joined(exchange)
    newer = await joined(exchange, 0, 1)
    backend.failures["leave"] = [Fenced("learner 0 runs as a newer incarnation")]
    with pytest.raises(Fenced, match=r"^learner 0 runs as a newer incarnation$"):
        await call(older)
    assert (await newer.heartbeat(pb.HeartbeatRequest(incarnation=1))).phase == pb.RUNNING


async def test_who_has_not_joined_is_told_so(exchange: Exchange) -> None:
    with pytest.raises(Refused, match="has not joined") as caught:
        await exchange.learner().heartbeat(pb.HeartbeatRequest())
    assert caught.value.reason is Reason.NOT_ADMITTED


async def test_a_heartbeat_arrives_whole(exchange: Exchange, backend: FakeBackend) -> None:
    learner = await joined(exchange)
    sent = pb.HeartbeatRequest(state="training", step=12, loss=2.5, state_seconds={"training": 9.5}, drained=True)
    await learner.heartbeat(sent)
    assert backend.heartbeats == [sent]


async def test_a_lease_request_said_twice_gets_one_answer(exchange: Exchange) -> None:
    learner = await joined(exchange)
    request = pb.LeaseRequest(want_sequences=8, request_number=3)
    first = await learner.lease(request)
    assert [(work.start, work.stop) for work in first.ranges] == [(300, 308)]
    assert await learner.lease(request) == first


@pytest.mark.parametrize("fragment", [0, 1], ids=["part of a chunk", "several chunks"])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
async def test_a_body_arrives_as_it_was_sent(
    exchange: Exchange, backend: FakeBackend, fragment: int, kind: Callable[[bytes], bytes]
) -> None:
    learner = await joined(exchange)
    payload = payload_of(fragment, 3)
    settlement = await learner.contribute(header(payload, fragment=fragment), kind(payload))
    assert (settlement.fragment, settlement.sequence, settlement.outcome) == (fragment, 1, pb.RECEIVED)
    assert backend.bodies == {(0, 0, fragment, 1): payload}


async def test_a_known_body_is_acknowledged_without_being_taken_again(exchange: Exchange, backend: FakeBackend) -> None:
    learner = await joined(exchange)
    await send(learner, 1)
    assert (await send(learner, 1)).outcome == pb.MERGED
    assert backend.calls["contribute"] == 1


async def test_an_answer_of_nothing_has_no_body(exchange: Exchange, backend: FakeBackend) -> None:
    learner = await joined(exchange)
    nothing = pb.ContributionHeader(job_uid=JOB, epoch=EPOCH, turn=4, sequence=1, nothing=True)
    assert (await learner.contribute(nothing, b"")).outcome == pb.RECEIVED
    assert backend.bodies == {(0, 0, 0, 1): b""}


def _set(**fields: object) -> Callable[[pb.ContributionHeader], None]:
    def change(header: pb.ContributionHeader) -> None:
        for name, value in fields.items():
            setattr(header, name, value)

    return change


BAD_HEADERS: dict[str, tuple[Callable[[pb.ContributionHeader], None], Reason, str]] = {
    "foreign job": (_set(job_uid="another"), Reason.FOREIGN_JOB, "not of 'another'"),
    "another epoch": (_set(epoch=6), Reason.EPOCH_MISMATCH, "made in epoch 6, the job is in epoch 7"),
    "unknown fragment": (_set(fragment=2), Reason.UNKNOWN_FRAGMENT, "there is no fragment 2"),
    "wrong codec": (_set(codec="fp32"), Reason.WRONG_CODEC, "fragment 0 is encoded as 'fp32', the job uses 'int8'"),
    "wrong shape": (_set(shape_digest="x"), Reason.LAYOUT_MISMATCH, "fragment 0 has layout 'x'"),
    "oversized": (_set(size_bytes=10 * 1000**3), Reason.WRONG_SIZE, "takes 1000 bytes, not 10000000000"),
    "too small": (_set(size_bytes=999), Reason.WRONG_SIZE, "takes 1000 bytes, not 999"),
    "no checksum": (_set(checksum=b""), Reason.BAD_HEADER, "sha256"),
    "no sequence": (_set(sequence=0), Reason.BAD_HEADER, "sequence"),
    "no steps": (_set(c_steps=0), Reason.BAD_HEADER, "without steps"),
    "nothing with a body": (_set(nothing=True), Reason.BAD_HEADER, "neither a body nor steps"),
    "beyond the lease": (_set(c_tokens=2_000_000), Reason.BEYOND_LEASE, "never leased"),
    "wrong checksum": (_set(checksum=bytes(32)), Reason.BAD_CHECKSUM, "sha256"),
}


@pytest.mark.parametrize(("change", "reason", "words"), BAD_HEADERS.values(), ids=BAD_HEADERS)
async def test_a_bad_header_is_refused_by_name_and_harms_nobody(
    exchange: Exchange,
    backend: FakeBackend,
    change: Callable[[pb.ContributionHeader], None],
    reason: Reason,
    words: str,
) -> None:
    learner, other = await joined(exchange), await joined(exchange, 1)
    payload = payload_of(0)
    bad = header(payload)
    change(bad)
    with pytest.raises(WireError, match=words) as caught:
        await learner.contribute(bad, payload)
    assert caught.value.reason is reason
    assert backend.calls["contribute"] == 0
    assert (await send(other, 1, index=1)).outcome == pb.RECEIVED
    assert (await send(learner)).outcome == pb.RECEIVED


@pytest.mark.parametrize(
    ("payload", "reason"),
    [(payload_of(0)[:-1], Reason.TRUNCATED), (payload_of(0) + b"x", Reason.WRONG_SIZE), (b"", Reason.TRUNCATED)],
    ids=["a byte short", "a byte over", "no byte at all"],
)
async def test_a_body_of_another_length_than_declared_is_refused(
    exchange: Exchange, backend: FakeBackend, payload: bytes, reason: Reason
) -> None:
    learner = await joined(exchange)
    with pytest.raises(Refused) as caught:
        await learner.contribute(header(payload_of(0)), payload)
    assert caught.value.reason is reason
    assert not backend.bodies


async def test_deltas_are_pulled_in_the_order_they_are_applied(exchange: Exchange) -> None:
    learner = await joined(exchange)
    items = await pulled(learner, pb.PullRequest(fragment=1, have_version=2, want_version=5))
    assert items == [delta(1, version) for version in (3, 4, 5)]


async def test_an_anchor_is_pulled_raw_and_belongs_to_the_caller(exchange: Exchange) -> None:
    learner = await joined(exchange)
    (item,) = await pulled(learner, pb.PullRequest(fragment=0, raw=True))
    assert item == delta(0, 5, raw=True)
    assert isinstance(item.payload, bytearray)


async def test_who_has_everything_pulls_nothing(exchange: Exchange) -> None:
    learner = await joined(exchange)
    assert await pulled(learner, pb.PullRequest(fragment=0, have_version=5, want_version=5)) == []


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (pb.PullRequest(fragment=9, raw=True), Reason.UNKNOWN_FRAGMENT),
        (pb.PullRequest(fragment=0, have_version=1, want_version=5), Reason.UNKNOWN_VERSION),
        (pb.PullRequest(fragment=0, have_version=5, want_version=6), Reason.UNKNOWN_VERSION),
    ],
    ids=["fragment", "no longer retained", "not yet published"],
)
async def test_a_pull_of_what_there_is_not_is_refused_by_name(
    exchange: Exchange, request_: pb.PullRequest, reason: Reason
) -> None:
    learner = await joined(exchange)
    with pytest.raises(Refused) as caught:
        await pulled(learner, request_)
    assert caught.value.reason is reason


async def test_turns_begin_with_the_phase_and_reach_every_subscriber_in_order(
    exchange: Exchange, backend: FakeBackend
) -> None:
    learners = [await joined(exchange, index) for index in (0, 1)]
    async with aclosing(learners[0].turns()) as first, aclosing(learners[1].turns()) as second:
        for notices in (first, second):
            assert (await anext(notices)).phase == pb.RUNNING
        assert [identity.index for identity, _ in backend.subscribers] == [0, 1]
        told = [pb.Notice(turn=pb.Turn(number=number, fragment=number % 2)) for number in range(5)]
        for notice in told:
            backend.tell(notice)
        for notices in (first, second):
            assert [await anext(notices) for _ in told] == told


async def test_an_ended_stream_of_turns_says_subscribe_again(exchange: Exchange, backend: FakeBackend) -> None:
    learner = await joined(exchange)
    async with aclosing(learner.turns()) as notices:
        await anext(notices)
        backend.tell(None)
        with pytest.raises(SynchronizerUnavailable):
            await anext(notices)
    assert (await first_notice(learner)).phase == pb.RUNNING


async def test_a_subscriber_that_stops_listening_is_forgotten(exchange: Exchange, backend: FakeBackend) -> None:
    learner = await joined(exchange)
    await first_notice(learner)
    async with asyncio.timeout(10):
        while backend.subscribers:
            await asyncio.sleep(0.01)


async def test_leave_brings_reason_and_totals(exchange: Exchange, backend: FakeBackend) -> None:
    learner = await joined(exchange)
    request = pb.LeaveRequest(reason="complete", totals=pb.HeartbeatRequest(step=9))
    await learner.leave(request)
    assert backend.left == [request]


async def test_a_busy_synchronizer_is_unavailable_not_a_refusal(exchange: Exchange, backend: FakeBackend) -> None:
    learner = await joined(exchange)
    backend.failures["heartbeat"] = [SynchronizerUnavailable("snapshot under way")]
    with pytest.raises(SynchronizerUnavailable, match=r"^snapshot under way$"):
        await learner.heartbeat(pb.HeartbeatRequest())


async def test_a_refusal_is_one_line_whatever_the_backend_wrote(exchange: Exchange, backend: FakeBackend) -> None:
    backend.failures["join"] = [Refused(Reason.JOB_ENDED, "the job\n  is over: ünïcode, 100 %")]
    with pytest.raises(Refused, match=r"^the job is over: ünïcode, 100 %$") as caught:
        await exchange.learner().join(join_request())
    assert caught.value.reason is Reason.JOB_ENDED


async def test_a_cancelled_call_is_cancelled_at_the_backend_and_spoils_nothing(
    exchange: Exchange, backend: FakeBackend
) -> None:
    learner = await joined(exchange)
    backend.hold = asyncio.Event()
    call = asyncio.create_task(learner.heartbeat(pb.HeartbeatRequest()))
    async with asyncio.timeout(10):
        while not backend.waiting:
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        while backend.waiting:
            await asyncio.sleep(0.01)
    backend.hold = None
    assert (await learner.heartbeat(pb.HeartbeatRequest())).phase == pb.RUNNING

"""Bodies that lie, stop in the middle or do not end: what they cost the Synchronizer and everybody else."""

import asyncio
import gc
import logging
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from diloco_api.tokens import make_token
from diloco_trainer.wire.client import SynchronizerClient
from diloco_trainer.wire.errors import Reason, Refused, SynchronizerUnavailable, Unauthenticated, refusal_in
from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from diloco_trainer.wire.gen import synchronizer_pb2_grpc as rpc
from diloco_trainer.wire.protocol import CHUNK_BYTES, MESSAGE_BYTES
from fakes.exchanges import GrpcExchange
from fakes.synchronizer_backend import JOB, KEY, MIB, SIZES, FakeBackend, header, join_request, payload_of
from fakes.tcp_proxy import TcpProxy

METADATA = (("authorization", f"Bearer {make_token(KEY, JOB, 0, 0)}"),)


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
async def exchange(backend: FakeBackend, tmp_path: Path) -> AsyncIterator[GrpcExchange]:
    made = await GrpcExchange.start(backend, tmp_path)
    yield made
    await made.close()


@pytest.fixture
async def other(exchange: GrpcExchange) -> SynchronizerClient:
    """Another Learner, which must not notice."""
    learner = exchange.learner(1)
    await learner.join(join_request(1))
    return learner


@pytest.fixture
async def raw(exchange: GrpcExchange, backend: FakeBackend) -> AsyncIterator["rpc.SynchronizerAsyncStub"]:
    """A peer that speaks gRPC, but need not keep to the protocol."""
    backend.newest[0] = 0
    async with grpc.aio.insecure_channel(
        f"127.0.0.1:{exchange.server.port}", [("grpc.max_send_message_length", -1)]
    ) as channel:
        yield rpc.SynchronizerStub(channel)


async def goes_on(learner: SynchronizerClient) -> None:
    payload = payload_of(1, 9)
    assert (await learner.contribute(header(payload, index=1, fragment=1), payload)).outcome == pb.RECEIVED


def reason_of(error: grpc.aio.AioRpcError) -> str:
    refusal = refusal_in(error)
    assert refusal is not None
    return pb.Refusal.Reason.Name(refusal.reason)


@contextmanager
def peak_bytes() -> Iterator[list[int]]:
    gc.collect()
    tracemalloc.start()
    peak: list[int] = []
    try:
        yield peak
        peak.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


async def test_ten_gigabytes_declared_cost_less_than_one_chunk(
    exchange: GrpcExchange, other: SynchronizerClient, backend: FakeBackend
) -> None:
    learner = exchange.learner()
    await learner.join(join_request())
    bad = header(payload_of(1), fragment=1)
    bad.size_bytes = 10 * 1000**3
    payload = payload_of(1)
    with peak_bytes() as peak, pytest.raises(Refused, match="takes 5242880 bytes, not 10000000000"):
        await learner.contribute(bad, payload)
    # The sender's own chunks are in here too: both ends share this process.
    assert peak[0] < 3 * CHUNK_BYTES
    assert backend.calls["offer"] == 0
    await goes_on(other)


async def test_a_refused_or_known_body_is_never_sent(exchange: GrpcExchange, backend: FakeBackend) -> None:
    payload = payload_of(1)
    good, bad = header(payload, fragment=1), header(payload, fragment=1)
    bad.codec = "fp32"
    backend.bodies[0, 0, 1, 1] = payload
    async with TcpProxy(exchange.server.port) as proxy:
        exchange.point_to(proxy.port)
        learner = exchange.learner()
        await learner.join(join_request())
        for _ in range(20):
            with pytest.raises(Refused) as caught:
                await learner.contribute(bad, payload)
            assert caught.value.reason is Reason.WRONG_CODEC
            assert (await learner.contribute(good, payload)).outcome == pb.MERGED
        assert len(proxy.connections) == 2
        assert proxy.busiest().up_bytes < 40 * 1000
    assert backend.calls["contribute"] == 0


HEADER = pb.ContributionPart(header=header(payload_of(0)))
CHUNK = pb.ContributionPart(chunk=payload_of(0))


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([], "BAD_HEADER"),
        ([CHUNK], "BAD_HEADER"),
        ([pb.ContributionPart()], "BAD_HEADER"),
        ([HEADER, HEADER], "BAD_HEADER"),
        ([HEADER, pb.ContributionPart()], "BAD_HEADER"),
        ([HEADER, pb.ContributionPart(chunk=b"")], "WRONG_SIZE"),
        ([HEADER, CHUNK, CHUNK], "WRONG_SIZE"),
        ([HEADER], "TRUNCATED"),
    ],
    ids=["none", "chunk first", "unknown first", "two headers", "unknown part", "empty chunk", "too much", "no body"],
)
async def test_parts_out_of_order_are_refused(
    raw: "rpc.SynchronizerAsyncStub",
    other: SynchronizerClient,
    backend: FakeBackend,
    parts: list[pb.ContributionPart],
    reason: str,
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await raw.Contribute(iter(parts), metadata=METADATA)
    assert reason_of(caught.value) == reason
    assert not backend.bodies
    await goes_on(other)


async def test_a_message_larger_than_a_chunk_is_not_taken(
    raw: "rpc.SynchronizerAsyncStub", other: SynchronizerClient, backend: FakeBackend
) -> None:
    parts = iter([pb.ContributionPart(header=header(payload_of(1), fragment=1))])
    whole = pb.ContributionPart(chunk=payload_of(1))
    assert whole.ByteSize() > MESSAGE_BYTES
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await raw.Contribute(iter([*parts, whole]), metadata=METADATA)
    assert caught.value.code() in {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DATA_LOSS}
    assert not backend.bodies
    await goes_on(other)


async def test_a_sender_that_vanishes_in_the_middle_leaves_no_memory_behind(
    raw: "rpc.SynchronizerAsyncStub", other: SynchronizerClient, backend: FakeBackend
) -> None:
    with peak_bytes():
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(3):
            call = raw.Contribute(metadata=METADATA)
            await call.write(pb.ContributionPart(header=header(payload_of(1), fragment=1)))
            await call.write(pb.ContributionPart(chunk=bytes(MIB)))
            call.cancel()
        await goes_on(other)
        backend.bodies.clear()
        async with asyncio.timeout(10):
            while gc.collect() or tracemalloc.get_traced_memory()[0] - before > MIB:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("num_parts", [0, 1, 2], ids=["at once", "after the header", "in the middle"])
async def test_a_sender_that_stops_is_given_up(backend: FakeBackend, tmp_path: Path, num_parts: int) -> None:
    exchange = await GrpcExchange.start(backend, tmp_path, idle_seconds=0.2)
    backend.newest[0] = 0
    parts = [
        pb.ContributionPart(header=header(payload_of(1), fragment=1)),
        pb.ContributionPart(chunk=bytes(MIB)),
    ]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{exchange.server.port}") as channel:
        stub: rpc.SynchronizerAsyncStub = rpc.SynchronizerStub(channel)
        call = stub.Contribute(metadata=METADATA)
        for part in parts[:num_parts]:
            await call.write(part)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert reason_of(caught.value) == "BUSY"
    await exchange.close()


async def test_a_slow_sender_is_not_given_up_while_chunks_come(backend: FakeBackend, tmp_path: Path) -> None:
    exchange = await GrpcExchange.start(backend, tmp_path, idle_seconds=1.0)
    backend.newest[0] = 0
    payload = payload_of(1)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{exchange.server.port}") as channel:
        stub: rpc.SynchronizerAsyncStub = rpc.SynchronizerStub(channel)
        call = stub.Contribute(metadata=METADATA)
        await call.write(pb.ContributionPart(header=header(payload, fragment=1)))
        for start in range(0, len(payload), MIB):
            await asyncio.sleep(0.25)
            await call.write(pb.ContributionPart(chunk=payload[start : start + MIB]))
        await call.done_writing()
        assert (await call).settlement.outcome == pb.RECEIVED
    await exchange.close()


async def test_many_half_sent_bodies_of_one_fragment_hold_the_memory_of_one(
    raw: "rpc.SynchronizerAsyncStub", exchange: GrpcExchange, backend: FakeBackend
) -> None:
    calls = []
    first = pb.ContributionPart(header=header(payload_of(1), fragment=1))
    with peak_bytes() as peak:
        for _ in range(8):
            call = raw.Contribute(metadata=METADATA)
            await call.write(first)
            await call.write(pb.ContributionPart(chunk=b"x"))
            calls.append(call)
        for call in calls[:-1]:
            with pytest.raises(grpc.aio.AioRpcError):
                await call
    assert peak[0] < 3 * SIZES[1]
    payload = payload_of(1)
    learner = exchange.learner()
    assert (await learner.contribute(header(payload, fragment=1), payload)).outcome == pb.RECEIVED
    with pytest.raises(grpc.aio.AioRpcError):
        await calls[-1]
    assert backend.bodies == {(0, 0, 1, 1): payload}


@pytest.mark.parametrize(
    "metadata",
    [(), (("authorization", "Bearer "),), METADATA * 2, (("authorization", "Basic eHg6eXk="),)],
    ids=["none", "empty", "two", "another scheme"],
)
async def test_a_call_without_one_bearer_token_is_unauthenticated(
    raw: "rpc.SynchronizerAsyncStub", metadata: tuple[tuple[str, str], ...]
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await raw.Heartbeat(pb.HeartbeatRequest(), metadata=metadata)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert reason_of(caught.value) == "UNAUTHENTICATED"


async def test_no_token_is_ever_logged_or_quoted(exchange: GrpcExchange, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    good, bad = make_token(KEY, JOB, 0, 0), make_token(bytes(32), JOB, 0, 0)
    learner = exchange.learner(token=good)
    await learner.join(join_request())
    with pytest.raises(Unauthenticated) as caught:
        await exchange.learner(token=bad).join(join_request())
    await exchange.server.stop(0)
    with pytest.raises(SynchronizerUnavailable) as gone:
        await learner.heartbeat(pb.HeartbeatRequest())
    texts = caplog.text + str(caught.value) + str(gone.value) + repr(learner) + repr(caught.value.__cause__)
    for token in (good, bad):
        assert token not in texts
        assert token.rsplit(".", 1)[1] not in texts

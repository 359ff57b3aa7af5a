"""Two connections a Learner, and what becomes of calls when one of them blocks, breaks, or the Synchronizer moves."""

import asyncio
import random
import socket
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from diloco_api.timeouts import Timeouts
from diloco_api.tokens import make_token
from diloco_trainer.wire.client import SynchronizerClient
from diloco_trainer.wire.errors import Fenced, PortInUse, SynchronizerUnavailable
from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from diloco_trainer.wire.server import serve
from fakes.exchanges import GrpcExchange
from fakes.synchronizer_backend import JOB, KEY, FakeBackend, delta, header, join_request, payload_of
from fakes.tcp_proxy import TcpProxy


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
async def exchange(backend: FakeBackend, tmp_path: Path) -> AsyncIterator[GrpcExchange]:
    made = await GrpcExchange.start(backend, tmp_path)
    yield made
    await made.close()


@pytest.fixture
async def proxy(exchange: GrpcExchange) -> AsyncIterator[TcpProxy]:
    async with TcpProxy(exchange.server.port) as made:
        exchange.point_to(made.port)
        yield made


async def test_heartbeats_and_turns_pass_while_an_upload_is_blocked(
    exchange: GrpcExchange, proxy: TcpProxy, backend: FakeBackend
) -> None:
    learner = exchange.learner()
    await learner.join(join_request())
    payload = payload_of(1)
    upload = asyncio.create_task(learner.contribute(header(payload, fragment=1), payload))
    while len(proxy.connections) < 2 or not proxy.busiest().up_bytes > 10_000:
        await asyncio.sleep(0.001)
    blocked = proxy.busiest()
    blocked.freeze()
    async with aclosing(learner.turns()) as notices:
        await anext(notices)
        for number in range(3):
            await learner.heartbeat(pb.HeartbeatRequest())
            backend.tell(pb.Notice(turn=pb.Turn(number=number)))
            assert (await anext(notices)).turn.number == number
    assert not upload.done()
    blocked.flowing.set()
    assert (await upload).outcome == pb.RECEIVED


async def test_heartbeats_pass_while_a_pull_is_not_read(exchange: GrpcExchange, proxy: TcpProxy) -> None:
    learner = exchange.learner()
    await learner.join(join_request())
    request = pb.PullRequest(fragment=1, have_version=2, want_version=5)
    async with aclosing(learner.pull(request)) as items:
        assert (await anext(items)).version == 3
        for _ in range(3):
            await learner.heartbeat(pb.HeartbeatRequest())
        assert len(proxy.connections) == 2
        assert [item.version async for item in items] == [4, 5]


async def test_a_restarted_synchronizer_is_found_again_within_two_seconds(
    exchange: GrpcExchange, backend: FakeBackend, tmp_path: Path
) -> None:
    learner = exchange.learner()
    await learner.join(join_request())
    port = exchange.server.port
    await exchange.server.stop(0)
    payload = payload_of(1)
    calls = [
        asyncio.create_task(learner.lease(pb.LeaseRequest(want_sequences=1))),
        asyncio.create_task(learner.contribute(header(payload, fragment=1), payload)),
    ]
    await asyncio.sleep(1)
    again = await GrpcExchange.start(backend, tmp_path, port=port)
    back_at = time.monotonic()
    await asyncio.gather(*calls)
    assert time.monotonic() - back_at < 3 * 2
    await learner.heartbeat(pb.HeartbeatRequest())
    await again.close()


async def test_addresses_are_read_again_before_a_new_connection(
    exchange: GrpcExchange, backend: FakeBackend, tmp_path: Path
) -> None:
    learner = exchange.learner()
    await learner.join(join_request())
    (tmp_path / "elsewhere").mkdir()
    moved = await GrpcExchange.start(backend, tmp_path / "elsewhere")
    await exchange.server.stop(0)
    exchange.point_to(moved.server.port)
    await learner.lease(pb.LeaseRequest())
    await moved.close()


async def test_several_addresses_are_tried_in_turn(exchange: GrpcExchange) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = unused.getsockname()[1]
        exchange.point_to(nobody, nobody, exchange.server.port)
        learner = exchange.learner()
        await learner.join(join_request())
        payload = payload_of(0)
        assert (await learner.contribute(header(payload), payload)).outcome == pb.RECEIVED


async def test_addresses_that_come_late_are_waited_for(exchange: GrpcExchange) -> None:
    exchange.addresses.unlink()
    join = asyncio.create_task(exchange.learner().join(join_request()))
    await asyncio.sleep(0.05)
    exchange.addresses.write_text("")
    await asyncio.sleep(0.05)
    exchange.point_to(exchange.server.port)
    await join


async def test_a_link_that_swallows_everything_is_given_up_and_replaced(
    exchange: GrpcExchange, proxy: TcpProxy
) -> None:
    learner = exchange.learner(heartbeat_timeout_seconds=1.0)
    await learner.join(join_request())
    async with aclosing(learner.turns()) as notices:
        await anext(notices)
        proxy.connections[0].freeze()
        with pytest.raises(SynchronizerUnavailable):
            await learner.heartbeat(pb.HeartbeatRequest())
        with pytest.raises(SynchronizerUnavailable):
            await anext(notices)
    await learner.heartbeat(pb.HeartbeatRequest())
    assert len(proxy.connections) == 2


async def test_an_upload_that_stands_still_is_sent_anew_on_another_connection(
    exchange: GrpcExchange, proxy: TcpProxy, backend: FakeBackend
) -> None:
    learner = exchange.learner(transfer_idle_seconds=0.5)
    await learner.join(join_request())
    payload = payload_of(1)
    upload = asyncio.create_task(learner.contribute(header(payload, fragment=1), payload))
    while len(proxy.connections) < 2:
        await asyncio.sleep(0.001)
    proxy.connections[1].freeze()
    assert (await upload).outcome == pb.RECEIVED
    assert backend.bodies == {(0, 0, 1, 1): payload}


async def test_a_pull_goes_on_behind_the_last_whole_item(
    exchange: GrpcExchange, proxy: TcpProxy, backend: FakeBackend
) -> None:
    learner = exchange.learner()
    await learner.join(join_request())
    versions = []
    async for item in learner.pull(pb.PullRequest(fragment=1, have_version=2, want_version=5)):
        versions.append(item.version)
        assert item == delta(1, item.version)
        if item.version == 3:
            proxy.connections[1].cut()
    assert versions == [3, 4, 5]
    assert backend.calls["pull"] == 2


async def test_a_broken_call_is_repeated_and_a_refusal_is_not(exchange: GrpcExchange, backend: FakeBackend) -> None:
    learner = exchange.learner()
    backend.failures["join"] = [SynchronizerUnavailable("log is full")] * 2 + [Fenced("newer")]
    with pytest.raises(Fenced):
        await learner.join(join_request())
    assert backend.calls["join"] == 3


async def test_a_heartbeat_is_never_repeated(exchange: GrpcExchange, backend: FakeBackend) -> None:
    learner = exchange.learner()
    await learner.join(join_request())
    backend.failures["heartbeat"] = [SynchronizerUnavailable("log is full")]
    with pytest.raises(SynchronizerUnavailable):
        await learner.heartbeat(pb.HeartbeatRequest())
    assert backend.calls["heartbeat"] == 1


async def test_repetition_ends_when_its_time_is_up(exchange: GrpcExchange) -> None:
    await exchange.server.stop(0)
    now, naps = 100.0, list[float]()

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        naps.append(seconds)

    learner = SynchronizerClient(
        exchange.addresses,
        make_token(KEY, JOB, 0, 0),
        rng=random.Random(0),
        timeouts=Timeouts(call_retry_seconds=10),
        clock=lambda: now,
        sleep=sleep,
    )
    with pytest.raises(SynchronizerUnavailable):
        await learner.join(join_request())
    assert 7 < sum(naps) <= 10
    await learner.close()


async def test_closing_ends_calls_under_way_and_says_so(exchange: GrpcExchange, backend: FakeBackend) -> None:
    learner = exchange.learner()
    await learner.join(join_request())
    backend.hold = asyncio.Event()
    call = asyncio.create_task(learner.heartbeat(pb.HeartbeatRequest()))
    async with aclosing(learner.turns()) as notices:
        await anext(notices)
        while not backend.waiting:
            await asyncio.sleep(0.001)
        await learner.close()
        with pytest.raises(SynchronizerUnavailable):
            await anext(notices)
    with pytest.raises(SynchronizerUnavailable):
        await call


async def test_closing_ends_repetition(exchange: GrpcExchange) -> None:
    await exchange.server.stop(0)
    learner = exchange.learner(call_retry_seconds=1000)
    join = asyncio.create_task(learner.join(join_request()))
    await asyncio.sleep(0.05)
    await learner.close()
    async with asyncio.timeout(10):
        with pytest.raises(SynchronizerUnavailable):
            await join


async def test_a_deadline_of_the_caller_is_a_timeout_of_the_caller(
    exchange: GrpcExchange, backend: FakeBackend
) -> None:
    learner = exchange.learner()
    await learner.join(join_request())
    backend.hold = asyncio.Event()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await learner.heartbeat(pb.HeartbeatRequest())


async def test_a_taken_port_is_one_clear_error(exchange: GrpcExchange, backend: FakeBackend) -> None:
    port = exchange.server.port
    with pytest.raises(PortInUse, match=rf"^synchronizer port 127\.0\.0\.1:{port}: Address already in use$"):
        await serve(backend, host="127.0.0.1", port=port, key=KEY, job_uid=JOB)


async def test_without_tls_nothing_leaves_this_machine(exchange: GrpcExchange, backend: FakeBackend) -> None:
    with pytest.raises(ValueError, match=r"0\.0\.0\.0: without TLS"):
        await serve(backend, host="0.0.0.0", port=0, key=KEY, job_uid=JOB)
    exchange.addresses.write_text("192.0.2.1:29400\n")
    with pytest.raises(SynchronizerUnavailable, match=r"192\.0\.2\.1:29400 is not on this machine, which needs TLS"):
        await exchange.learner().heartbeat(pb.HeartbeatRequest())

"""Streams of notices: those that do not keep up, and those whose reader vanishes."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from diloco_api.tokens import Identity
from diloco_trainer.synchronizer.notices import LIMIT, Subscription
from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from fakes.sync_jobs import UID, Bench, decoupled, run_config


async def test_a_stream_that_does_not_keep_up_is_ended_once_and_grows_no_more() -> None:
    subscription = Subscription()
    for number in range(LIMIT + 100):
        subscription.push(pb.Notice(turn=pb.Turn(number=number)))
    await asyncio.sleep(0)
    assert subscription._queue.qsize() == LIMIT + 1
    numbers = [notice.turn.number async for notice in subscription.notices()]
    assert numbers == list(range(LIMIT))


async def test_a_stream_that_was_ended_takes_nothing_more() -> None:
    subscription = Subscription()
    for notice in (pb.Notice(phase=pb.RUNNING), None, pb.Notice(phase=pb.CLOSING), None):
        subscription.push(notice)
    await asyncio.sleep(0)
    assert [notice.phase async for notice in subscription.notices()] == [pb.RUNNING]
    assert subscription._queue.empty()


async def test_a_reader_that_vanishes_while_it_subscribes_leaves_no_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(run_config(decoupled()), tmp_path / "state")
    await bench.learner(0).join()
    backend, streams = bench.synchronizer.backend, bench.engine._core.notices._streams
    monkeypatch.setattr(bench.engine.desk, "subscribe", _unanswered(bench.engine.desk.subscribe))
    notices = backend.turns(Identity(UID, 0, 1))
    reading = asyncio.ensure_future(anext(notices))
    await asyncio.sleep(0)
    assert list(streams) == [(0, 1)]
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert not streams


def _unanswered(subscribe: Callable[..., None]) -> Callable[..., None]:
    """The engine has subscribed it, its answer is still on the way."""

    class Lost:
        def ok(self, value: None) -> None:
            pass

    return lambda who, subscription, reply: subscribe(who, subscription, Lost())

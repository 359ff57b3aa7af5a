"""Open Turns streams: who gets which notice. A stream that does not keep up is ended, its Learner subscribes again.

One stream for each incarnation; a newer one replaces it. Notices are not kept for those who are not listening: open
contributions are sent again after a broken stream, and the engine tells a new stream the open turns.
"""

import asyncio
from collections.abc import AsyncGenerator

from diloco_trainer.wire.gen import synchronizer_pb2 as pb

Who = tuple[int, int]
LIMIT = 4096
"""Notices one stream may be behind."""


class Subscription:
    """One stream: filled by the engine's thread, read by an asyncio loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[pb.Notice | None] = asyncio.Queue()
        self._ended = False

    def push(self, notice: pb.Notice | None) -> None:
        """Add a notice, or end the stream with None; afterwards nothing is added. Callable from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._put, notice)

    def _put(self, notice: pb.Notice | None) -> None:
        if self._ended:
            return
        if self._queue.qsize() >= LIMIT:
            notice = None
        self._ended = notice is None
        self._queue.put_nowait(notice)

    async def notices(self) -> AsyncGenerator[pb.Notice, None]:
        """Notices until the stream is ended."""
        while (notice := await self._queue.get()) is not None:
            yield notice


class Notices:
    """All open streams; belongs to the engine's thread."""

    def __init__(self) -> None:
        self._streams: dict[Who, Subscription] = {}

    def subscribe(self, who: Who, subscription: Subscription) -> None:
        """Open a stream; an older one of the same incarnation ends."""
        self.end(who)
        self._streams[who] = subscription

    def unsubscribe(self, who: Who, subscription: Subscription) -> None:
        """The reader has gone; a newer stream of the same incarnation stays."""
        if self._streams.get(who) is subscription:
            del self._streams[who]

    def end(self, who: Who) -> None:
        """End an incarnation's stream if it has one."""
        if (stream := self._streams.pop(who, None)) is not None:
            stream.push(None)

    def tell(self, who: Who, notice: pb.Notice) -> None:
        if (stream := self._streams.get(who)) is not None:
            stream.push(notice)

    def tell_all(self, notice: pb.Notice) -> None:
        for stream in self._streams.values():
            stream.push(notice)

    def end_all(self) -> None:
        for who in list(self._streams):
            self.end(who)

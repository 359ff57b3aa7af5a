"""A TCP relay that can stop passing bytes or break off, one connection at a time: the faults of a real link."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field


@dataclass(eq=False)
class Connection:
    """One relayed connection. While `flowing` is unset nothing passes and senders are blocked."""

    writers: list[asyncio.StreamWriter]
    flowing: asyncio.Event = field(default_factory=asyncio.Event)
    up_bytes: int = 0  # from the client
    down_bytes: int = 0

    def freeze(self) -> None:
        self.flowing.clear()

    def cut(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class TcpProxy:
    """`async with TcpProxy(port) as proxy:` relays `proxy.port` to `port` on loopback."""

    def __init__(self, target_port: int, seen: bytearray | None = None) -> None:
        """All bytes of both directions are added to `seen`."""
        self._target_port = target_port
        self._seen = seen
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections: list[Connection] = []
        self.frozen = False
        """New connections are accepted and nothing passes on them."""

    async def __aenter__(self) -> "TcpProxy":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self.connections:
            connection.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def busiest(self) -> Connection:
        return max(self.connections, key=lambda connection: connection.up_bytes + connection.down_bytes)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            return
        connection = Connection([writer, far_writer])
        if not self.frozen:
            connection.flowing.set()
        self.connections.append(connection)
        for source, sink, up in ((reader, far_writer, True), (far_reader, writer, False)):
            task = asyncio.create_task(_relay(connection, source, sink, up=up, seen=self._seen))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


async def _relay(
    connection: Connection,
    source: asyncio.StreamReader,
    sink: asyncio.StreamWriter,
    *,
    up: bool,
    seen: bytearray | None,
) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            await connection.flowing.wait()
            if up:
                connection.up_bytes += len(data)
            else:
                connection.down_bytes += len(data)
            if seen is not None:
                seen += data
            sink.write(data)
            await sink.drain()
    connection.cut()

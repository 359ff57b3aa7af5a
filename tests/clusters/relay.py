"""A relay before a site's API server: another way to it, on which answers can be late, missing or refused.

It listens in `wan`, so that sites reach it at 192.0.2.1; API servers' certificates name that address too. Several
relays before one API server stand for several sites. What a link's rate does is shaped elsewhere (shape.py).
"""

import asyncio
import contextlib
import threading
from pathlib import Path

from clusters import pki
from clusters.layout import API_PORT, WAN_ADDRESS, SiteLayout

_CHUNK = 1 << 16


class Relay:
    """Forwards TCP connections to the site's API server while the context is entered (by a process in `wan`)."""

    def __init__(self, site: SiteLayout, port: int) -> None:
        self._site = site
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._connections: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.delay_seconds = 0.0
        """One way, in each direction."""
        self.refuse = False
        """New connections end at once."""

    @property
    def server(self) -> str:
        return f"https://{WAN_ADDRESS}:{self._port}"

    def write_kubeconfig(self, path: Path) -> None:
        """The administrator's, by way of this relay."""
        pki.write_kubeconfig(self._site, "admin", path, self.server)

    def hold(self) -> None:
        """Nothing passes any more, connections stay open."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def release(self) -> None:
        self._loop.call_soon_threadsafe(self._open.set)

    def drop(self) -> None:
        """End all connections."""
        asyncio.run_coroutine_threadsafe(self._end_connections(), self._loop).result(10)

    def __enter__(self) -> "Relay":
        self._thread.start()
        start = asyncio.start_server(self._serve, WAN_ADDRESS, self._port)
        self._server = asyncio.run_coroutine_threadsafe(start, self._loop).result(10)
        self.release()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self.drop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _end_connections(self) -> None:
        ending = list(self._connections)
        for connection in ending:
            connection.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if not self.refuse:
                await self._forward(reader, writer)
        except (OSError, asyncio.CancelledError):  # one of the ends went away, or the test ended the connection
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._site.address, API_PORT)
        try:
            await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
        finally:
            far_writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Each chunk goes out when its delay is over; later ones are read meanwhile."""
        pending: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=64)
        sender = asyncio.create_task(self._send(pending, writer))
        try:
            while chunk := await reader.read(_CHUNK):
                await pending.put((self._loop.time() + self.delay_seconds, chunk))
            await pending.put((self._loop.time() + self.delay_seconds, b""))
            await sender
        finally:
            sender.cancel()

    async def _send(self, pending: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        while True:
            due, chunk = await pending.get()
            await asyncio.sleep(due - self._loop.time())
            await self._open.wait()
            if not chunk:
                with contextlib.suppress(OSError):
                    writer.write_eof() if writer.can_write_eof() else writer.close()
                return
            writer.write(chunk)
            await writer.drain()

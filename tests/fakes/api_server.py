"""An HTTPS server on loopback that answers what a test told it to, and remembers what it was asked.

It is no Kubernetes: real API servers are in tests/clusters. It is for what a real one does not do on demand.
"""

import asyncio
import json
import socket
import ssl
import struct
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from diloco_operator.sites.kubeconfig import ClusterCredentials
from fakes.authority import Authority

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
TOKEN = "a-token-nobody-may-see"


@dataclass(frozen=True)
class Asked:
    """One request as it arrived."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any
    client: str
    """Common name of the client's certificate, empty without one."""


@dataclass
class ApiServer:
    """`async with ApiServer() as server:`. Answers by (method, path) or path, else 404."""

    authority: Authority = field(default_factory=lambda: Authority("ours"))
    hosts: tuple[str, ...] = ("127.0.0.1", "localhost")
    clients: Authority | None = None
    """Signs the certificates every client must have."""
    expired: bool = False
    answers: dict[tuple[str, str] | str, Answer] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    port: int = 0

    async def __aenter__(self) -> "ApiServer":
        self._runner = web.AppRunner(_app(self._handle), shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self._context(), reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def left(self) -> None:
        """Wait until no client is connected, so that the loop is not closed under a connection."""
        assert self._runner.server is not None
        async with asyncio.timeout(10):
            while self._runner.server.connections:
                await asyncio.sleep(0.005)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def credentials(self, url: str = "", **who: str) -> ClusterCredentials:
        return ClusterCredentials(url or self.url, self.authority.pem, **(who or {"token": TOKEN}))

    def paths(self) -> list[str]:
        return [asked.path for asked in self.asked]

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        certificate, key = self.authority.server(*self.hosts, expired=self.expired)
        with tempfile.TemporaryDirectory() as folder:
            (file := Path(folder, "server.pem")).write_text(certificate + key)
            context.load_cert_chain(file)
        if self.clients is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata=self.clients.pem)
        return context

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        peer = request.get_extra_info("peercert") or {}
        client = "".join(value for names in peer.get("subject", ()) for key, value in names if key == "commonName")
        query, headers = dict(request.query), dict(request.headers)
        self.asked.append(
            Asked(request.method, request.path, query, headers, json.loads(text) if text else None, client)
        )
        answer = self.answers.get((request.method, request.path)) or self.answers.get(request.path)
        if answer is None:
            return status(404, "NotFound", f"{request.path} not found")
        return await answer(request)


def _app(handler: Answer) -> web.Application:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    return app


def status(code: int, reason: str, message: str, headers: Mapping[str, str] | None = None, **more: Any) -> web.Response:
    """A Status object, as API servers send it."""
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
    return web.json_response(body | {"message": message} | more, status=code, headers=headers)


def always(code: int, reason: str = "", message: str = "", headers: Mapping[str, str] | None = None) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        return status(code, reason, message, headers)

    return answer


def value(found: Any) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response(found)

    return answer


async def reset(request: web.Request) -> None:
    """Break the connection off with a RST."""
    assert request.transport is not None
    sock = request.transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    request.transport.abort()
    await asyncio.sleep(0)


def item(name: str, job: str, version: str = "1", **more: Any) -> dict[str, Any]:
    """The metadata of an object of a job."""
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": version, "labels": {"diloco.dev/job-uid": job}}
    return {"kind": "PartialObjectMetadata", "metadata": metadata | more}


def listed(*items: dict[str, Any], version: str = "1", token: str = "") -> dict[str, Any]:
    return {"kind": "List", "metadata": {"resourceVersion": version, "continue": token}, "items": list(items)}


class Collection:
    """List and watch of one path: what a test puts in is told to those who watch."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.version = "1"
        self.watches: list[asyncio.Queue[bytes | str]] = []
        """One for each open watch: bytes to send, or a word: `end`, `reset`."""
        self.refusals: list[web.Response] = []
        """Answers to the next calls, instead of lists and watches."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self.refusals:
            return self.refusals.pop(0)
        if "watch" not in request.query:
            return web.json_response(listed(*self.items, version=self.version))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        queue: asyncio.Queue[bytes | str] = asyncio.Queue()
        self.watches.append(queue)
        try:
            while isinstance(part := await queue.get(), bytes):
                await response.write(part)
            if part == "reset":
                await reset(request)
        finally:
            self.watches.remove(queue)
        return response

    async def watched(self, count: int = 1) -> None:
        """Wait until so many watches are open."""
        async with asyncio.timeout(10):
            while len(self.watches) != count:
                await asyncio.sleep(0.005)

    def tell(self, kind: str, found: dict[str, Any]) -> None:
        for queue in self.watches:
            queue.put_nowait(event(kind, found))

    def send(self, part: bytes | str) -> None:
        for queue in self.watches:
            queue.put_nowait(part)


def event(kind: str, found: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


def bookmark(version: str) -> dict[str, Any]:
    return {"kind": "PartialObjectMetadata", "metadata": {"resourceVersion": version}}

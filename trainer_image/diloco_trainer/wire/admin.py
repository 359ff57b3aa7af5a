"""HTTP beside the wire: `Admin` (progress, drain; bearer tokens with roles) and, apart, plain metrics and health.

`Admin` is for operator and command line, which import no trainer code: its bodies are models of `diloco_api`. The
metrics app serves Learners too. What progress is and what draining does is the backend's.
"""

import os
import ssl
from collections.abc import Awaitable, Callable
from typing import Protocol

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from diloco_api.progress import Progress
from diloco_api.tokens import AdminRole, TokenError, read_admin_token
from diloco_trainer.wire.errors import PortInUse
from diloco_trainer.wire.protocol import BEARER, is_loopback, listening_socket
from diloco_trainer.wire.tls import Credentials

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AdminBackend(Protocol):
    """What the Synchronizer's engine offers to `Admin`."""

    async def progress(self) -> Progress: ...

    async def drain(self) -> None:
        """Stop the job after a closing round of every fragment; a wish of this process only, so that
        who wants it says so again after a restart. Idempotent."""
        ...


def admin_app(backend: AdminBackend, *, key: bytes, job_uid: str) -> web.Application:
    """`GET /progress` (operator, reader) and `POST /drain` (operator)."""

    async def progress(_: web.Request) -> web.Response:
        body = (await backend.progress()).model_dump_json()
        return web.Response(text=body, content_type="application/json", headers={"Cache-Control": "no-store"})

    async def drain(_: web.Request) -> web.Response:
        await backend.drain()
        return web.Response(status=202)

    def allow(handler: _Handler, *roles: AdminRole) -> _Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            _authorize(request, key, job_uid, roles)
            return await handler(request)

        return guarded

    app = web.Application()
    app.router.add_get("/progress", allow(progress, AdminRole.OPERATOR, AdminRole.READER))
    app.router.add_post("/drain", allow(drain, AdminRole.OPERATOR))
    return app


def metrics_app(registry: CollectorRegistry, problem: Callable[[], str | None]) -> web.Application:
    """`GET /metrics` in Prometheus' text format, `GET /healthz`: 200, or 503 with the present `problem`."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthz(_: web.Request) -> web.Response:
        text = problem()
        return web.Response(status=503 if text else 200, text=(text or "ok") + "\n")

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/healthz", healthz)
    return app


class RunningHttp:
    """An app that is being served; `port` is the one bound."""

    def __init__(self, runner: web.AppRunner, port: int) -> None:
        self._runner = runner
        self.port = port

    async def stop(self) -> None:
        await self._runner.cleanup()


async def serve_http(
    app: web.Application, *, name: str, host: str, port: int, ssl_context: ssl.SSLContext | None = None
) -> RunningHttp:
    """Serve `app` on `host:port` (0: any free port; `::`: IPv4 too); raises PortInUse, naming the port as `name`."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.SockSite(runner, listening_socket(host, port), ssl_context=ssl_context).start()
    except OSError as error:
        await runner.cleanup()
        why = os.strerror(error.errno) if error.errno else str(error)
        raise PortInUse(f"{name} {host}:{port}: {why}") from error
    return RunningHttp(runner, int(runner.addresses[0][1]))


async def serve_admin(
    backend: AdminBackend,
    *,
    host: str,
    port: int,
    key: bytes,
    job_uid: str,
    tls: Credentials | None = None,
) -> RunningHttp:
    """Serve `Admin`, over HTTPS with `tls`; without it on a loopback address only. Raises OSError as `Credentials`."""
    if tls is None and not is_loopback(host):
        raise ValueError(f"{host}: without TLS the Admin endpoint binds loopback addresses only")
    app = admin_app(backend, key=key, job_uid=job_uid)
    context = tls.admin_context() if tls is not None else None
    return await serve_http(app, name="admin port", host=host, port=port, ssl_context=context)


def _authorize(request: web.Request, key: bytes, job_uid: str, roles: tuple[AdminRole, ...]) -> None:
    header = request.headers.get("Authorization", "")
    try:
        if not header.startswith(BEARER):
            raise TokenError("no bearer token")
        identity = read_admin_token(key, header.removeprefix(BEARER))
    except TokenError as error:
        raise web.HTTPUnauthorized(text=f"{error}\n", headers={"WWW-Authenticate": "Bearer"}) from error
    if identity.job_uid != job_uid:
        raise web.HTTPForbidden(text=f"this is the Synchronizer of job {job_uid}\n")
    if identity.role not in roles:
        raise web.HTTPForbidden(text=f"{request.method} {request.path} is not for the role {identity.role.value}\n")

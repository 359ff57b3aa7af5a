"""The two ways to reach a backend, with one face: in memory, and over gRPC on loopback."""

import random
from pathlib import Path
from typing import Protocol

from diloco_api.timeouts import Timeouts
from diloco_api.tokens import make_token
from diloco_trainer.wire.client import SynchronizerClient
from diloco_trainer.wire.memory import MemorySynchronizer
from diloco_trainer.wire.server import RunningServer, serve
from diloco_trainer.wire.service import Synchronizer, SynchronizerBackend
from diloco_trainer.wire.tls import ClientTls
from fakes import certificates
from fakes.synchronizer_backend import JOB, KEY


class Exchange(Protocol):
    def learner(self, index: int = 0, incarnation: int = 0, *, token: str | None = None) -> Synchronizer:
        """How one incarnation reaches the backend."""
        ...

    async def close(self) -> None: ...


class MemoryExchange:
    def __init__(self, backend: SynchronizerBackend) -> None:
        self._backend = backend

    def learner(self, index: int = 0, incarnation: int = 0, *, token: str | None = None) -> Synchronizer:
        token = make_token(KEY, JOB, index, incarnation) if token is None else token
        return MemorySynchronizer(self._backend, key=KEY, job_uid=JOB, token=token)

    async def close(self) -> None:
        pass


class GrpcExchange:
    """Serves a backend on a free port; `addresses` is the file clients read.

    With TLS every incarnation has a certificate of its own, like every incarnation has its token.
    """

    def __init__(self, server: RunningServer, addresses: Path, *, tls: bool) -> None:
        self.server = server
        self.addresses = addresses
        self._tls = tls
        self._clients: list[SynchronizerClient] = []

    @classmethod
    async def start(
        cls, backend: SynchronizerBackend, folder: Path, *, port: int = 0, idle_seconds: float = 20.0, tls: bool = False
    ) -> "GrpcExchange":
        own = certificates.server(folder / "synchronizer") if tls else None
        server = await serve(
            backend, host="127.0.0.1", port=port, key=KEY, job_uid=JOB, tls=own, idle_seconds=idle_seconds
        )
        exchange = cls(server, folder / "addresses", tls=tls)
        exchange.point_to(server.port)
        return exchange

    def point_to(self, *ports: int) -> None:
        self.addresses.write_text("".join(f"127.0.0.1:{port}\n" for port in ports), encoding="utf-8")

    def learner(
        self,
        index: int = 0,
        incarnation: int = 0,
        *,
        token: str | None = None,
        tls: ClientTls | None = None,
        rpc_timeout_seconds: float = 20.0,
        heartbeat_timeout_seconds: float = 20.0,
        transfer_idle_seconds: float = 20.0,
        call_retry_seconds: float = 20.0,
    ) -> SynchronizerClient:
        if self._tls and tls is None:
            tls = certificates.learner(self.addresses.parent / f"learner-{len(self._clients)}", index, incarnation)
        client = SynchronizerClient(
            self.addresses,
            make_token(KEY, JOB, index, incarnation) if token is None else token,
            rng=random.Random(index),
            tls=tls,
            timeouts=Timeouts(
                rpc_timeout_seconds=rpc_timeout_seconds,
                heartbeat_timeout_seconds=heartbeat_timeout_seconds,
                transfer_idle_seconds=transfer_idle_seconds,
                call_retry_seconds=call_retry_seconds,
            ),
        )
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        await self.server.stop(0)

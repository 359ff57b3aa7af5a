"""Looking names up in threads of one site's own, so that a dead name server holds up no other site."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

from aiohttp.abc import AbstractResolver, ResolveResult


class OwnThreadResolver(AbstractResolver):
    """At most two look-ups at a time. A thread that hangs in one is left behind at close and ends by itself."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="resolve")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        def look_up() -> list[ResolveResult]:
            infos = socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
            return [_result(host, info) for info in infos]

        return await asyncio.get_running_loop().run_in_executor(self._threads, look_up)

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


_Info = tuple[
    socket.AddressFamily,
    socket.SocketKind,
    int,
    str,
    tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes],
]


def _result(host: str, info: _Info) -> ResolveResult:
    family, _, protocol, _, address = info
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return ResolveResult(
        hostname=host, host=str(address[0]), port=int(address[1]), family=family, proto=protocol, flags=flags
    )

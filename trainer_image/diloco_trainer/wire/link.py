"""One connection of a client, replaced when it fails: reads the address list before each and goes round it.

With TLS the certificates are read again as well. Knows nothing of the calls made over it.
"""

from pathlib import Path

import grpc

from diloco_trainer.wire.errors import SynchronizerUnavailable
from diloco_trainer.wire.gen import synchronizer_pb2_grpc as rpc
from diloco_trainer.wire.protocol import CHANNEL_OPTIONS, LOOPBACK_OPTIONS, is_loopback, split_address
from diloco_trainer.wire.tls import ClientTls


def read_addresses(path: Path) -> list[str]:
    """The addresses in the file, one `host:port` a line; SynchronizerUnavailable while there is none to be read."""
    try:
        addresses = path.read_text(encoding="utf-8").split()
        for address in addresses:
            split_address(address)
    except OSError as error:
        raise SynchronizerUnavailable(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SynchronizerUnavailable(f"{path}: {error}") from error
    if not addresses:
        raise SynchronizerUnavailable(f"{path}: holds no address yet")
    return addresses


class Link:
    """At most one channel at a time; two links never share a connection."""

    def __init__(self, addresses: Path, tls: ClientTls | None) -> None:
        self._addresses = addresses
        self._tls = tls
        self._failures = 0
        self._channel: grpc.aio.Channel | None = None
        self._stub: rpc.SynchronizerAsyncStub | None = None

    def stub(self) -> "rpc.SynchronizerAsyncStub":
        """What calls are made on; connects in the background when there is no connection."""
        if self._stub is None:
            addresses = read_addresses(self._addresses)
            self._channel = self._open(addresses[self._failures % len(addresses)])
            self._stub = rpc.SynchronizerStub(self._channel)
        return self._stub

    async def drop(self, stub: "rpc.SynchronizerAsyncStub") -> None:
        """`stub` has failed: other calls on it are cancelled, the next `stub()` goes to the next address.

        Does nothing when somebody else has dropped it before.
        """
        if stub is self._stub:
            self._failures += 1
            await self.close()

    async def close(self) -> None:
        channel, self._channel, self._stub = self._channel, None, None
        if channel is not None:
            await channel.close(None)

    def _open(self, address: str) -> grpc.aio.Channel:
        loopback = is_loopback(split_address(address)[0])
        options = CHANNEL_OPTIONS + (LOOPBACK_OPTIONS if loopback else [])
        if self._tls is not None:
            secure = [*options, *self._tls.channel_options()]
            return grpc.aio.secure_channel(address, self._tls.channel_credentials(), secure)
        if not loopback:
            raise SynchronizerUnavailable(f"{self._addresses}: {address} is not on this machine, which needs TLS")
        return grpc.aio.insecure_channel(address, options)

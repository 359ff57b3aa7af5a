"""The constants both ends of the protocol agree on, and the gRPC settings that follow from them.

`PROTOCOL_VERSION` changes when an old peer would misunderstand a new one; adding fields does not change it
(docs/wire-protocol.md). No behaviour here.
"""

import socket
from ipaddress import ip_address

from diloco_api import names

PROTOCOL_VERSION = names.PROTOCOL_VERSION

AUTHORIZATION_KEY = "authorization"
BEARER = "Bearer "
REFUSAL_KEY = "diloco-refusal-bin"
CONTINUE_KEY = "diloco-continue"
"""In the initial metadata of a Contribute: the header was accepted, send the payload. Bytes sent before that would race
with a refusal, and be in vain when the body is known already."""

CHUNK_BYTES = 2 * 1024 * 1024
"""Most payload bytes in one message."""
MESSAGE_BYTES = CHUNK_BYTES + 64 * 1024
"""Largest message either end takes: a chunk and its framing, or a header."""

KEEPALIVE_SECONDS = 60
"""A silent connection is probed this often, and given up when a probe is not answered within..."""
KEEPALIVE_TIMEOUT_SECONDS = 20

_BACKLOG = 128

_COMMON = [
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_SECONDS * 1000),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_SECONDS * 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]

CHANNEL_OPTIONS = [
    *_COMMON,
    ("grpc.use_local_subchannel_pool", 1),  # two channels to one address are two connections
    ("grpc.enable_retries", 0),  # retries are ours: they re-read the addresses
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.min_reconnect_backoff_ms", 5000),  # what one attempt to connect may take
]

LOOPBACK_OPTIONS = [("grpc.enable_http_proxy", 0)]
"""A proxy meant for the world must not swallow connections to this machine."""

SERVER_OPTIONS = [
    *_COMMON,
    ("grpc.so_reuseport", 0),  # else two Synchronizers could share a port without noticing
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_SECONDS * 500),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_SECONDS * 500),
]


def is_loopback(host: str) -> bool:
    """Whether `host` (a name or an address, IPv6 with or without brackets) is this machine talking to itself."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def every_address() -> str:
    """What to bind to be reached from other machines, by IPv4 and, where there is IPv6, by both."""
    return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"


def listening_socket(host: str, port: int) -> socket.socket:
    """A TCP socket that listens on an IP address and port; `::` takes IPv4 as well. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, dualstack_ipv6=host == "::", backlog=_BACKLOG)


def split_address(address: str) -> tuple[str, int]:
    """`host:port` or `[ipv6]:port` taken apart; raises ValueError naming the text."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise ValueError(f"{address!r} is not host:port")
    return host, int(port)

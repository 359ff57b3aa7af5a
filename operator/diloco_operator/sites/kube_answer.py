"""What an API server answers, read from the connection: bounded, and believed only where it makes sense.

Knows nothing of calls.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from aiohttp.http import HttpProcessingError

from diloco_operator.sites.kube_errors import from_status
from diloco_operator.sites.site import Manifest, SiteServerError


def drop(response: aiohttp.ClientResponse) -> None:
    """Give the connection back; one that is in mid-answer goes at once, as its peer may never answer a goodbye."""
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()
    response.close()


async def content(response: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    """All of it; SiteServerError when it is more than that."""
    found = bytearray()
    async for chunk in response.content.iter_any():
        found += chunk
        if len(found) > most_bytes:
            raise SiteServerError(f"an answer of more than {most_bytes // 1024**2} MiB")
    return bytes(found)


async def lines(response: aiohttp.ClientResponse, server: str) -> AsyncIterator[bytes]:
    """Whole lines; half of one at the end is not told."""
    while True:
        try:
            line = await response.content.readline()
        except (ValueError, HttpProcessingError) as error:
            raise SiteServerError(f"{server}: a line of a watch is too long") from error
        if not line.endswith(b"\n"):
            return
        yield line


def event(line: bytes) -> Manifest:
    """One line of a watch. SiteError when the server tells of one, or of nothing that makes sense."""
    told = decoded(line) or {}
    found, kind = told.get("object"), told.get("type")
    if not isinstance(found, dict):
        raise SiteServerError("a line of a watch is not an event")
    if kind == "ERROR":
        code = found.get("code")
        raise from_status(code if isinstance(code, int) else 500, found, {})
    metadata = found.get("metadata")
    if not isinstance(metadata, dict) or (kind != "BOOKMARK" and not isinstance(metadata.get("name"), str)):
        raise SiteServerError("a line of a watch is about no object")
    return told


def decoded(text: bytes) -> dict[str, Any] | None:
    """None when it is no JSON object."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None

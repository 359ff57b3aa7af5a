"""`Admin` of a Synchronizer: progress and drain, with the operator's bearer token, over HTTPS on clusters.

The certificate must be of the job's CA and for the job's name, whatever the address; else no token is sent. Every
failure is a `SynchronizerSilent` with a reason; what silence means is decided elsewhere. A Synchronizer that hangs
costs one short wait: after a time-out it is not asked again for a while.
"""

import ssl
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp
from pydantic import ValidationError

from diloco_api.progress import Progress
from diloco_api.tokens import AdminRole, make_admin_token

MAX_ANSWER_BYTES = 4 * 1024**2
"""Of progress, many times over. The image behind it may be a user's own: no answer may take the operator's memory."""


class SynchronizerSilent(Exception):
    """It could not be heard. `reason` is CamelCase."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class AdminEndpoint:
    """Where `Admin` of one job is. Without CA and name it is asked in the clear: on this machine only."""

    host: str
    port: int
    ca_bundle: str | None = None
    """PEM."""
    server_name: str | None = None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self.ca_bundle is None else 'https'}://{host}:{self.port}"


class SynchronizerClient:
    """Speaks to the Synchronizer of one job. An async context manager."""

    def __init__(self, timeout_seconds: float = 2.0, rest_seconds: float = 5.0) -> None:
        self._rest_seconds = rest_seconds
        self._silent_until = 0.0
        self._session: aiohttp.ClientSession | None = None
        self._trusting: tuple[str, ssl.SSLContext] | None = None
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds, connect=timeout_seconds)

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            timeout=self._timeout, auto_decompress=False, headers={"Accept-Encoding": "identity"}
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def progress(self, endpoint: AdminEndpoint, key: bytes, job_uid: str) -> Progress:
        """What the Synchronizer of this job says now. `key` is the key of the job's tokens."""
        if time.monotonic() < self._silent_until:
            raise SynchronizerSilent("Timeout", "it did not answer in time a moment ago")
        text = await self._call("GET", "progress", endpoint, key, job_uid)
        try:
            progress = Progress.model_validate_json(text, extra="ignore")  # it may be newer than this operator
        except ValidationError as error:
            raise SynchronizerSilent(
                "BadAnswer", f"its progress cannot be read: {error.error_count()} errors"
            ) from error
        if progress.job_uid != job_uid:
            raise SynchronizerSilent("ForeignJob", f"it serves the job of uid {progress.job_uid}")
        return progress

    async def drain(self, endpoint: AdminEndpoint, key: bytes, job_uid: str) -> None:
        """Ask for the end of the run; asking again does no harm."""
        await self._call("POST", "drain", endpoint, key, job_uid)

    async def _call(self, method: str, path: str, endpoint: AdminEndpoint, key: bytes, job_uid: str) -> str:
        if self._session is None:
            raise RuntimeError("SynchronizerClient is used outside of its `async with`")
        headers = {"Authorization": f"Bearer {make_admin_token(key, job_uid, AdminRole.OPERATOR)}"}
        url, name, trust = f"{endpoint.url}/{path}", endpoint.server_name, self._trust(endpoint)
        try:
            async with self._session.request(
                method, url, headers=headers, ssl=trust, server_hostname=name, allow_redirects=False
            ) as response:
                text = await _content(response)
                if response.status in (401, 403):
                    raise SynchronizerSilent("AuthFailure", f"it refuses the operator: {text.strip()[:200]}")
                if response.status >= 300:
                    raise SynchronizerSilent("BadAnswer", f"it answers {response.status}")
                return text
        except TimeoutError as error:
            self._silent_until = time.monotonic() + self._rest_seconds
            raise SynchronizerSilent("Timeout", "it does not answer in time") from error
        except aiohttp.ClientConnectorDNSError as error:
            raise SynchronizerSilent("DNSFailure", f"{endpoint.host} cannot be resolved") from error
        except (aiohttp.ClientSSLError, ssl.SSLError) as error:
            raise SynchronizerSilent("TLSFailure", f"its certificate is not accepted: {_why(error)}") from error
        except aiohttp.ClientError as error:
            raise SynchronizerSilent("TCPFailure", "it cannot be reached") from error

    def _trust(self, endpoint: AdminEndpoint) -> ssl.SSLContext | bool:
        """Made anew only when the job's CA has changed."""
        if endpoint.ca_bundle is None:
            return True
        if not endpoint.server_name:
            raise ValueError("a CA without the name its certificate is for verifies nothing")
        if self._trusting is None or self._trusting[0] != endpoint.ca_bundle:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_verify_locations(cadata=endpoint.ca_bundle)
            self._trusting = (endpoint.ca_bundle, context)
        return self._trusting[1]


async def _content(response: aiohttp.ClientResponse) -> str:
    found = bytearray()
    async for chunk in response.content.iter_any():
        found += chunk
        if len(found) > MAX_ANSWER_BYTES:
            raise SynchronizerSilent("BadAnswer", f"it answers with more than {MAX_ANSWER_BYTES // 1024**2} MiB")
    return found.decode("utf-8", "replace")


def _why(error: Exception) -> str:
    """OpenSSL's own words, where there are any."""
    cause = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    return str(getattr(cause, "verify_message", "") or getattr(cause, "reason", "") or type(cause).__name__)

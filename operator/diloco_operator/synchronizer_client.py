"""`Admin` of a Synchronizer over HTTP: progress and drain, with the operator's bearer token.

Every failure is a `SynchronizerSilent` with a reason; what silence means is decided elsewhere. A Synchronizer that
hangs costs one short wait: after a time-out it is not asked again for a while.
"""

import time
from types import TracebackType
from typing import Self

import aiohttp
from pydantic import ValidationError

from diloco_api.progress import Progress
from diloco_api.tokens import AdminRole, make_admin_token


class SynchronizerSilent(Exception):
    """It could not be heard. `reason` is CamelCase."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class SynchronizerClient:
    """Speaks to the Synchronizer of one job. An async context manager."""

    def __init__(self, host: str, timeout_seconds: float = 2.0, rest_seconds: float = 5.0) -> None:
        self._host = host
        self._rest_seconds = rest_seconds
        self._silent_until = 0.0
        self._session: aiohttp.ClientSession | None = None
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds, connect=timeout_seconds)

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=self._timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def progress(self, port: int, key: bytes, job_uid: str) -> Progress:
        """What the Synchronizer of this job says now."""
        if time.monotonic() < self._silent_until:
            raise SynchronizerSilent("Timeout", "it did not answer in time a moment ago")
        text = await self._call("GET", "progress", port, key, job_uid)
        try:
            progress = Progress.model_validate_json(text)
        except ValidationError as error:
            raise SynchronizerSilent(
                "BadAnswer", f"its progress cannot be read: {error.error_count()} errors"
            ) from error
        if progress.job_uid != job_uid:
            raise SynchronizerSilent("ForeignJob", f"it serves the job of uid {progress.job_uid}")
        return progress

    async def drain(self, port: int, key: bytes, job_uid: str) -> None:
        """Ask for the end of the run; asking again does no harm."""
        await self._call("POST", "drain", port, key, job_uid)

    async def _call(self, method: str, path: str, port: int, key: bytes, job_uid: str) -> str:
        if self._session is None:
            raise RuntimeError("SynchronizerClient is used outside of its `async with`")
        headers = {"Authorization": f"Bearer {make_admin_token(key, job_uid, AdminRole.OPERATOR)}"}
        url = f"http://{self._host}:{port}/{path}"
        try:
            async with self._session.request(method, url, headers=headers) as response:
                text = await response.text()
                if response.status in (401, 403):
                    raise SynchronizerSilent("AuthFailure", f"it refuses the operator: {text.strip()[:200]}")
                if response.status >= 300:
                    raise SynchronizerSilent("BadAnswer", f"it answers {response.status}")
                return text
        except TimeoutError as error:
            self._silent_until = time.monotonic() + self._rest_seconds
            raise SynchronizerSilent("Timeout", "it does not answer in time") from error
        except aiohttp.ClientError as error:
            raise SynchronizerSilent("TCPFailure", "it cannot be reached") from error

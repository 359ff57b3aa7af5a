"""Calls to one API server through the official client, with our own limits: time, size, redirects, proxies, trust.

Every call ends within its time limits. After failures in a row the server is not asked any more; one task looks whether
it is back, and calls fail at once until then. Knows nothing of jobs.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp.http import HttpProcessingError

from diloco_operator.sites.kube_answer import content, decoded, drop, event, lines
from diloco_operator.sites.kube_breaker import Breaker, Pauses
from diloco_operator.sites.kube_errors import SiteExpired, from_status, from_transport
from diloco_operator.sites.kube_transport import BEARER_TOKEN, api_client
from diloco_operator.sites.kubeconfig import ClusterCredentials
from diloco_operator.sites.site import Manifest, SiteBusy, SiteError, SiteServerError, SiteUnreachable

JSON = "application/json"
APPLY_PATCH = "application/apply-patch+yaml"
ANYTHING = "application/json, */*"
"""Text where that is what there is; refusals in JSON all the same."""
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""What to ask for: objects without their content."""

PAGE_SIZE = 200
"""Of full nodes or pods this is a few MB."""
MAX_LIST_RESTARTS = 2
"""A list of many pages begins anew when its token grew too old."""
MAX_LIST_ITEMS = 50_000
"""A list without end would take all memory, and no call of it too long."""
MAX_ANSWER_BYTES = 8 * 1024**2
"""Four lists of a site are read side by side, and the operator has half a GiB."""
MAX_REFUSAL_BYTES = 1024**2
Query = Sequence[tuple[str, str]]
OnCall = Callable[[str, int | None, float], None]
"""Method, status (None: no answer), seconds until it came."""
_SETTLE_SECONDS = 0.02
"""The event loop closes sockets of calls that were cancelled while they connected a few turns later."""


@dataclass(frozen=True)
class KubeLimits:
    """How long anything may take, in seconds."""

    connect_seconds: float = 5.0
    """Name, TCP and TLS."""
    read_seconds: float = 15.0
    """From the connection to the end of an answer."""
    list_seconds: float = 60.0
    """All pages of a list together; one that was begun within them is waited for."""
    watch_inactivity_seconds: float = 80.0
    """A watch tells nothing for this long: its connection is taken for dead. Bookmarks come about every 60 s,
    if at all."""
    watch_server_seconds: float = 300.0
    """A watch is begun anew after about this long."""
    watch_retry_seconds: float = 0.2
    """Before a watch that ended is begun again; longer and longer while that fails, with jitter."""
    longest_watch_retry_seconds: float = 30.0
    pauses: Pauses = field(default=Pauses())


class KubeClient:
    """One connection pool to one API server, with one set of credentials."""

    def __init__(
        self,
        credentials: ClusterCredentials,
        *,
        limits: KubeLimits | None = None,
        now: Callable[[], float] = time.monotonic,
        on_call: OnCall | None = None,
    ) -> None:
        """`on_call` hears of every request that was sent."""
        self.limits = limits or KubeLimits()
        self._on_call = on_call or (lambda *_: None)
        self._credentials = credentials
        self._now = now
        self._api = api_client(credentials)
        self._breaker = Breaker(self.limits.pauses)
        self._usable = asyncio.Event()
        self._usable.set()
        self._looking: asyncio.Task[None] | None = None
        self._closed = False

    async def close(self) -> None:
        """End all connections; calls under way fail."""
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await self._api.close()  # type: ignore[no-untyped-call]
        await asyncio.sleep(_SETTLE_SECONDS)

    async def usable(self) -> None:
        """Wait until the server is not known to be gone."""
        await self._usable.wait()

    async def request(
        self,
        method: str,
        path: str,
        query: Query = (),
        body: Any = None,
        *,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> Manifest:
        """One call and its decoded answer. Raises SiteError; SiteNotFound, AlreadyThere and SiteExpired are its own."""
        answer = decoded(await self._called(method, path, query, body, content_type, accept, MAX_ANSWER_BYTES))
        if answer is None:
            raise SiteServerError(f"{self._credentials.server}: the answer is not a JSON object")
        return answer

    async def text(self, path: str, query: Query, most_bytes: int) -> str:
        """What is read as it is, such as a log."""
        return (await self._called("GET", path, query, None, JSON, ANYTHING, most_bytes)).decode(errors="replace")

    async def list_all(self, path: str, selector: str, *, metadata_only: bool) -> tuple[list[Manifest], str]:
        """All pages of a list and the resourceVersion they are of."""
        accept = METADATA_LIST if metadata_only else JSON
        query = [("limit", str(PAGE_SIZE))] + ([("labelSelector", selector)] if selector else [])
        items: list[Manifest] = []
        token, restarts, pages = "", 0, 0
        give_up_at = self._now() + self.limits.list_seconds
        while pages * PAGE_SIZE < MAX_LIST_ITEMS:
            if self._now() > give_up_at:
                raise SiteUnreachable(f"{self._credentials.server}: no end of a list of {path} within the time allowed")
            pages += 1
            try:
                page = await self.request("GET", path, [*query, ("continue", token)] if token else query, accept=accept)
            except SiteExpired:
                if not token or restarts == MAX_LIST_RESTARTS:
                    raise
                items, token, restarts = [], "", restarts + 1
                continue
            items += page.get("items") or []
            metadata = page.get("metadata") or {}
            token = metadata.get("continue", "")
            if not token:
                return items, str(metadata.get("resourceVersion", ""))
        raise SiteServerError(f"{self._credentials.server}: a list of {path} without end")

    async def watch(self, path: str, selector: str, version: str) -> AsyncIterator[Manifest]:
        """Changes of metadata since `version`, bookmarks included, until the server ends the stream or falls silent.

        A silence is no failure: of a kind that nobody has touched since it started, a server sends no bookmarks. Where
        it comes from a dead connection, the next watch fails. Raises SiteExpired when the version is too old.
        """
        self._check()
        query = [("watch", "true"), ("allowWatchBookmarks", "true"), ("resourceVersion", version)]
        seconds = self.limits.watch_server_seconds * random.uniform(0.8, 1.2)
        query += [("labelSelector", selector), ("timeoutSeconds", str(max(1, round(seconds))))]
        timeout = aiohttp.ClientTimeout(
            total=None,
            connect=self.limits.connect_seconds,
            sock_read=self.limits.watch_inactivity_seconds,
        )
        began = False
        try:
            async with self._open("GET", path, query, None, JSON, METADATA, timeout) as response:
                if response.status != 200:
                    raise await self._refused(response)
                began = True
                self._answered()
                async for line in lines(response, self._credentials.server):
                    yield event(line)
        except SiteError as error:
            if began and type(error) is SiteUnreachable:
                return
            if not began:  # one that was established and broke says nothing about whether a new one can be had
                self._note(error)
            raise

    def _check(self) -> None:
        if self._closed:
            raise SiteUnreachable(f"{self._credentials.server}: its client was closed")
        refusal = self._breaker.refusal(self._now())
        if refusal is not None:
            raise refusal

    async def _called(
        self, method: str, path: str, query: Query, body: Any, content_type: str, accept: str, most_bytes: int
    ) -> bytes:
        """One call within the usual time limits, if the server is to be asked at all."""
        self._check()
        connect, read = self.limits.connect_seconds, self.limits.read_seconds
        timeout = aiohttp.ClientTimeout(total=connect + read, connect=connect, sock_read=read)
        try:
            return await self._exchange(method, path, query, body, content_type, accept, timeout, most_bytes)
        except SiteError as error:
            self._note(error)
            raise

    async def _exchange(
        self, method: str, path: str, query: Query, body: Any, content_type: str, accept: str,
        timeout: aiohttp.ClientTimeout, most_bytes: int,
    ) -> bytes:  # fmt: skip
        async with self._open(method, path, query, body, content_type, accept, timeout) as response:
            if not 200 <= response.status < 300:
                raise await self._refused(response)
            answer = await content(response, most_bytes)
        self._answered()
        return answer

    @asynccontextmanager
    async def _open(
        self, method: str, path: str, query: Query, body: Any, content_type: str, accept: str,
        timeout: aiohttp.ClientTimeout,
    ) -> AsyncIterator[aiohttp.ClientResponse]:  # fmt: skip
        """The answer's beginning; errors of the transport, also while it is read, become SiteErrors."""
        headers = {"Accept": accept, "Content-Type": content_type}
        response, begun = None, self._now()
        try:
            call = await self._api.param_serialize(
                method, path, {}, list(query), headers, body, auth_settings=[BEARER_TOKEN]
            )
            async with asyncio.timeout(self.limits.connect_seconds + self.limits.read_seconds):
                response = (await self._api.call_api(*call, _request_timeout=timeout)).response
            self._on_call(method, response.status, self._now() - begun)
            yield response
        except (aiohttp.ClientError, HttpProcessingError, OSError, TimeoutError) as error:
            if response is None:
                self._on_call(method, None, self._now() - begun)
            raise from_transport(error, self._credentials.server) from error
        finally:
            if response is not None:
                drop(response)

    async def _refused(self, response: aiohttp.ClientResponse) -> SiteError:
        status = decoded(await content(response, MAX_REFUSAL_BYTES)) or {}
        self._answered()
        if self._credentials.token and self._credentials.token in str(status.get("message")):
            status["message"] = "(the server's message held our token)"
        return from_status(response.status, status, response.headers)

    def _answered(self) -> None:
        self._breaker.answered()
        self._usable.set()

    def _note(self, error: SiteError) -> None:
        if isinstance(error, SiteBusy):
            self._breaker.told_to_wait(error, self._now())
        if isinstance(error, SiteUnreachable):
            self._breaker.failed(error)
        if self._breaker.open and not self._closed:
            self._usable.clear()
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look_again(), name=f"look for {self._credentials.server}")

    async def _look_again(self) -> None:
        """Until the site answers, with whatever: then calls are made again."""
        looks = 0
        while self._breaker.open:
            await asyncio.sleep(self.limits.pauses.after(looks) * random.uniform(0.8, 1.2))
            looks += 1
            seconds = self.limits.connect_seconds
            try:
                timeout = aiohttp.ClientTimeout(total=2 * seconds, connect=seconds)
                await self._exchange("GET", "/version", (), None, JSON, JSON, timeout, MAX_ANSWER_BYTES)
            except SiteUnreachable as error:
                self._breaker.failed(error)
            except SiteError:
                self._answered()

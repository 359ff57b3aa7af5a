"""One stream of changes for all jobs of a site: a watch per kind, begun again by itself for as long as somebody reads.

Nothing is lost when a watch breaks: what changed meanwhile is found by listing again and told as if it had just
happened. Only metadata travels, since a change only wakes its reader.
"""

import asyncio
import logging
import random
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from diloco_api.names import LABEL_JOB_UID
from diloco_operator.sites.following import report
from diloco_operator.sites.kube_client import KubeClient
from diloco_operator.sites.kube_errors import SiteExpired
from diloco_operator.sites.kube_kinds import Kind
from diloco_operator.sites.site import Manifest, SiteError, SiteEvent

log = logging.getLogger(__name__)

EventType = Literal["ADDED", "MODIFIED", "DELETED"]
_TYPES: Mapping[str, EventType] = {"ADDED": "ADDED", "MODIFIED": "MODIFIED", "DELETED": "DELETED"}
LIVED_SECONDS = 10.0
"""A watch that held this long was a good one: the next is not waited for."""


class Reader:
    """The changes of one job, from now on. Ends only when it or its site is closed."""

    def __init__(self, job_uid: str) -> None:
        self.job_uid = job_uid
        self._queue: asyncio.Queue[SiteEvent | None] = asyncio.Queue()
        self._ended = False

    def put(self, event: SiteEvent | None) -> None:
        """None: there will be no more."""
        self._queue.put_nowait(event)

    def __aiter__(self) -> "Reader":
        return self

    async def __anext__(self) -> SiteEvent:
        event = None if self._ended else await self._queue.get()
        if event is None:
            self._ended = True
            raise StopAsyncIteration
        return event


@dataclass(frozen=True)
class _Known:
    """An object as last told of."""

    job_uid: str
    version: str


class SharedWatch:
    """Runs while it has readers; a reader that is dropped is forgotten."""

    def __init__(self, site: str, client: KubeClient, namespace: str, kinds: tuple[Kind, ...]) -> None:
        self._streams = [_Stream(site, client, namespace, kind, self._tell) for kind in kinds]
        self._readers: weakref.WeakSet[Reader] = weakref.WeakSet()
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    def read(self, job_uid: str) -> Reader:
        reader = Reader(job_uid)
        if self._closed:
            reader.put(None)
            return reader
        self._readers.add(reader)
        weakref.finalize(reader, _soon, asyncio.get_running_loop(), self._reader_left).atexit = False
        if not self._tasks:
            self._tasks = [asyncio.create_task(stream.run(), name=f"watch {stream}") for stream in self._streams]
        return reader

    async def close(self) -> None:
        """End all streams and tell their readers."""
        self._closed = True
        tasks = self._stop()
        for reader in self._readers:
            reader.put(None)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _tell(self, job_uid: str, event: SiteEvent) -> None:
        for reader in self._readers:
            if reader.job_uid == job_uid:
                reader.put(event)

    def _reader_left(self) -> None:
        if not list(self._readers):
            self._stop()

    def _stop(self) -> list[asyncio.Task[None]]:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        return tasks


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Objects may be collected in any thread."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(call)


class _Stream:
    """The changes of one kind."""

    def __init__(
        self, site: str, client: KubeClient, namespace: str, kind: Kind, tell: Callable[[str, SiteEvent], None]
    ) -> None:
        self._site = site
        self._client = client
        self._path = kind.path(namespace)
        self._kind = kind
        self._tell = tell
        self._known: dict[str, _Known] = {}
        self._version = ""
        self._said = ""

    def __str__(self) -> str:
        return f"{self._site}: {self._kind.plural}"

    async def run(self) -> None:
        """For ever. Begins with everything there is, as the last reader may have left long ago."""
        self._known, self._version = {}, ""
        limits = self._client.limits
        loop = asyncio.get_running_loop()
        wait = limits.watch_retry_seconds
        while True:
            began = loop.time()
            (error,) = await asyncio.gather(self._once(), return_exceptions=True)
            self._say(error)
            if loop.time() - began > LIVED_SECONDS or isinstance(error, SiteExpired):
                wait = limits.watch_retry_seconds
            await asyncio.sleep(wait * random.uniform(0.5, 1.5))
            wait = min(limits.longest_watch_retry_seconds, 2 * wait)
            await self._client.usable()

    async def _once(self) -> None:
        """List where it is not known what there is, then follow until the stream ends or breaks."""
        if not self._version:
            await self._list()
        try:
            async for event in self._client.watch(self._path, LABEL_JOB_UID, self._version):
                self._took(event)
        except SiteExpired:
            self._version = ""
            raise

    async def _list(self) -> None:
        items, version = await self._client.list_all(self._path, LABEL_JOB_UID, metadata_only=True)
        present = {item["metadata"]["name"]: item for item in items}
        for name in [name for name in self._known if name not in present]:
            self._changed("DELETED", name, self._known.pop(name).job_uid)
        for item in present.values():
            self._seen("ADDED", item)
        self._version = version

    def _took(self, event: Manifest) -> None:
        metadata = event["object"]["metadata"]
        kind = _TYPES.get(str(event.get("type")))
        if kind == "DELETED":
            known = self._known.pop(metadata["name"], None)
            self._changed("DELETED", metadata["name"], known.job_uid if known else _job_of(metadata))
        elif kind is not None:
            self._seen(kind, event["object"])
        self._version = str(metadata.get("resourceVersion") or self._version)
        self._said = ""

    def _seen(self, kind: EventType, item: Manifest) -> None:
        metadata = item["metadata"]
        now = _Known(_job_of(metadata), str(metadata.get("resourceVersion", "")))
        before = self._known.get(metadata["name"])
        self._known[metadata["name"]] = now
        if before is None:
            self._changed("ADDED", metadata["name"], now.job_uid)
        elif before != now:
            self._changed("MODIFIED", metadata["name"], now.job_uid)

    def _changed(self, kind: EventType, name: str, job_uid: str) -> None:
        self._tell(job_uid, SiteEvent(kind, self._kind.name, name))

    def _say(self, error: BaseException | None) -> None:
        """A broken watch is told once, not at every attempt; one that ended or expired is nothing to tell."""
        if error is None or isinstance(error, SiteExpired):
            return
        words = error.reason if isinstance(error, SiteError) else repr(error)
        if words != self._said:
            report(f"site {self._site}: watch of {self._kind.plural}", error)
        self._said = words


def _job_of(metadata: Manifest) -> str:
    return str((metadata.get("labels") or {}).get(LABEL_JOB_UID, ""))

"""One site as one job uses it: looked at and told what to do without ever holding the other sites up.

A look or a batch that takes longer than a moment goes on beside the next passes; until it is over the site counts as
one that does not answer, and is told nothing new. A site whose watch has told nothing since the last look is not asked
again so soon: of many sites only the one where something happened costs requests. A batch is bounded; a log is read
beside it. Decides nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.planning.types import LogTail, Manifest, ObjectKey, ReadLog, Refusal, SiteView
from diloco_operator.planning.views import split_objects
from diloco_operator.site_batch import Batch, ObjectAction, stages
from diloco_operator.sites.following import follow, report
from diloco_operator.sites.site import Site, SiteError, SiteUnreachable

PATIENCE_SECONDS = 2.0
"""A pass waits this long for one site; the timeouts of single calls are longer."""
FRESH_SECONDS = 1.0
"""An answer that came between two passes is used when it is not older."""
BATCH = 32
"""Learners that are begun or ended in one pass at one site; the next pass takes the next ones."""

SiteAction = ObjectAction | ReadLog


@dataclass(frozen=True)
class SiteEntry:
    """A site of a job as it can be used now."""

    name: str
    site: Site | None
    """None: there are no credentials to use it with."""
    problem: Refusal | None = None
    """What is wrong with its credentials."""
    identify: Callable[[], Awaitable[str]] | None = None
    """The UID of the cluster behind it; None where it cannot be another one."""
    believed_seconds: float = 0.0
    """How long a look holds while the watch tells of no change; what is not watched is seen that much later."""
    leaving: bool = False
    """The job does not name it any more; it is looked at until nothing of the job is there."""


class SiteDirectory(Protocol):
    """Where the sites of a job are asked for, at every pass: credentials may change while it lives."""

    async def entries(self, job: DiLoCoJob) -> Sequence[SiteEntry]:
        """All sites of the job, also those that cannot be used."""

    async def forget(self, name: str) -> None:
        """Nothing of the job is left at a site that is leaving."""


class FixedSites:
    """The same sites for ever."""

    def __init__(self, sites: Sequence[Site]) -> None:
        self._entries = [SiteEntry(site.name, site) for site in sites]

    async def entries(self, job: DiLoCoJob) -> Sequence[SiteEntry]:
        return self._entries

    async def forget(self, name: str) -> None:
        """None is ever leaving."""


class SiteLink:
    """One site of one job."""

    def __init__(self, entry: SiteEntry, job_uid: str, wake: Callable[[], None], now: Callable[[], float]) -> None:
        self._entry = entry
        self._job_uid = job_uid
        self._wake = wake
        self._now = now
        self._look: asyncio.Task[SiteView] | None = None
        self._looked_at = 0.0
        self._listed: list[Manifest] | None = None
        """What the last look found, until something changes."""
        self._listed_at = 0.0
        self._stale = False
        self._cluster_uid = ""
        self._batch: asyncio.Task[None] | None = None
        self._turn = 0
        self._watch: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._log_tail: LogTail | None = None
        self._refusals: Mapping[str, Refusal] = {}
        self._object_refusals: Mapping[ObjectKey, Refusal] = {}
        self._last_contact: float | None = None

    async def use(self, entry: SiteEntry) -> None:
        """From now on with these credentials."""
        changed = entry.site is not self._entry.site
        self._entry = entry
        if changed:
            watched = self._watch is not None
            await self.close()
            if watched:
                self.watch()

    def watch(self) -> None:
        """Begin to wake on changes of the job's objects; a second call does nothing."""
        if self._watch is None and self._entry.site is not None:
            self._watch = asyncio.create_task(follow(self._entry.site, self._job_uid, self._changed))
            self._listed = None

    async def close(self) -> None:
        """End everything that is under way."""
        tasks = [task for task in (self._look, self._batch, self._watch, self._reading) if task is not None]
        self._look = self._batch = self._watch = self._reading = self._listed = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def look(self) -> SiteView:
        """The site now; unreachable when it has not answered within a moment."""
        if self._entry.site is None:
            problem = self._entry.problem or Refusal("SecretInvalid", "there are no credentials for it")
            return replace(self._blind(problem.reason, problem.message), credentials_problem=problem.reason)
        believed = self._watch is not None and self._now() - self._listed_at < self._entry.believed_seconds
        if believed and self._listed is not None:
            return self._seen(self._listed)
        if self._look is not None and self._look.done() and self._now() - self._looked_at > FRESH_SECONDS:
            self._look = None
        hanging = self._look is not None
        if self._look is None:
            self._look = asyncio.create_task(self._list(self._entry.site))
            self._look.add_done_callback(self._looked)
        await asyncio.wait({self._look}, timeout=0.0 if hanging else PATIENCE_SECONDS)
        if not self._look.done():
            self._look.add_done_callback(lambda _: self._wake())
            return self._blind(SiteUnreachable.reason, "it does not answer in time")
        view, self._look = self._look.result(), None
        return replace(view, refusals=self._refusals, object_refusals=self._object_refusals, log_tail=self._log_tail)

    @property
    def leaving(self) -> bool:
        """See `SiteEntry`."""
        return self._entry.leaving

    def _changed(self) -> None:
        self._forget()
        self._wake()

    def _forget(self) -> None:
        """What is being looked at just now is old already."""
        self._listed, self._stale = None, True

    def _looked(self, _: object) -> None:
        self._looked_at = self._now()

    async def _list(self, site: Site) -> SiteView:
        self._stale = False
        try:
            self._cluster_uid = await self._entry.identify() if self._entry.identify is not None else ""
            listed = await site.list_owned(self._job_uid)
            view = self._seen(listed)
        except SiteError as error:
            return self._blind(error.reason, str(error))
        except Exception as error:  # noqa: BLE001  (an error nobody has thought of is a site that cannot be reached)
            report(f"site {self._entry.name}", error)
            return self._blind("InternalError", type(error).__name__)
        self._last_contact = self._now()
        if not self._stale:
            self._listed, self._listed_at = listed, self._now()
        return replace(view, last_contact=self._last_contact)

    def _seen(self, listed: list[Manifest]) -> SiteView:
        pods, objects = split_objects(listed, self._now())
        return replace(self._empty_view(), pods=pods, objects=objects, cluster_uid=self._cluster_uid)

    def _blind(self, reason: str, message: str) -> SiteView:
        return replace(self._empty_view(), unreachable=reason, message=message)

    def _empty_view(self) -> SiteView:
        return SiteView(
            self._entry.name,
            last_contact=self._last_contact,
            refusals=self._refusals,
            object_refusals=self._object_refusals,
            log_tail=self._log_tail,
        )

    async def apply(self, actions: Sequence[SiteAction]) -> None:
        """Begin a batch, and wait a moment for its end. One at a time: what is still true is planned again."""
        if self._entry.site is None:
            return
        for action in actions:
            if isinstance(action, ReadLog) and (self._reading is None or self._reading.done()):
                self._reading = asyncio.create_task(self._read(self._entry.site, action))
        if self._batch is not None and not self._batch.done():
            return
        of_objects = [action for action in actions if not isinstance(action, ReadLog)]
        self._batch = asyncio.create_task(self._carry_out(self._entry.site, of_objects))
        await asyncio.wait({self._batch}, timeout=PATIENCE_SECONDS)
        if not self._batch.done():
            self._batch.add_done_callback(lambda _: self._wake())

    async def _read(self, site: Site, action: ReadLog) -> None:
        """A log that cannot be read is told as that: it is not tried again at once."""
        try:
            text, problem = await site.log_tail(action.pod, action.container), ""
        except SiteError as error:
            text, problem = "", error.reason
        self._log_tail = LogTail(action.pod, self._now(), text, problem)
        self._wake()

    async def _carry_out(self, site: Site, actions: Sequence[ObjectAction]) -> None:
        batch = Batch(self._entry.name, site, self._job_uid)
        try:
            for stage in stages(actions):
                first = self._turn % len(stage)  # in turn: those that fail again and again keep nobody from theirs
                await batch.run([*stage[first:], *stage[:first]][:BATCH])
                if len(stage) > BATCH:
                    self._turn += BATCH
                    if not batch.failed:
                        self._wake()
                    break
        finally:
            self._refusals, self._object_refusals = batch.refusals, batch.object_refusals
            if actions:
                self._forget()

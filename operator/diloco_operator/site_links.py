"""All sites of one job: as the directory has them now, looked at and told what to do side by side."""

import asyncio
from collections.abc import Callable, Sequence

from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.planning.types import SiteView
from diloco_operator.site_link import SiteAction, SiteDirectory, SiteLink
from diloco_operator.sites.following import report


class SiteLinks:
    """The sites of one job."""

    def __init__(self, directory: SiteDirectory, wake: Callable[[], None], now: Callable[[], float]) -> None:
        self._directory = directory
        self._wake = wake
        self._now = now
        self._links: dict[str, SiteLink] = {}
        self._watching = False

    @property
    def watching(self) -> bool:
        """Changes at the sites wake."""
        return self._watching

    def watch(self) -> None:
        """From now on, also at sites still to come."""
        self._watching = True
        for link in self._links.values():
            link.watch()

    async def close(self) -> None:
        """End all that is under way; a later look begins anew."""
        self._watching = False
        links, self._links = list(self._links.values()), {}
        await asyncio.gather(*(link.close() for link in links), return_exceptions=True)

    async def look(self, job: DiLoCoJob) -> tuple[SiteView, ...]:
        """In the order of the directory."""
        entries = await self._directory.entries(job)
        for entry in entries:
            if entry.name in self._links:
                await self._links[entry.name].use(entry)
            else:
                self._links[entry.name] = SiteLink(entry, job.metadata.uid, self._wake, self._now)
            if self._watching:
                self._links[entry.name].watch()
        for name in self._links.keys() - {entry.name for entry in entries}:
            await self._links.pop(name).close()
        views = await asyncio.gather(*(self._links[entry.name].look() for entry in entries))
        for view in views:
            if self._links[view.name].leaving and not view.unreachable and not view.pods and not view.objects:
                await self._directory.forget(view.name)
        return tuple(views)

    async def apply(self, actions: Sequence[SiteAction]) -> None:
        """Each site its actions, none waiting for another."""
        by_site: dict[str, list[SiteAction]] = {name: [] for name in self._links}
        for action in actions:
            by_site[action.site].append(action)
        calls = [self._links[name].apply(of_site) for name, of_site in by_site.items()]
        for error in await asyncio.gather(*calls, return_exceptions=True):
            if error is not None:
                report("apply", error)

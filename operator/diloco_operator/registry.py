"""The sites of jobs on clusters: live `KubeSite`s, shared by those that use the same credentials and namespace.

Credentials are looked at again at every pass. What a job once used it keeps until it is gone, whatever becomes of the
Secret: its objects must be removable also when the namespace, and the Secret with it, is deleted. Decides nothing.
"""

import asyncio
import time
from collections.abc import Callable, Set
from dataclasses import dataclass, field, replace

from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.kubeconfigs import Kubeconfig, Kubeconfigs
from diloco_operator.planning.sites import SiteRef, site_refs
from diloco_operator.site_link import SiteEntry
from diloco_operator.sites.expiry import expires_at
from diloco_operator.sites.kube import KubeSite
from diloco_operator.sites.kube_kinds import HUB_KINDS, SITE_KINDS
from diloco_operator.sites.kubeconfig import ClusterCredentials
from diloco_operator.sites.site import SiteForbidden

IDENTIFY_SECONDS = 60.0
BELIEVED_SECONDS = 4.0
"""See `SiteEntry`; less than the time between two looks that nothing asked for."""
SiteKey = tuple[str, str, str]
"""(UID of the Secret, digest, namespace); the hub's own credentials have neither of the first two."""


@dataclass
class LiveSite:
    """One connection, and who uses it."""

    site: KubeSite
    users: set[str] = field(default_factory=set)
    """UIDs of jobs."""
    expires_at: float | None = None
    """When its credentials expire, where they say so."""
    cluster_uid: str = ""
    identified_at: float = 0.0

    async def identify(self) -> str:
        """UID of the cluster; asked again now and then, as another one may have taken its address."""
        if not self.cluster_uid or time.monotonic() - self.identified_at > IDENTIFY_SECONDS:
            self.cluster_uid = await self.site.identity()
            self.identified_at = time.monotonic()
        return self.cluster_uid

    async def identify_hub(self) -> str:
        """On the hub the operator may have no right to ask; it is what it is."""
        try:
            return await self.identify()
        except SiteForbidden:
            return ""


class Registry:
    """All live sites of this process."""

    def __init__(
        self,
        hub: ClusterCredentials,
        kubeconfigs: Kubeconfigs,
        connect: Callable[..., KubeSite] = KubeSite,
    ) -> None:
        self._hub = hub
        self._kubeconfigs = kubeconfigs
        self._connect = connect
        self._live: dict[SiteKey, LiveSite] = {}

    @property
    def live(self) -> dict[SiteKey, LiveSite]:
        """What is connected now."""
        return dict(self._live)

    def hub(self, namespace: str, job_uid: str) -> LiveSite:
        """The hub itself as a site: always the job's own namespace."""
        return self._use(("", "", namespace), self._hub, f"hub/{namespace}", job_uid)

    def remote(self, name: str, kubeconfig: Kubeconfig, namespace: str, job_uid: str) -> LiveSite:
        """A site behind these credentials."""
        assert kubeconfig.credentials is not None, "credentials with a problem are not connected with"
        return self._use((*kubeconfig.identity, namespace), kubeconfig.credentials, name, job_uid)

    async def kubeconfig(self, namespace: str, name: str) -> Kubeconfig:
        """As the Secret is now."""
        return await self._kubeconfigs.read(namespace, name)

    async def release(self, job_uid: str, keep: Set[int] = frozenset()) -> None:
        """The job uses nothing any more but what `keep` names by `id`; what nobody uses is closed."""
        for key, live in list(self._live.items()):
            if id(live) in keep:
                continue
            live.users.discard(job_uid)
            if not live.users:
                del self._live[key]
                await live.site.close()

    async def close(self) -> None:
        """End all connections."""
        sites = [live.site for live in self._live.values()]
        self._live.clear()
        await asyncio.gather(*(site.close() for site in sites))

    def _use(self, key: SiteKey, credentials: ClusterCredentials, name: str, job_uid: str) -> LiveSite:
        if key not in self._live:
            kinds = SITE_KINDS if key[0] else HUB_KINDS
            site = self._connect(name, credentials, key[2], kinds=kinds)
            self._live[key] = LiveSite(site, expires_at=expires_at(credentials))
        live = self._live[key]
        live.users.add(job_uid)
        return live


class JobSites:
    """The directory of one job: see `SiteDirectory`."""

    def __init__(self, registry: Registry, job_uid: str) -> None:
        self._registry = registry
        self._job_uid = job_uid
        self._used: dict[str, LiveSite] = {}
        """By the name of the site; also of sites the spec does not name any more."""
        self._left: set[str] = set()
        """Sites that hold nothing any more and whose rows may still be in the status."""

    async def entries(self, job: DiLoCoJob) -> list[SiteEntry]:
        """The hub first; last what the spec does not name any more and may still hold something of the job.

        Of these an operator that has just started knows by their rows in the status.
        """
        refs = site_refs(job)
        entries = list(await asyncio.gather(*(self._entry(job, ref) for ref in refs)))
        named = {ref.name for ref in refs}
        present = {id(entry.site) for entry in entries if entry.site}  # under another name it is no other site
        known = named | self._left | self._used.keys()
        for row in job.status.sites:
            if row.secret_name and row.name not in known:
                entry = await self._entry(job, SiteRef(row.name, row.secret_name, row.namespace))
                if id(entry.site) not in present:
                    entries.append(replace(entry, leaving=True))
                named.add(row.name)
        entries += [
            SiteEntry(name, live.site, identify=live.identify, leaving=True)
            for name, live in self._used.items()
            if name not in named and id(live.site) not in present
        ]
        return entries

    def expiries(self) -> dict[str, float]:
        """When the credentials of sites expire, unix seconds; of those that say so."""
        return {name: live.expires_at for name, live in self._used.items() if live.expires_at is not None}

    async def forget(self, name: str) -> None:
        """A site the spec does not name any more holds nothing of the job."""
        self._used.pop(name, None)
        self._left.add(name)
        await self._drop_unused()

    async def close(self) -> None:
        """The job is gone, or somebody else's."""
        self._used.clear()
        await self._registry.release(self._job_uid)

    async def _entry(self, job: DiLoCoJob, ref: SiteRef) -> SiteEntry:
        if ref.secret is None:
            live = self._registry.hub(job.metadata.namespace, self._job_uid)
            self._used[ref.name] = live
            return SiteEntry(ref.name, live.site, identify=live.identify_hub, believed_seconds=BELIEVED_SECONDS)
        kubeconfig = await self._registry.kubeconfig(job.metadata.namespace, ref.secret)
        used = self._used.get(ref.name)
        if kubeconfig.problem is None:
            live = self._registry.remote(ref.name, kubeconfig, ref.namespace, self._job_uid)
            self._used[ref.name] = live
            if used is not None and used is not live:
                await self._drop_unused()
            return SiteEntry(ref.name, live.site, identify=live.identify, believed_seconds=BELIEVED_SECONDS)
        if used is not None and job.metadata.deletion_timestamp is not None:
            return SiteEntry(ref.name, used.site, identify=used.identify)
        return SiteEntry(ref.name, None, kubeconfig.problem)

    async def _drop_unused(self) -> None:
        await self._registry.release(self._job_uid, {id(live) for live in self._used.values()})

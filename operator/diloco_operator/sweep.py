"""Removes what jobs that are gone have left at sites: second net behind the finalizer.

Only what carries this installation's origin, of namespaces it looks after, whose job two complete lists in a row do not
know, at sites that are connected for other jobs. A job of that name under another uid: hold and report, since somebody
may have restored jobs from a backup.
"""

import logging
from collections.abc import Sequence

from diloco_api import names
from diloco_operator.api import JobRef
from diloco_operator.job_list import JobList
from diloco_operator.sites.following import report
from diloco_operator.sites.kube import KubeSite
from diloco_operator.sites.site import Manifest, SiteError

log = logging.getLogger(__name__)

_KEPT_KINDS = frozenset({"PersistentVolumeClaim"})


class Sweep:
    """Of one installation."""

    def __init__(self, origin: str, namespaces: Sequence[str], jobs: JobList) -> None:
        self._origin = origin
        self._namespaces = frozenset(namespaces)
        self._jobs = jobs
        self._told: set[str] = set()

    async def run(self, sites: Sequence[KubeSite], present: Sequence[JobRef]) -> int:
        """How many objects were removed. An error of one site stops no other."""
        named = {(ref.namespace, ref.name) for ref in present}
        removed = 0
        for site in sites:
            try:
                for found in await site.list_labelled(f"{names.LABEL_ORIGIN}={self._origin}"):
                    removed += await self._one(site, found, named)
            except SiteError as error:
                log.info("sweep of site %s: %s: %s", site.name, error.reason, error)
            except Exception as error:  # noqa: BLE001  (what a site lists may make no sense at all)
                report(f"sweep of site {site.name}", error)
        return removed

    async def _one(self, site: KubeSite, found: Manifest, named: set[tuple[str, str]]) -> int:
        kind, metadata = found["kind"], found["metadata"]
        labels = metadata.get("labels") or {}
        uid = labels.get(names.LABEL_JOB_UID, "")
        owner = (labels.get(names.LABEL_JOB_NAMESPACE, ""), labels.get(names.LABEL_JOB_NAME, ""))
        in_scope = not self._namespaces or owner[0] in self._namespaces
        if not uid or not in_scope or kind in _KEPT_KINDS or not self._jobs.surely_unknown(uid):
            return 0
        if metadata.get("ownerReferences") or "deletionTimestamp" in metadata:
            return 0  # on the hub the cluster itself collects it; or it is going already
        if owner in named:
            if uid not in self._told:
                log.warning("site %s: objects of job %s/%s under the unknown uid %s are kept", site.name, *owner, uid)
            self._told.add(uid)
            return 0
        log.info("site %s: %s %s is of a job that is gone (%s/%s)", site.name, kind, metadata["name"], *owner)
        await site.delete(kind, metadata["name"], metadata["uid"])
        return 1

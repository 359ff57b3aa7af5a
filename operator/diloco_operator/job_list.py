"""Which jobs there are, by a list now and then: what the watch has missed is started, and its lag is known.

kopf's watch carries the events; a list is the second source that shows when it does not. Two complete lists in a row
are also what the sweep of orphaned objects believes.
"""

import logging
import time
from collections.abc import Callable, Sequence

from diloco_operator.api import Api, JobRef, jobs_path, list_all

log = logging.getLogger(__name__)


class JobList:
    """Jobs of this installation's scope."""

    def __init__(self, api: Api, namespaces: Sequence[str], *, now: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._paths = [jobs_path(namespace) for namespace in namespaces] or [jobs_path(None)]
        self._now = now
        self._told: dict[str, str] = {}
        """Resource version by uid, as the watch told."""
        self._behind_since: float | None = None
        self._lists: list[frozenset[str]] = []

    def told(self, ref: JobRef, resource_version: str) -> None:
        """The watch told of a job; "" when it is gone."""
        if resource_version:
            self._told[ref.uid] = resource_version
        else:
            self._told.pop(ref.uid, None)

    def behind_seconds(self) -> float:
        """How long a list has shown what the watch has not told."""
        return 0.0 if self._behind_since is None else self._now() - self._behind_since

    def surely_unknown(self, job_uid: str) -> bool:
        """Neither of the last two lists, both complete, has such a job."""
        return len(self._lists) == 2 and all(job_uid not in uids for uids in self._lists)

    async def refresh(self) -> list[tuple[JobRef, str]]:
        """All jobs with their resource versions; ApiError when one list fails, and then nothing is concluded."""
        before = dict(self._told)
        listed: list[tuple[JobRef, str]] = []
        try:
            for path in self._paths:
                for item in await list_all(self._api, path, metadata_only=True):
                    metadata = item["metadata"]
                    ref = JobRef(metadata["namespace"], metadata["name"], metadata["uid"])
                    listed.append((ref, metadata["resourceVersion"]))
        except Exception:
            self._lists.clear()
            raise
        self._lists = [*self._lists[-1:], frozenset(ref.uid for ref, _ in listed)]
        self._note(before, listed)
        return listed

    def _note(self, before: dict[str, str], listed: Sequence[tuple[JobRef, str]]) -> None:
        """Behind: a job has another version than was told both before and after the list."""
        behind = any(version not in (before.get(ref.uid), self._told.get(ref.uid)) for ref, version in listed)
        if not behind:
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = self._now()

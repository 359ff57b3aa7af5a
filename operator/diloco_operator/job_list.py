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
        self._behind: dict[str, float] = {}
        """Since when a list shows of a job, by its uid, what the watch has not told."""
        self._lists: list[frozenset[str]] = []

    def told(self, ref: JobRef, resource_version: str) -> None:
        """The watch told of a job; "" when it is gone."""
        self._behind.pop(ref.uid, None)
        if resource_version:
            self._told[ref.uid] = resource_version
        else:
            self._told.pop(ref.uid, None)

    def behind_seconds(self) -> float:
        """How long a list has shown what the watch has not told."""
        return max((self._now() - since for since in self._behind.values()), default=0.0)

    def surely_unknown(self, job_uid: str) -> bool:
        """Neither of the last two lists, both complete, has such a job, nor has the watch told of one since."""
        return len(self._lists) == 2 and not any(job_uid in uids for uids in (*self._lists, self._told))

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
        present = frozenset(ref.uid for ref, _ in listed)
        self._lists = [*self._lists[-1:], present]
        for uid in before.keys() - present:  # the watch has missed its end
            self._told.pop(uid, None)
        self._note(before, listed)
        return listed

    def _note(self, before: dict[str, str], listed: Sequence[tuple[JobRef, str]]) -> None:
        """Behind: a job has another version than was told before the list, and nothing was told meanwhile.

        Each job for itself: of many that change all the time, some are just being told of at every list.
        """
        behind = {
            ref.uid
            for ref, version in listed
            if version != before.get(ref.uid) and before.get(ref.uid) == self._told.get(ref.uid)
        }
        self._behind = {uid: self._behind.get(uid, self._now()) for uid in behind}

"""A hub that drops what it is told, as its CRD is too old: remembered, and tried again without writing anything."""

from collections.abc import Callable

from diloco_api.status import JobStatus
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.hub import Hub, HubOutdated

AGAIN_SECONDS = 10.0
"""Between two tries whether the CRD has been updated."""


class CrdTrial:
    """What is known of one job's CRD by its writes; an operator of some namespaces may not read it."""

    def __init__(self, hub: Hub, now: Callable[[], float]) -> None:
        self._hub = hub
        self._now = now
        self._at = 0.0
        self.problem = ""
        """What it does to which field; empty: nothing is known to be dropped."""

    def note(self, error: HubOutdated) -> bool:
        """Whether that is news."""
        known, self.problem = self.problem, error.problem
        if not known:
            self._at = self._now()
        return not known

    def is_due(self) -> bool:
        return bool(self.problem) and self._now() - self._at >= AGAIN_SECONDS

    async def passed(self, job: DiLoCoJob, status: JobStatus) -> bool:
        """Whether the hub would keep this status by now; HubError where it cannot be asked."""
        self._at = self._now()
        self.problem = await self._hub.would_drop(job, status)
        return not self.problem

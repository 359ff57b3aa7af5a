"""One active operator: a `coordination.k8s.io` Lease, held before anything is done and renewed while it is.

Another holder's Lease is taken over only after it was seen unchanged for its whole duration on our own clock, so clocks
need not agree. One that is known to be dead is not waited for: the process before this one in the same container. Two
operators may still overlap for a moment; what jobs do is harmless when done twice.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from diloco_operator.api import Api, ApiError, Document, find

log = logging.getLogger(__name__)

LEASE_NAME = "diloco-operator"


class LeaseLost(Exception):
    """It could not be renewed in time, or somebody else holds it: this process must not act any more."""


class Lease:
    """One candidate for the Lease of an installation."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        identity: str,
        *,
        predecessors: str = "",
        duration_seconds: float = 15.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`predecessors`: how identities of processes begin of which none can live beside this one; empty: of none."""
        self._api = api
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._collection}/{LEASE_NAME}"
        self._identity = identity
        self._predecessors = predecessors
        self._duration = duration_seconds
        self._now = now
        self._seen: tuple[object, float] = (None, 0.0)
        """What was read last, and since when it has been that."""
        self._held: Document | None = None
        self._renewed_at = 0.0

    @property
    def retry_seconds(self) -> float:
        """Between two attempts to take or renew it."""
        return self._duration / 5

    def is_held(self) -> bool:
        """By us, and for some time still."""
        return self._held is not None and self._now() - self._renewed_at < self._duration

    async def acquire(self) -> None:
        """Wait until it is ours."""
        waiting = False
        while not await self._try(self._take):
            if not waiting:
                log.info("waiting for the lease %s", self._path)
            waiting = True
            await asyncio.sleep(self.retry_seconds)
        self._predecessors = ""  # who takes it from us comes after us, whatever its name
        log.info("holding the lease %s", self._path)

    async def hold(self) -> None:
        """Renew it for ever; LeaseLost well before another operator may take it."""
        while True:
            await asyncio.sleep(self.retry_seconds)
            left = self._renewed_at + self._duration * 2 / 3 - self._now()
            if await self._try(self._renew, left):
                continue
            if self._held is None or self._now() - self._renewed_at >= self._duration * 2 / 3:
                raise LeaseLost(f"the lease {self._path} is lost")

    async def release(self) -> None:
        """Let the next operator begin at once; the lease runs out by itself when this fails."""
        if self._held is None:
            return
        held, self._held = self._held, None
        try:
            await self._api.request("PUT", self._path, _with_holder(held, "", 1))
        except ApiError as error:
            log.info("the lease could not be given back: %s", error)

    async def _try(self, attempt: Callable[[], Awaitable[bool]], within_seconds: float = math.inf) -> bool:
        """One attempt, bounded, as a hanging request must not outlast the lease."""
        begun = self._now()
        try:
            async with asyncio.timeout(max(0.0, min(within_seconds, self._duration / 3))):
                taken = await attempt()
        except (ApiError, TimeoutError) as error:
            log.warning("lease: %s", error or "the API server does not answer in time")
            return False
        if taken:
            self._renewed_at = begun
        return bool(taken)

    async def _take(self) -> bool:
        """Ours now? Absent, given back, run out, of a predecessor or already ours."""
        found = await find(self._api, self._path)
        if found is None:
            lease = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": LEASE_NAME},
                "spec": {"leaseTransitions": 0},
            }
            self._held = await self._api.request(
                "POST", self._collection, _with_holder(lease, self._identity, self._duration)
            )
            return True
        spec = found.get("spec", {})
        holder = spec.get("holderIdentity") or ""
        dead = bool(self._predecessors) and holder.startswith(self._predecessors)
        if holder not in ("", self._identity) and not dead and not self._has_run_out(found):
            return False
        taken = _with_holder(found, self._identity, self._duration)
        if holder != self._identity:
            taken["spec"] |= {"acquireTime": _micro_time(), "leaseTransitions": spec.get("leaseTransitions", 0) + 1}
        self._held = await self._api.request("PUT", self._path, taken)
        return True

    def _has_run_out(self, lease: Document) -> bool:
        version = lease["metadata"].get("resourceVersion")
        if self._seen[0] != version:
            self._seen = (version, self._now())
        duration = lease["spec"].get("leaseDurationSeconds") or self._duration
        return self._now() - self._seen[1] >= float(duration)

    async def _renew(self) -> bool:
        assert self._held is not None, "it is renewed by its holder"
        try:
            self._held = await self._api.request(
                "PUT", self._path, _with_holder(self._held, self._identity, self._duration)
            )
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            self._held = None  # somebody wrote to it, or removed it
            return await self._take()
        return True


def _with_holder(lease: Document, holder: str, duration_seconds: float) -> Document:
    spec = lease.get("spec", {}) | {
        "holderIdentity": holder,
        "leaseDurationSeconds": max(1, int(duration_seconds)),
        "renewTime": _micro_time(),
    }
    return {**lease, "spec": spec}


def _micro_time() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

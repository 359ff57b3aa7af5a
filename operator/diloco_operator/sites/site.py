"""The seam between the operator and a place where pods run, in terms of Kubernetes objects as plain dicts.

A Site is one namespace of one cluster. Its methods may be called again after any failure. Failures are a `SiteError`;
client-library and operating-system errors stop at the adapter. Pods are only ever created (never patched): finding one
of that name is an answer, not an error. Everything else is applied after a look shows absence or our own labels.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Manifest = dict[str, Any]


class SiteError(Exception):
    """A call to a site failed. `reason` is CamelCase for conditions, the text is for people."""

    reason = "SiteError"


class SiteUnreachable(SiteError):
    """The site did not answer; what happened there is unknown."""

    reason = "Timeout"


class SiteConflict(SiteError):
    """An object of that name is not ours, or the uid is not the one that was meant."""

    reason = "Conflict"


class SiteStorage(SiteError):
    """The site cannot keep what it was given: no space, no permission, no such folder."""

    reason = "StorageFailed"


class SiteInvalid(SiteError):
    """The site cannot run this manifest; trying again does not help."""

    reason = "Invalid"


@dataclass(frozen=True)
class Created:
    """The pod did not exist before."""

    uid: str


@dataclass(frozen=True)
class AlreadyExists:
    """A pod of that name exists; its labels tell whether it is ours."""

    labels: dict[str, str]
    uid: str


@dataclass(frozen=True)
class SiteEvent:
    """Something changed; the reader lists again, so a lost or doubled event does no harm."""

    type: Literal["ADDED", "MODIFIED", "DELETED"]
    kind: str
    name: str


class Site(Protocol):
    """One namespace of one cluster (or the local machine)."""

    @property
    def name(self) -> str:
        """Name of the site as jobs know it."""

    async def list_owned(self, job_uid: str) -> list[Manifest]:
        """Every object that carries the label `job-uid`, complete or an error. Secrets come without their data."""

    async def create_pod(self, manifest: Manifest) -> Created | AlreadyExists:
        """Create a pod. SiteInvalid when the site cannot run it."""

    async def apply(self, manifest: Manifest) -> None:
        """Create or update an object that is not a Pod. SiteConflict when one of that name belongs to another job."""

    async def delete(self, kind: str, name: str, uid: str | None) -> None:
        """Begin the deletion of an object; absent is done. SiteConflict when `uid` is given and is not the object's."""

    def watch(self, job_uid: str) -> AsyncIterator[SiteEvent]:
        """Changes of the job's objects from now on, until the iterator is closed."""

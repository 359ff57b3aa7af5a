"""The seam between the operator and a place where pods run, in terms of Kubernetes objects as plain dicts.

A Site is one namespace of one cluster. Its methods may be called again after any failure. Failures are a `SiteError`;
client-library and operating-system errors stop at the adapter. Pods are only ever created (never patched): finding one
of that name is an answer, not an error. Everything else is applied after a look shows absence or our own labels.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Manifest = dict[str, Any]

LOG_TAIL_LINES = 50
LOG_TAIL_BYTES = 64 * 1024
"""At most this much of a log is read at once."""


class SiteError(Exception):
    """A call to a site failed. `reason` is CamelCase for conditions, the text is for people."""

    reason = "SiteError"


class SiteUnreachable(SiteError):
    """The site did not answer in time; what happened there is unknown. Its subclasses know why."""

    reason = "Timeout"


class SiteTCPFailure(SiteUnreachable):
    """No connection, or it broke."""

    reason = "TCPFailure"


class SiteTLSFailure(SiteUnreachable):
    """Somebody answered who could not prove to be the site, or who wants another certificate of us."""

    reason = "TLSFailure"


class SiteDNSFailure(SiteUnreachable):
    """The site's name has no address."""

    reason = "DNSFailure"


class SiteServerError(SiteError):
    """The site answered with a fault of its own or with something that makes no sense."""

    reason = "ServerError"


class SiteBusy(SiteError):
    """The site asks to be left alone for `retry_after` seconds."""

    reason = "TooManyRequests"

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class SiteUnauthorized(SiteError):
    """The site does not know our credentials (any more)."""

    reason = "Unauthorized"


class SiteForbidden(SiteError):
    """The site knows us and does not allow this; its subclasses know which rule spoke."""

    reason = "Forbidden"


class SiteQuotaExceeded(SiteForbidden):
    """A ResourceQuota is used up; trying again helps once something has ended."""

    reason = "QuotaExceeded"


class SitePodSecurityDenied(SiteForbidden):
    """The namespace's PodSecurity level does not allow this pod."""

    reason = "PodSecurityDenied"


class SiteNamespaceMissing(SiteError):
    """The site's namespace does not exist or is being deleted."""

    reason = "NamespaceMissing"


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
        """Every object that carries the label `job-uid`, complete or an error.

        Secrets come without their data; other objects that only hold data may, too.
        """

    async def create_pod(self, manifest: Manifest) -> Created | AlreadyExists:
        """Create a pod. SiteInvalid when the site cannot run it."""

    async def apply(self, manifest: Manifest) -> None:
        """Create or update an object that is not a Pod. SiteConflict when one of that name belongs to another job."""

    async def delete(self, kind: str, name: str, uid: str | None) -> None:
        """Begin the deletion of an object; absent is done. SiteConflict when `uid` is given and is not the object's."""

    async def log_tail(self, pod: str, container: str) -> str:
        """The last `LOG_TAIL_LINES` lines a pod's container has written; empty when there is no such pod."""

    def watch(self, job_uid: str) -> AsyncIterator[SiteEvent]:
        """Changes of the job's objects from now on, until the iterator is closed."""

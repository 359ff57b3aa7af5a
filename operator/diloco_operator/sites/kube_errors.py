"""From what a call to an API server came to, to a `SiteError`.

Texts hold the server's own `status.message` or an operating system's word: never a header, a body or a credential.
"""

import errno
import os
import ssl
from collections.abc import Mapping
from typing import Any

import aiohttp

from diloco_operator.sites.site import (
    SiteBusy,
    SiteConflict,
    SiteDNSFailure,
    SiteError,
    SiteForbidden,
    SiteInvalid,
    SiteNamespaceMissing,
    SitePodSecurityDenied,
    SiteQuotaExceeded,
    SiteServerError,
    SiteTCPFailure,
    SiteTLSFailure,
    SiteUnauthorized,
    SiteUnreachable,
)

MAX_MESSAGE = 1024
DEFAULT_RETRY_AFTER_SECONDS = 1.0
LONGEST_RETRY_AFTER_SECONDS = 60.0


class SiteExpired(SiteError):
    """A resourceVersion or continue token is too old: list anew. Never leaves the adapter."""

    reason = "Expired"


class SiteNotFound(SiteError):
    """There is no such object. Never leaves the adapter but where a whole API is missing."""

    reason = "NotFound"


class AlreadyThere(SiteError):
    """An object of that name exists. Never leaves the adapter."""

    reason = "AlreadyExists"


def from_status(code: int, status: Mapping[str, Any], headers: Mapping[str, str]) -> SiteError:
    """The error an answer other than 2xx means. `status` is the answer's Status object, empty if it had none.

    Its text becomes one line, so that no server can write lines of its own into our log.
    """
    told = " ".join(str(status.get("message") or "")[: 4 * MAX_MESSAGE].split())[:MAX_MESSAGE]
    message = told or f"HTTP status {code} without an explanation"
    if code in (429, 503) and (code == 429 or "Retry-After" in headers):
        return SiteBusy(message, retry_after=_retry_after(headers))
    if code == 401:
        return SiteUnauthorized(message)
    if code == 403:
        return _forbidden(status, message)
    if code == 404:
        return SiteNamespaceMissing(message) if _details(status).get("kind") == "namespaces" else SiteNotFound(message)
    if code == 409:
        return AlreadyThere(message) if status.get("reason") == "AlreadyExists" else SiteConflict(message)
    if code == 410:
        return SiteExpired(message)
    if 300 <= code < 400:
        return SiteServerError(f"answered with HTTP status {code}; redirects are not followed")
    return SiteServerError(message) if code >= 500 or code < 300 else SiteInvalid(message)


def _details(status: Mapping[str, Any]) -> Mapping[str, Any]:
    details = status.get("details")
    return details if isinstance(details, dict) else {}


def _forbidden(status: Mapping[str, Any], message: str) -> SiteError:
    causes = _details(status).get("causes")
    reasons = [cause.get("reason") for cause in causes if isinstance(cause, dict)] if isinstance(causes, list) else []
    if "NamespaceTerminating" in reasons:
        return SiteNamespaceMissing(message)
    if "exceeded quota" in message:
        return SiteQuotaExceeded(message)
    if "violates PodSecurity" in message:
        return SitePodSecurityDenied(message)
    return SiteForbidden(message)


def _retry_after(headers: Mapping[str, str]) -> float:
    """Seconds; a date is answered as if nothing had been said."""
    text = headers.get("Retry-After", "")
    seconds = float(text) if text.isdecimal() else DEFAULT_RETRY_AFTER_SECONDS
    return min(LONGEST_RETRY_AFTER_SECONDS, seconds)


def from_transport(error: Exception, server: str) -> SiteError:
    """The error a call means that ended without a whole answer."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return SiteTLSFailure(f"{server}: {_certificate_problem(error.certificate_error)}")
    if isinstance(error, aiohttp.ClientSSLError | ssl.SSLError):
        cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
        return SiteTLSFailure(f"{server}: {_ssl_problem(cause)}")
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return SiteDNSFailure(f"{server}: {_os_problem(error.os_error)}")
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return SiteUnreachable(f"{server}: no connection within the time allowed")
    if isinstance(error, TimeoutError):
        return SiteUnreachable(f"{server}: no answer within the time allowed")
    if isinstance(error, aiohttp.ClientConnectorError):
        return SiteTCPFailure(f"{server}: {_os_problem(error.os_error)}")
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError):
        return SiteTCPFailure(f"{server}: the connection broke before the answer was complete")
    if isinstance(error, OSError):
        return SiteTCPFailure(f"{server}: {_os_problem(error)}")
    if isinstance(error, aiohttp.ClientConnectionError):
        return SiteTCPFailure(f"{server}: the connection was closed")
    return SiteServerError(f"{server}: the answer is not HTTP as it should be ({type(error).__name__})")


def _certificate_problem(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    return "its certificate is not accepted"


def _ssl_problem(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return f"TLS failed: {str(reason).replace('_', ' ').lower()}" if reason else "TLS failed"


def _os_problem(error: OSError) -> str:
    if error.errno is not None and error.errno in errno.errorcode:
        return os.strerror(error.errno)
    return error.strerror or type(error).__name__

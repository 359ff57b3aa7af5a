"""What answers and broken connections mean, as API servers word them."""

from typing import Any

import pytest

from diloco_operator.sites.kube_errors import AlreadyThere, SiteExpired, SiteNotFound, from_status
from diloco_operator.sites.site import (
    SiteBusy,
    SiteConflict,
    SiteError,
    SiteForbidden,
    SiteInvalid,
    SiteNamespaceMissing,
    SitePodSecurityDenied,
    SiteQuotaExceeded,
    SiteServerError,
    SiteUnauthorized,
)

QUOTA = 'pods "p" is forbidden: exceeded quota: q, requested: pods=1, used: pods=5, limited: pods=5'
SECURITY = 'pods "p" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true'
TERMINATING = {"details": {"causes": [{"reason": "NamespaceTerminating", "message": "it ends"}]}}

ANSWERS: dict[str, tuple[int, dict[str, Any], type[SiteError], str]] = {
    "unknown token": (401, {"message": "Unauthorized"}, SiteUnauthorized, "Unauthorized"),
    "no right": (403, {"message": 'pods is forbidden: User "x" cannot list'}, SiteForbidden, "Forbidden"),
    "quota": (403, {"message": QUOTA}, SiteQuotaExceeded, "QuotaExceeded"),
    "pod security": (403, {"message": SECURITY}, SitePodSecurityDenied, "PodSecurityDenied"),
    "namespace being deleted": (403, {"message": "no"} | TERMINATING, SiteNamespaceMissing, "NamespaceMissing"),
    "no namespace": (404, {"details": {"kind": "namespaces"}}, SiteNamespaceMissing, "NamespaceMissing"),
    "no object": (404, {"details": {"kind": "pods"}}, SiteNotFound, "NotFound"),
    "no api": (404, {}, SiteNotFound, "NotFound"),
    "there already": (409, {"reason": "AlreadyExists"}, AlreadyThere, "AlreadyExists"),
    "another uid": (409, {"reason": "Conflict"}, SiteConflict, "Conflict"),
    "too old": (410, {"reason": "Expired"}, SiteExpired, "Expired"),
    "bad request": (400, {"reason": "BadRequest"}, SiteInvalid, "Invalid"),
    "bad field": (422, {"reason": "Invalid"}, SiteInvalid, "Invalid"),
    "broken": (500, {}, SiteServerError, "ServerError"),
    "gateway": (502, {}, SiteServerError, "ServerError"),
    "unavailable": (503, {}, SiteServerError, "ServerError"),
    "moved": (301, {}, SiteServerError, "ServerError"),
    "flood": (429, {}, SiteBusy, "TooManyRequests"),
    "details that are none": (404, {"details": None}, SiteNotFound, "NotFound"),
}


@pytest.mark.parametrize(("code", "status", "kind", "reason"), ANSWERS.values(), ids=ANSWERS)
def test_an_answer_becomes_an_error_with_its_reason(
    code: int, status: dict[str, Any], kind: type[SiteError], reason: str
) -> None:
    error = from_status(code, status, {})
    assert type(error) is kind
    assert error.reason == reason
    assert str(error) == status.get("message", str(error)) != ""


@pytest.mark.parametrize(
    ("code", "header", "seconds"),
    [(429, "7", 7.0), (503, "2", 2.0), (429, "86400", 60.0), (429, "Wed, 21 Oct 2026", 1.0), (429, "-3", 1.0)],
)  # fmt: skip
def test_a_site_says_how_long_it_wants_to_be_left_alone(code: int, header: str, seconds: float) -> None:
    error = from_status(code, {"message": "later"}, {"Retry-After": header})
    assert isinstance(error, SiteBusy)
    assert error.retry_after == seconds


def test_a_message_is_one_line() -> None:
    told = "no\n2026-11-30 ERROR diloco_operator: all jobs are lost\r\n\tnever"
    assert str(from_status(400, {"message": told}, {})) == (
        "no 2026-11-30 ERROR diloco_operator: all jobs are lost never"
    )
    assert str(from_status(400, {"message": "\n"}, {})) == "HTTP status 400 without an explanation"


def test_a_message_is_cut() -> None:
    assert len(str(from_status(400, {"message": "x" * 100_000}, {}))) == 1024


@pytest.mark.parametrize(
    "status", [{"details": "text"}, {"details": {"causes": "text"}}, {"details": {"causes": ["text"]}}, {"message": 7}]
)
@pytest.mark.parametrize("code", [403, 404, 409])
def test_a_status_of_odd_shape_is_an_error_all_the_same(code: int, status: dict[str, Any]) -> None:
    assert isinstance(from_status(code, status, {}), SiteError)

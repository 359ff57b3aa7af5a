"""A token says who speaks, cannot be made or changed without the key, and opens only what it was made for."""

import base64

import pytest

from diloco_api import tokens
from diloco_api.tokens import (
    AdminIdentity,
    AdminRole,
    Identity,
    TokenError,
    make_admin_token,
    make_token,
    read_admin_token,
    read_token,
)

KEY = b"0" * 64
UID = "0a1b2c3d-0000-4000-8000-000000000000"


def test_a_token_is_read_back_with_its_key() -> None:
    assert read_token(KEY, make_token(KEY, UID, 3, 7)) == Identity(UID, 3, 7)


@pytest.mark.parametrize("role", AdminRole)
def test_an_admin_token_is_read_back_with_its_key(role: AdminRole) -> None:
    assert read_admin_token(KEY, make_admin_token(KEY, UID, role)) == AdminIdentity(UID, role)


def test_a_token_fits_a_header() -> None:
    token = make_token(KEY, UID, 255, 2**31)
    assert token.isascii()
    assert len(token) < 512
    assert not set(token) & set(" \r\n,;=")


def test_the_key_of_another_job_does_not_open_it() -> None:
    with pytest.raises(TokenError, match="not made with this job's key"):
        read_token(b"1" * 64, make_token(KEY, UID, 0, 1))


def test_a_learners_token_is_no_admin_token_and_the_other_way_round() -> None:
    with pytest.raises(TokenError, match="not an Admin token"):
        read_admin_token(KEY, make_token(KEY, UID, 0, 1))
    with pytest.raises(TokenError, match="not a Learner's token"):
        read_token(KEY, make_admin_token(KEY, UID, AdminRole.OPERATOR))


@pytest.mark.parametrize("claims", [{"kind": "admin"}, {"index": "0"}, {"job": 1}], ids=lambda value: str(value))
def test_signed_claims_of_another_shape_are_no_learners_token(claims: dict[str, str | int]) -> None:
    token = tokens._sign(KEY, {"kind": "learner", "job": UID, "index": 0, "incarnation": 1, **claims})
    with pytest.raises(TokenError, match="not a Learner's token"):
        read_token(KEY, token)


def test_changed_claims_are_noticed() -> None:
    version, body, mac = make_token(KEY, UID, 0, 1).split(".")
    claims = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)).replace(b'"incarnation":1', b'"incarnation":2')
    forged = base64.urlsafe_b64encode(claims).rstrip(b"=").decode()

    with pytest.raises(TokenError, match="not made with this job's key"):
        read_token(KEY, f"{version}.{forged}.{mac}")


@pytest.mark.parametrize(
    "change",
    [
        lambda token: "",
        lambda token: token[:-1],
        lambda token: token + "A",
        lambda token: token.replace("v1.", "v2.", 1),
        lambda token: token.replace(".", ""),
        lambda token: token + ".x",
        lambda token: "é" + token,
        lambda token: token + "é",
        lambda token: "v1.." + token.split(".")[2],
        lambda token: "v1." + "A" * 5000 + ".x",
    ],
    ids=["empty", "cut", "longer", "version", "no dots", "part more", "accent", "accent in mac", "no claims", "huge"],
)
def test_a_broken_token_is_refused_and_not_quoted(change: "object") -> None:
    token = change(make_token(KEY, UID, 0, 1))  # type: ignore[operator]
    with pytest.raises(TokenError) as caught:
        read_token(KEY, token)
    assert not token or token not in str(caught.value)


def test_a_short_key_is_an_error_of_the_caller() -> None:
    with pytest.raises(ValueError, match="at least 32 bytes"):
        make_token(b"secret", UID, 0, 1)

"""Bearer tokens of one job: who may speak as which incarnation, and who may ask `Admin`.

A token is `v1.<claims>.<HMAC-SHA256>`, both parts base64url without padding; the claims are readable, the key stays
with operator and Synchronizer. The MAC covers the claims, whose kind keeps a Learner's token from opening `Admin`.
Tokens do not expire: a newer incarnation fences the older ones, and the key dies with the job. No key is made here.
"""

import base64
import binascii
import hmac
import json
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256

_VERSION = "v1"
_MIN_KEY_BYTES = 32
_MAX_TOKEN_CHARS = 1024


class AdminRole(StrEnum):
    """What a caller of `Admin` may do."""

    OPERATOR = "operator"  # everything
    READER = "reader"  # progress only


class TokenError(ValueError):
    """Not a token made with this key. The text never quotes the token."""


@dataclass(frozen=True, slots=True)
class Identity:
    """One incarnation of one Learner index of one job."""

    job_uid: str
    index: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class AdminIdentity:
    """A caller of `Admin` of one job."""

    job_uid: str
    role: AdminRole


def make_token(key: bytes, job_uid: str, index: int, incarnation: int) -> str:
    """The token of one incarnation. `key` is the content of the credentials file `key`, taken as it is, >= 32 bytes."""
    return _sign(key, {"kind": "learner", "job": job_uid, "index": index, "incarnation": incarnation})


def read_token(key: bytes, token: str) -> Identity:
    """Whose token this is; raises TokenError when it was not made by `make_token` with this key."""
    match _verify(key, token):
        case {"kind": "learner", "job": str(job), "index": int(index), "incarnation": int(incarnation)}:
            return Identity(job, index, incarnation)
    raise TokenError("not a Learner's token")


def make_admin_token(key: bytes, job_uid: str, role: AdminRole) -> str:
    """A token for the `Admin` endpoint of one job."""
    return _sign(key, {"kind": "admin", "job": job_uid, "role": role.value})


def read_admin_token(key: bytes, token: str) -> AdminIdentity:
    """Whose token this is; raises TokenError when it was not made by `make_admin_token` with this key."""
    match _verify(key, token):
        case {"kind": "admin", "job": str(job), "role": str(role)} if role in set(AdminRole):
            return AdminIdentity(job, AdminRole(role))
    raise TokenError("not an Admin token")


def _sign(key: bytes, claims: dict[str, str | int]) -> str:
    body = _encode(json.dumps(claims, sort_keys=True, separators=(",", ":")).encode())
    return f"{_VERSION}.{body}.{_encode(_mac(key, body))}"


def _verify(key: bytes, token: str) -> object:
    """The claims; everything but the comparison of MACs is done on authenticated bytes."""
    parts = token.split(".")
    if len(token) > _MAX_TOKEN_CHARS or len(parts) != 3 or parts[0] != _VERSION or not token.isascii():
        raise TokenError("not a token of this version")
    _, body, mac = parts
    if not hmac.compare_digest(_encode(_mac(key, body)), mac):
        raise TokenError("the token was not made with this job's key")
    try:
        return json.loads(_decode(body))
    except (binascii.Error, ValueError) as error:
        raise TokenError("the token's claims cannot be read") from error


def _mac(key: bytes, body: str) -> bytes:
    if len(key) < _MIN_KEY_BYTES:
        raise ValueError(f"a token key has at least {_MIN_KEY_BYTES} bytes, this one {len(key)}")
    return hmac.new(key, f"{_VERSION}.{body}".encode(), sha256).digest()


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))

"""The certificates and the token key of one job, each a function of the job's root key and of nothing stored.

Keys are derived by HKDF, signatures are deterministic (RFC 6979), times are whole periods since the job's start: the
same arguments give the same bytes in every pass and every operator, so hashes of Secrets change only with a renewal.
Time runs in generations of 60 days. Each has a CA and leaves of its own, leaves outlive theirs by 30 days, and bundles
hold the CA before and after the present one: ends one generation apart still trust each other.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from diloco_api import names

RENEWAL_SECONDS = 60 * 86400
LEAF_SECONDS = 90 * 86400
SKEW_SECONDS = 86400
"""Certificates hold from this long before they are first used: clocks of sites differ."""
TOKEN_KEY_BYTES = 32
_MIN_ROOT_BYTES = 32
_ORDER = int("ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551", 16)
"""Of P-256: private keys are 1 to this, exclusive."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A certificate and its private key, both PEM."""

    certificate: str
    key: str = field(repr=False)


def token_key(root: bytes, job_uid: str) -> bytes:
    """The key of the job's tokens, all that the Synchronizer is given of `root`."""
    return _derived(root, job_uid, "tokens", TOKEN_KEY_BYTES)


def generation(started: float, now: float) -> int:
    """Which generation of certificates is in use, from 0; an instant before the start counts as the start."""
    return max(0, int((now - started) // RENEWAL_SECONDS))


def ca_bundle(root: bytes, job_uid: str, started: float, now: float) -> str:
    """CA certificates of the previous, the present and the next generation; generation 0 has no previous one."""
    present = generation(started, now)
    return "".join(
        _pem(_ca(root, job_uid, int(started), number)[0]) for number in range(max(0, present - 1), present + 2)
    )


def server_leaf(root: bytes, job_uid: str, started: float, now: float) -> Leaf:
    """The Synchronizer's certificate, for the job's fixed name."""
    return _leaf(root, job_uid, int(started), generation(started, now), "synchronizer", ExtendedKeyUsageOID.SERVER_AUTH)


def learner_leaf(root: bytes, job_uid: str, index: int, incarnation: int, started: float, now: float) -> Leaf:
    """The certificate of one incarnation of one Learner."""
    who = names.learner_identity(index, incarnation)
    return _leaf(root, job_uid, int(started), generation(started, now), who, ExtendedKeyUsageOID.CLIENT_AUTH)


@lru_cache(maxsize=4096)
def _leaf(root: bytes, job_uid: str, started: int, number: int, who: str, usage: ObjectIdentifier) -> Leaf:
    issuer, issuer_key = _ca(root, job_uid, started, number)
    key = _private_key(root, job_uid, f"{who} {number}")
    subject = _name(who, job_uid)
    builder = (
        _certificate(_serial(job_uid, f"{who} {number}"), subject, issuer.subject, key, issuer_key)
        .not_valid_before(_begin(started, number))
        .not_valid_after(_end(started, number))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    )
    if usage == ExtendedKeyUsageOID.SERVER_AUTH:
        alternative = x509.SubjectAlternativeName([x509.DNSName(names.server_name(job_uid))])
        builder = builder.add_extension(alternative, critical=False)
    certificate = builder.sign(issuer_key, SHA256(), ecdsa_deterministic=True)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Leaf(_pem(certificate), private.decode())


@lru_cache(maxsize=256)
def _ca(root: bytes, job_uid: str, started: int, number: int) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Holds as long as the leaves it signs."""
    what = f"CA {number}"
    key = _private_key(root, job_uid, what)
    name = _name(what, job_uid)
    builder = (
        _certificate(_serial(job_uid, what), name, name, key, key)
        .not_valid_before(_begin(started, number))
        .not_valid_after(_end(started, number))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(key_cert_sign=True), critical=True)
    )
    return builder.sign(key, SHA256(), ecdsa_deterministic=True), key


def _certificate(
    serial: int,
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
) -> x509.CertificateBuilder:
    """What CA and leaf have in common."""
    public, issuer_public = key.public_key(), issuer_key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(serial)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_public), critical=False)
    )


def _key_usage(*, digital_signature: bool = False, key_cert_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str, job_uid: str) -> x509.Name:
    """The organization tells people whose certificate it is; it is not what is verified."""
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, f"diloco {job_uid}"[:64]),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _private_key(root: bytes, job_uid: str, what: str) -> ec.EllipticCurvePrivateKey:
    """48 bytes for a 32-byte order: the bias of the remainder is below 2^-128."""
    secret = int.from_bytes(_derived(root, job_uid, f"key of {what}", 48))
    return ec.derive_private_key(secret % (_ORDER - 1) + 1, ec.SECP256R1())


def _derived(root: bytes, job_uid: str, what: str, length: int) -> bytes:
    if len(root) < _MIN_ROOT_BYTES:
        raise ValueError(f"a job's root key has at least {_MIN_ROOT_BYTES} bytes, this one {len(root)}")
    info = "\0".join(("diloco.dev", "v1", job_uid, what)).encode()
    return HKDF(SHA256(), length, salt=None, info=info).derive(root)


def _serial(job_uid: str, what: str) -> int:
    """Positive, of 16 bytes; names one certificate of the job."""
    return int.from_bytes(sha256(f"{job_uid}/{what}".encode()).digest()[:16]) | 1


def _begin(started: int, number: int) -> datetime:
    return datetime.fromtimestamp(started + number * RENEWAL_SECONDS - SKEW_SECONDS, UTC)


def _end(started: int, number: int) -> datetime:
    return datetime.fromtimestamp(started + number * RENEWAL_SECONDS + LEAF_SECONDS, UTC)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()

"""Certificates and keys in PEM, checked before they are used. Nothing is asked for and no file is read."""

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes, PublicKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)


class BadPEM(Exception):
    """A certificate or key cannot be used; the text says which and shows nothing of it."""


def certificates(pem: bytes, what: str = "certificate-authority-data") -> str:
    """The certificates of a PEM text, and nothing else that may be in it."""
    try:
        found = x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise BadPEM(f"{what} holds no readable PEM certificate") from None
    return "".join(certificate.public_bytes(Encoding.PEM).decode() for certificate in found)


def client_identity(certificate: bytes, key: bytes) -> tuple[str, str]:
    """Certificate chain and key as PEM; the key is unencrypted and belongs to the first certificate."""
    chain = certificates(certificate, "client-certificate-data")
    try:
        private = load_pem_private_key(key, password=None)
    except TypeError:
        raise BadPEM("client-key-data is encrypted; nobody is asked for a password") from None
    except (ValueError, UnsupportedAlgorithm):
        raise BadPEM("client-key-data is no readable PEM private key") from None
    leaf = x509.load_pem_x509_certificate(chain.encode())
    if _public(leaf.public_key()) != _public(private.public_key()):
        raise BadPEM("client-key-data is not the key of client-certificate-data")
    return chain, private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def _public(key: CertificatePublicKeyTypes | PublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)

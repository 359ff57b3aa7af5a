"""A certificate authority for tests, and what it signs, all PEM."""

import ipaddress
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


class Authority:
    """`Authority("ours")`: a self-signed CA; `pem` is what clients trust."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        builder = _builder(self._name, self._name, self._key, expired=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.pem = builder.sign(self._key, SHA256()).public_bytes(Encoding.PEM).decode()

    def server(self, *hosts: str, expired: bool = False) -> tuple[str, str]:
        """Certificate and key of a server that may call itself by these addresses and names."""
        names = [x509.IPAddress(ipaddress.ip_address(h)) if h[0].isdigit() else x509.DNSName(h) for h in hosts]
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(self._name, _name("server"), key, expired=expired)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, SHA256()).public_bytes(Encoding.PEM).decode(), _pem(key)

    def client(self, name: str, password: str = "") -> tuple[str, str]:
        """Certificate and key of a user; the key encrypted when there is a password."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(self._name, _name(name), key, expired=False)
        return builder.sign(self._key, SHA256()).public_bytes(Encoding.PEM).decode(), _pem(key, password)


def _builder(
    issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, expired: bool
) -> x509.CertificateBuilder:
    now = datetime.now(UTC) - (2 * DAY if expired else 0 * DAY)
    return (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _pem(key: ec.EllipticCurvePrivateKey, password: str = "") -> str:
    encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()

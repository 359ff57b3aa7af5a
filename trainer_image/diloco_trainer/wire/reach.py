"""Why the Synchronizer cannot be reached, found out by a plain connection to each address: gRPC says UNAVAILABLE only.

Names the first thing that fails: DNS, TCP, TLS. Used while a Learner waits to be admitted; decides when waiting is in
vain because the certificates of the two ends do not fit.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.request import getproxies, proxy_bypass

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256

from diloco_api.names import FILE_CA
from diloco_trainer.wire.errors import CertificateRefused, SynchronizerUnavailable, WireError
from diloco_trainer.wire.link import read_addresses
from diloco_trainer.wire.protocol import split_address
from diloco_trainer.wire.tls import ClientTls

PROBE_SECONDS = 5.0
"""For each of the steps of a probe."""
VERDICTS = 2
"""Rounds of probes, one after the other, that must find the certificates unfit before it is believed: a process that
ends in the middle of a handshake looks like one that refuses it."""
_NOT_YET_VALID, _EXPIRED, _WRONG_NAME = 9, 10, 62
"""Codes of X.509 verification, as OpenSSL numbers them."""

logger = logging.getLogger(__name__)


class Failure(StrEnum):
    """First words of what a Learner says about a Synchronizer it cannot reach."""

    DNS = "DNSFailure"
    TCP = "TCPFailure"
    TLS = "TLSFailure"
    AUTH = "AuthFailure"


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with one address. `unfit`: the certificates, which waiting does not mend."""

    failure: Failure
    message: str
    unfit: bool = False

    def __str__(self) -> str:
        return f"{self.failure.value}: {self.message}"


class Reachability:
    """Explains the failed Joins of one Learner."""

    def __init__(self, addresses: Path, tls: ClientTls) -> None:
        self._addresses = addresses
        self._tls = tls
        self._failures = 0
        self._unfit = 0
        self._told = ""
        self.admitted = False
        """The two ends have once trusted each other: what does not fit now is a renewal under way."""

    async def explain(self, error: SynchronizerUnavailable) -> WireError:
        """`error` with its reason. CertificateRefused when there is no use in trying again.

        The first failure explains itself: whoever starts together with the Synchronizer comes too early.
        """
        self._failures += 1
        if self._failures == 1:
            return error
        try:
            addresses = read_addresses(self._addresses)
        except SynchronizerUnavailable as unreadable:
            return unreadable
        findings = await asyncio.gather(*(asyncio.to_thread(probe, address, self._tls) for address in addresses))
        return self._verdict(error, [finding for finding in findings if finding is not None], len(addresses))

    def _verdict(self, error: SynchronizerUnavailable, findings: Sequence[Finding], num_addresses: int) -> WireError:
        """Unfit: no address leads to the right Synchronizer, and at least one to a wrong one."""
        unfit = [finding for finding in findings if finding.unfit]
        self._unfit = self._unfit + 1 if unfit and len(findings) == num_addresses else 0
        if not findings:
            return error
        text = str((unfit or findings)[0])
        if self._unfit >= VERDICTS and not self.admitted:
            return CertificateRefused(text)
        if text != self._told:
            logger.warning("%s", text)
            self._told = text
        return SynchronizerUnavailable(text)


def probe(address: str, tls: ClientTls) -> Finding | None:
    """Connect to `address` and take the first byte the Synchronizer says; None when nothing is wrong.

    Also None where connections go through a proxy, whose errors gRPC knows better.
    """
    host, port = split_address(address)
    host = host.strip("[]")
    if _is_proxied(host):
        return None
    try:
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return Finding(Failure.DNS, f"{address}: {error.strerror}")
    try:
        connection = socket.create_connection((host, port), PROBE_SECONDS)
    except OSError as error:
        return Finding(Failure.TCP, f"{address}: {error.strerror or 'no answer'}")
    with connection:
        return _handshake(connection, address, tls)


def _handshake(connection: socket.socket, address: str, tls: ClientTls) -> Finding | None:
    try:
        context = tls.own.client_context()
        with context.wrap_socket(connection, server_hostname=tls.server_name) as secured:
            if _is_welcome(secured):
                return None
    except ssl.SSLCertVerificationError as error:
        return Finding(Failure.TLS, f"{address}: {_why_unfit(error, tls)}; {_shown(address)}", unfit=True)
    except ssl.SSLError as error:
        return Finding(Failure.TLS, f"{address}: no TLS server answers there: {error.reason or error.strerror}")
    except OSError as error:
        return Finding(Failure.TLS, f"{address}: the handshake came to no end: {error.strerror or error}")
    try:
        own = _described(x509.load_pem_x509_certificate(tls.own.read().certificate))
    except (OSError, ValueError) as error:
        own = f"its own certificate cannot be read: {error}"
    advice = "it has ended, or its Secret is not of this job"
    refused = f"{address}: the Synchronizer refuses this Learner's certificate: {advice}; {own}"
    return Finding(Failure.TLS, refused, unfit=True)


def _is_welcome(secured: ssl.SSLSocket) -> bool:
    """A gRPC server speaks first. In TLS 1.3 it refuses a client's certificate by ending what the client takes for a
    finished handshake."""
    try:
        return bool(secured.recv(1))
    except ConnectionError:
        return False


def _why_unfit(error: ssl.SSLCertVerificationError, tls: ClientTls) -> str:
    message = error.verify_message
    if error.verify_code == _WRONG_NAME:
        return f"the certificate there is not for {tls.server_name}: the address leads to another Synchronizer"
    if error.verify_code in (_NOT_YET_VALID, _EXPIRED):
        return f"{message}: the Synchronizer's Secret was not renewed, or a clock is wrong"
    ca = tls.own.folder / FILE_CA
    return f"{message}: the address leads to something else than this job's Synchronizer, or {ca} is of another job"


def _shown(address: str) -> str:
    """The certificate at `address`, taken without trusting it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    host, port = split_address(address)
    try:
        with (
            socket.create_connection((host.strip("[]"), port), PROBE_SECONDS) as connection,
            context.wrap_socket(connection) as secured,
        ):
            return _described(x509.load_der_x509_certificate(secured.getpeercert(binary_form=True) or b""))
    except (OSError, ValueError) as error:
        return f"its certificate cannot be had a second time: {error}"


def _described(certificate: x509.Certificate) -> str:
    subject, issuer = certificate.subject.rfc4514_string(), certificate.issuer.rfc4514_string()
    fingerprint = certificate.fingerprint(SHA256()).hex(":").upper()
    until = certificate.not_valid_after_utc.date()
    return f"subject {subject}, issuer {issuer}, valid until {until}, sha256 fingerprint {fingerprint}"


def _is_proxied(host: str) -> bool:
    return bool(getproxies().keys() & {"https", "http", "grpc"}) and not proxy_bypass(host)

"""Why the Synchronizer cannot be reached, found out by a plain connection to each address: gRPC says UNAVAILABLE only.

Names the first thing that fails: DNS, TCP, TLS. Used while a Learner waits to be admitted, and when its heartbeats
fail; decides when waiting is in vain because the certificates of the two ends do not fit.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.request import getproxies, proxy_bypass

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256

from diloco_api.names import FILE_CA
from diloco_api.reach import REACHED_LINE, Failure, Unreached, unreached_line
from diloco_trainer.wire.errors import CertificateRefused, SynchronizerUnavailable, WireError
from diloco_trainer.wire.link import read_addresses
from diloco_trainer.wire.protocol import split_address
from diloco_trainer.wire.tls import ClientTls

PROBE_SECONDS = 5.0
"""For each of the steps of a probe."""
VERDICTS = 2
"""Rounds of probes, one after the other, that must find the certificates unfit before it is believed: a process that
ends in the middle of a handshake looks like one that refuses it."""
_SHOWN_BYTES = 8
"""Of a fingerprint: the whole would take a third of a status message."""
_NOT_YET_VALID, _EXPIRED, _WRONG_NAME = 9, 10, 62
"""Codes of X.509 verification, as OpenSSL numbers them."""

_Address = tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Finding(Unreached):
    """What is wrong with one address. `unfit`: the certificates, which waiting does not mend."""

    unfit: bool = False


class Reachability:
    """Explains the failed Joins and heartbeats of one Learner, and says in its log what it finds."""

    def __init__(self, addresses: Path, tls: ClientTls) -> None:
        self._addresses = addresses
        self._tls = tls
        self._failures = 0
        self._unfit = 0
        self._told = ""
        self._threads = ThreadPoolExecutor(thread_name_prefix="reach")
        """Own ones: the end of an event loop waits for its common ones, and an address may take its time."""
        self._looking: asyncio.Task[None] | None = None
        self._admitted = False
        """The two ends have once trusted each other: what does not fit now is a renewal under way."""

    async def explain(self, error: SynchronizerUnavailable) -> WireError:
        """`error` with its reason. CertificateRefused when there is no use in trying again.

        The first failure explains itself: whoever starts together with the Synchronizer comes too early.
        """
        self._failures += 1
        if self._failures == 1:
            return error
        try:
            findings, num_addresses = await self._look()
        except SynchronizerUnavailable as unreadable:
            return unreadable
        return self._verdict(error, findings, num_addresses)

    def reached(self) -> None:
        """The Synchronizer has answered."""
        self._failures, self._unfit, self._admitted = 0, 0, True
        if self._told:
            logger.info(REACHED_LINE)
            self._told = ""

    def missed(self) -> None:
        """A Learner that was admitted is not answered: find out why, beside whatever it does."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._say_why(), name="look for the Synchronizer")

    async def close(self) -> None:
        """End what is under way."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _say_why(self) -> None:
        try:
            findings, _ = await self._look()
        except SynchronizerUnavailable:
            return  # no address to look at, which the link says itself
        if findings:
            self._tell(str(findings[0]))

    async def _look(self) -> tuple[list[Finding], int]:
        """(what is wrong with addresses, how many addresses there are). Raises SynchronizerUnavailable."""
        addresses = read_addresses(self._addresses)
        loop = asyncio.get_running_loop()
        probes = [loop.run_in_executor(self._threads, probe, address, self._tls) for address in addresses]
        findings = await asyncio.gather(*probes)
        return [finding for finding in findings if finding is not None], len(addresses)

    def _tell(self, text: str) -> None:
        if text != self._told:
            logger.warning("%s", unreached_line(text))
            self._told = text

    def _verdict(self, error: SynchronizerUnavailable, findings: Sequence[Finding], num_addresses: int) -> WireError:
        """Unfit: no address leads to the right Synchronizer, and at least one to a wrong one."""
        unfit = [finding for finding in findings if finding.unfit]
        self._unfit = self._unfit + 1 if unfit and len(findings) == num_addresses else 0
        if not findings:
            return error
        text = str((unfit or findings)[0])
        if self._unfit >= VERDICTS and not self._admitted:
            return CertificateRefused(text)
        self._tell(text)
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
        addresses = _addresses(host, port)
    except OSError as error:
        return Finding(Failure.DNS, f"{address}: {error.strerror}")
    try:
        context = tls.own.client_context()
    except OSError as error:
        return Finding(Failure.TLS, f"{address}: own certificates cannot be used: {error.strerror or error}")
    try:
        connection = _connected(context, addresses, tls.server_name)
    except OSError as error:
        return Finding(Failure.TCP, f"{address}: {error.strerror or 'no answer'}")
    with connection:
        return _handshake(connection, address, tls)


def _addresses(host: str, port: int) -> list[_Address]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, where) for family, _, _, _, where in found]


def _connected(context: ssl.SSLContext, addresses: list[_Address], server_name: str | None) -> ssl.SSLSocket:
    """A connection on which nothing of TLS was said yet, to the first of `addresses` that takes one; raises OSError."""
    problem = OSError("it has no address")
    for address in addresses:
        try:
            return _connection(context, address, server_name)
        except OSError as error:
            problem = error
    raise problem


def _connection(context: ssl.SSLContext, address: _Address, server_name: str | None) -> ssl.SSLSocket:
    """Wrapped before it is made: Python never closes one it is given when the other end has gone meanwhile."""
    family, where = address
    plain = socket.socket(family, socket.SOCK_STREAM)
    secured = context.wrap_socket(plain, server_hostname=server_name, do_handshake_on_connect=False)
    try:
        secured.settimeout(PROBE_SECONDS)
        secured.connect(where)
    except OSError:
        secured.close()
        raise
    return secured


def _handshake(secured: ssl.SSLSocket, address: str, tls: ClientTls) -> Finding | None:
    try:
        secured.do_handshake()
        if _is_welcome(secured):
            return None
    except ssl.SSLCertVerificationError as error:
        why, advice = _unfit(error, tls)
        return Finding(Failure.TLS, f"{address}: {why}: {_shown(address)}; {advice}", unfit=True)
    except ssl.SSLError as error:
        return Finding(Failure.TLS, f"{address}: no TLS server answers there: {error.reason or error.strerror}")
    except OSError as error:
        return Finding(Failure.TLS, f"{address}: the handshake came to no end: {error.strerror or error}")
    try:
        own = _described(x509.load_pem_x509_certificate(tls.own.read().certificate))
    except (OSError, ValueError) as error:
        own = f"its own certificate cannot be read: {error}"
    refused = f"{address}: the Synchronizer refuses this Learner's certificate: {own}"
    return Finding(Failure.TLS, f"{refused}; it has ended, or its Secret is not of this job", unfit=True)


def _is_welcome(secured: ssl.SSLSocket) -> bool:
    """A gRPC server speaks first. In TLS 1.3 it refuses a client's certificate by ending what the client takes for a
    finished handshake."""
    try:
        return bool(secured.recv(1))
    except ConnectionError:
        return False


def _unfit(error: ssl.SSLCertVerificationError, tls: ClientTls) -> tuple[str, str]:
    """(what is wrong, what that means); between them stands whose certificate it is, as a status has little room."""
    if error.verify_code == _WRONG_NAME:
        return "it is another one's", f"not for {tls.server_name}: the address leads to another Synchronizer"
    if error.verify_code in (_NOT_YET_VALID, _EXPIRED):
        return error.verify_message, "the Synchronizer's Secret was not renewed, or a clock is wrong"
    ca = tls.own.folder / FILE_CA
    advice = f"the address leads to something else than this job's Synchronizer, or {ca} is of another job"
    return error.verify_message, advice


def _shown(address: str) -> str:
    """The certificate at `address`, taken without trusting it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    host, port = split_address(address)
    try:
        with _connected(context, _addresses(host.strip("[]"), port), None) as secured:
            secured.do_handshake()
            return _described(x509.load_der_x509_certificate(secured.getpeercert(binary_form=True) or b""))
    except (OSError, ValueError) as error:
        return f"its certificate cannot be had a second time: {error}"


def _described(certificate: x509.Certificate) -> str:
    """What people compare, the shortest first."""
    subject, issuer = certificate.subject.rfc4514_string(), certificate.issuer.rfc4514_string()
    fingerprint = certificate.fingerprint(SHA256())[:_SHOWN_BYTES].hex(":").upper()
    until = certificate.not_valid_after_utc.date()
    return f"sha256 {fingerprint}..., subject {subject}, issuer {issuer}, until {until}"


def _is_proxied(host: str) -> bool:
    return bool(getproxies().keys() & {"https", "http", "grpc"}) and not proxy_bypass(host)

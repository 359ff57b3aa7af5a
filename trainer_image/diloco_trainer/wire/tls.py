"""Mutual TLS between the two ends: certificates read from a credentials folder, again whenever they are needed.

A renewed Secret takes effect with the next handshake, without a restart of either end; connections that stand are left
alone. The server's name is fixed for the job and verified whatever the address. Makes no certificates.
"""

import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from diloco_api.errors import SpecError
from diloco_api.names import FILE_CA, FILE_TLS_CERTIFICATE, FILE_TLS_KEY
from diloco_trainer.wire.errors import SynchronizerUnavailable

_COMMON_NAME = "x509_common_name"
_ALPN = ["h2"]


@dataclass(frozen=True, slots=True)
class Material:
    """One process's own certificate, its key, and whom it trusts: all PEM."""

    certificate: bytes
    key: bytes = field(repr=False)
    ca: bytes


@dataclass(frozen=True, slots=True)
class Credentials:
    """The folder of one process's TLS files."""

    folder: Path

    def read(self) -> Material:
        """All three files as they were at one instant; raises OSError."""
        folder = self._now()
        return Material(*((folder / name).read_bytes() for name in (FILE_TLS_CERTIFICATE, FILE_TLS_KEY, FILE_CA)))

    def check(self) -> None:
        """Raises SpecError naming what is missing or no certificate; for the start of a process."""
        try:
            self.read()
            self.client_context()
        except ssl.SSLError as error:
            why = error.reason or error.strerror
            raise SpecError(f"{self.folder}: certificate, key and CA do not make TLS credentials: {why}") from error
        except OSError as error:
            raise SpecError(f"{error.filename}: cannot be read: {error.strerror}") from error

    def client_context(self) -> ssl.SSLContext:
        """A client of plain TLS with these files; raises OSError, of which ssl.SSLError is one."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.set_alpn_protocols(_ALPN)
        context.load_verify_locations(self._now() / FILE_CA)
        self._load(context)
        return context

    def admin_context(self) -> ssl.SSLContext:
        """For an HTTPS server that asks for no certificate: its callers have bearer tokens."""
        context = self._server_context()
        in_use = [(self.read(), context)]

        def renew(connection: ssl.SSLObject, name: str | None, offered: ssl.SSLContext) -> None:
            try:
                material = self.read()
                if material != in_use[0][0]:
                    in_use[0] = (material, self._server_context())
            except OSError:
                pass  # a renewal under way; what was in use still is
            connection.context = in_use[0][1]

        context.sni_callback = renew
        return context

    def _server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        folder = self._now()
        context.load_cert_chain(folder / FILE_TLS_CERTIFICATE, folder / FILE_TLS_KEY)

    def _now(self) -> Path:
        """A mounted Secret is a folder of links into a folder that is replaced as a whole: where they lead now."""
        return (self.folder / FILE_TLS_CERTIFICATE).resolve().parent


@dataclass(frozen=True, slots=True)
class ClientTls:
    """What a Learner needs to connect: its files, and the name it expects of the Synchronizer."""

    own: Credentials
    server_name: str

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """As of now; SynchronizerUnavailable while they cannot be read."""
        try:
            material = self.own.read()
        except OSError as error:
            raise SynchronizerUnavailable(f"{error.filename}: cannot be read: {error.strerror}") from error
        return grpc.ssl_channel_credentials(material.ca, material.key, material.certificate)

    def channel_options(self) -> list[tuple[str, str]]:
        return [("grpc.ssl_target_name_override", self.server_name)]


def server_credentials(own: Credentials) -> grpc.ServerCredentials:
    """Demands a certificate of every client; asks for the files again at every handshake. Raises OSError."""
    in_use = [own.read()]

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC's own threads; None keeps what is in use."""
        try:
            material = own.read()
        except OSError:
            return None  # a renewal under way
        if material == in_use[0]:
            return None
        in_use[0] = material
        return _configuration(material)

    # The stubs forget that the function may return None.
    return grpc.dynamic_ssl_server_credentials(_configuration(in_use[0]), renewed, True)  # type: ignore[arg-type]


def common_name(auth_context: Mapping[str, Iterable[bytes]]) -> str:
    """Of the caller's certificate; empty when it has none, or more than one."""
    values = list(auth_context.get(_COMMON_NAME) or ())
    return values[0].decode("utf-8", "replace") if len(values) == 1 else ""


def _configuration(material: Material) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(material.key, material.certificate)], material.ca)

"""Credentials of one cluster, and the strict model of the kubeconfigs they are taken from.

A kubeconfig comes from whoever may write a Secret, so nothing in it is ever run, and no file it names is read: what
would need that is refused by name. Only the entries its current context selects are judged. Anything else a client
would honour (proxies, impersonation, disabled verification, passwords) is refused as well.
"""

import base64
import binascii
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from diloco_operator.sites.server_url import check_server
from diloco_operator.sites.x509 import BadPEM, certificates, client_identity

MAX_BYTES = 128 * 1024
MAX_MARKS = 10_000
MAX_DEPTH = 32
"""Of flow collections. Reading YAML in Python takes long where there are many marks or where they nest."""
MAX_TOKEN_LENGTH = 16 * 1024
SERVICE_ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"

REFUSED_IN_CLUSTER: Mapping[str, tuple[str, str]] = {
    "insecure-skip-tls-verify": ("InsecureTLS", "the server must be verified by certificate-authority-data"),
    "certificate-authority": ("CertificateAuthorityFile", "no file is read; use certificate-authority-data"),
    "proxy-url": ("ProxyURL", "proxies are not used"),
    "tls-server-name": ("TLSServerName", "the server is verified under the name it is called by"),
}
REFUSED_IN_USER: Mapping[str, tuple[str, str]] = {
    "exec": ("ExecPlugin", "no program is run; use a token or client certificate data"),
    "auth-provider": ("AuthProvider", "no plug-in is run; use a token or client certificate data"),
    "tokenFile": ("TokenFile", "no file is read; use token"),
    "client-certificate": ("ClientCertificateFile", "no file is read; use client-certificate-data"),
    "client-key": ("ClientKeyFile", "no file is read; use client-key-data"),
    "username": ("BasicAuth", "passwords are not used; use a token or client certificate data"),
    "password": ("BasicAuth", "passwords are not used; use a token or client certificate data"),
    "as": ("Impersonation", "impersonation is not used"),
    "as-uid": ("Impersonation", "impersonation is not used"),
    "as-groups": ("Impersonation", "impersonation is not used"),
    "as-user-extra": ("Impersonation", "impersonation is not used"),
}
"""Key -> (reason, what helps). A key whose value is null, false or empty counts as absent."""


class KubeconfigRefused(Exception):
    """A kubeconfig is not used. `reason` is CamelCase; the text names the entry and never shows a value of it."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class ClusterCredentials:
    """How to reach one cluster and who to be there. Exactly one of token, token_file, client certificate."""

    server: str
    """https URL without a trailing slash."""
    ca_pem: str = field(repr=False)
    """The only authorities trusted."""
    token: str = field(default="", repr=False)
    token_file: str = ""
    """A projected token, read before every call. Only ever our own pod's."""
    client_cert_pem: str = field(default="", repr=False)
    client_key_pem: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        given = [self.token, self.token_file, self.client_cert_pem and self.client_key_pem]
        if sum(map(bool, given)) != 1 or bool(self.client_cert_pem) != bool(self.client_key_pem):
            raise ValueError("exactly one of token, token_file and client certificate with key")


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    extensions: Any = None
    """Of other programs; never looked into."""


class _Cluster(_Entry):
    server: str = Field(strict=True)
    ca: str = Field("", alias="certificate-authority-data", strict=True)
    disable_compression: bool = Field(False, alias="disable-compression")


class _User(_Entry):
    token: str = Field("", strict=True)
    certificate: str = Field("", alias="client-certificate-data", strict=True)
    key: str = Field("", alias="client-key-data", strict=True)


class _Context(_Entry):
    cluster: str = Field(strict=True)
    user: str = Field(strict=True)
    namespace: str = ""
    """Not used: the job says the namespace."""


_T = TypeVar("_T", bound=_Entry)


def parse_kubeconfig(text: bytes | str) -> ClusterCredentials:
    """The credentials its current context selects. Raises KubeconfigRefused."""
    document = _load(text)
    contexts = _named(document, "contexts", "context")
    current = document.get("current-context") or ""
    if not current and len(contexts) != 1:
        raise KubeconfigRefused("NoCurrentContext", f"current-context is missing, contexts: {len(contexts)}")
    selected = str(current or next(iter(contexts)))
    context = _model(_Context, _pick(contexts, "context", selected), f"context {selected}")
    cluster_entry = _pick(_named(document, "clusters", "cluster"), "cluster", context.cluster)
    user_entry = _pick(_named(document, "users", "user"), "user", context.user)
    cluster = _model(_Cluster, _cleared(cluster_entry, REFUSED_IN_CLUSTER, "cluster"), f"cluster {context.cluster}")
    user = _model(_User, _cleared(user_entry, REFUSED_IN_USER, "user"), f"user {context.user}")
    return _credentials(cluster, user)


def from_kubeconfig_file(path: Path) -> ClusterCredentials:
    """The same strict model for a file the operator's own user named."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise KubeconfigRefused("Unreadable", f"{path}: {error.strerror}") from error
    return parse_kubeconfig(text)


def in_cluster_credentials(
    folder: str = SERVICE_ACCOUNT_FOLDER, environment: Mapping[str, str] = os.environ
) -> ClusterCredentials:
    """Those of the pod this process runs in. Raises KubeconfigRefused when it does not run in one."""
    host, port = (environment.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
    if not host or not port:
        raise KubeconfigRefused("NotInCluster", "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
    token_file = os.path.join(folder, "token")
    try:
        ca_pem = certificates(Path(folder, "ca.crt").read_bytes())
        Path(token_file).read_bytes()
    except (OSError, BadPEM) as error:
        raise KubeconfigRefused("NotInCluster", f"the service account in {folder} cannot be used: {error}") from error
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return ClusterCredentials(server, ca_pem, token_file=token_file)


class _Loader(yaml.SafeLoader):
    """No aliases: they make small texts large."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise KubeconfigRefused("Aliases", "YAML aliases are not allowed")
        return super().compose_node(parent, index)


def _load(text: bytes | str) -> dict[str, Any]:
    _check_size(text.encode(errors="replace") if isinstance(text, str) else text)
    try:
        document = yaml.load(text, _Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        # The error's own text may quote a secret.
        raise KubeconfigRefused("NotYAML", f"it is not plain YAML ({type(error).__name__})") from None
    if not isinstance(document, dict) or document.get("kind", "Config") != "Config":
        raise KubeconfigRefused("NotAKubeconfig", "it is not a mapping of kind Config")
    return document


def _check_size(text: bytes) -> None:
    if len(text) > MAX_BYTES or sum(map(text.count, b"\n,:-[{?")) > MAX_MARKS:
        raise KubeconfigRefused("TooLarge", f"more than {MAX_BYTES // 1024} KiB or {MAX_MARKS} marks of YAML")
    depth = 0
    for mark in re.findall(rb"[\[{\]}]", text):
        depth += 1 if mark in b"[{" else -1
        if depth > MAX_DEPTH:
            raise KubeconfigRefused("TooDeep", f"nested more than {MAX_DEPTH} deep")


def _named(document: Mapping[str, Any], section: str, key: str) -> dict[str, Any]:
    """Name -> entry of one list; two of one name are refused, as clients disagree about which of them counts."""
    entries = document.get(section) or []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise KubeconfigRefused("InvalidField", f"{section} is not a list of mappings")
    names = [str(entry.get("name")) for entry in entries]
    if len(set(names)) != len(names):
        raise KubeconfigRefused("DuplicateName", f"{section} holds two entries of one name")
    return {name: entry.get(key) for name, entry in zip(names, entries, strict=True)}


def _pick(entries: Mapping[str, Any], kind: str, name: str) -> dict[str, Any]:
    if name not in entries:
        raise KubeconfigRefused("MissingEntry", f"there is no {kind} of the name {name!r}")
    entry = entries[name]
    if not isinstance(entry, dict):
        raise KubeconfigRefused("InvalidField", f"{kind} {name!r} is not a mapping")
    return entry


def _cleared(entry: Mapping[str, Any], refused: Mapping[str, tuple[str, str]], kind: str) -> dict[str, Any]:
    """The entry without keys that are refused but say nothing."""
    for key, (reason, help_) in refused.items():
        if entry.get(key):
            raise KubeconfigRefused(reason, f"{kind}.{key} is refused: {help_}")
    return {key: value for key, value in entry.items() if key not in refused}


def _model(model: type[_T], entry: Mapping[str, Any], where: str) -> _T:
    try:
        return model.model_validate({key: value for key, value in entry.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        reason = "UnknownField" if first["type"] == "extra_forbidden" else "InvalidField"
        raise KubeconfigRefused(reason, f"{where}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _credentials(cluster: _Cluster, user: _User) -> ClusterCredentials:
    problem = check_server(cluster.server)
    if problem is not None:
        raise KubeconfigRefused(*problem)
    if not cluster.ca:
        raise KubeconfigRefused("CAMissing", "cluster.certificate-authority-data is required")
    if user.token and (user.certificate or user.key):
        raise KubeconfigRefused("SeveralCredentials", "user has a token and a client certificate; give one")
    server = cluster.server.rstrip("/")
    try:
        ca_pem = certificates(_decode("certificate-authority-data", cluster.ca))
        if user.token:
            return ClusterCredentials(server, ca_pem, token=_token(user.token))
        if not user.certificate or not user.key:
            raise KubeconfigRefused("NoCredentials", "user has neither a token nor client certificate and key data")
        certificate, key = client_identity(
            _decode("client-certificate-data", user.certificate), _decode("client-key-data", user.key)
        )
    except BadPEM as error:
        raise KubeconfigRefused("InvalidCertificate", str(error)) from None
    return ClusterCredentials(server, ca_pem, client_cert_pem=certificate, client_key_pem=key)


def _token(token: str) -> str:
    """It becomes a header: one word of printable ASCII."""
    if len(token) > MAX_TOKEN_LENGTH or not token.isascii() or not token.isprintable() or " " in token:
        raise KubeconfigRefused("InvalidToken", "user.token is not one word of printable ASCII")
    return token


def _decode(field_name: str, text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise KubeconfigRefused("InvalidField", f"{field_name} is not base64") from None

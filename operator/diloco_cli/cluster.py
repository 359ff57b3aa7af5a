"""One cluster as the command line uses it: requests and log lines, with the user's own rights or a site's credentials.

On the official client, imported when a cluster is first asked for, so that local runs start without it. The user's
kubeconfig may name programs and files, which are the user's own; a site's goes through the operator's strict model.
Every failure is a ClusterError of one line.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

Document = dict[str, Any]

CONNECT_SECONDS = 5.0
READ_SECONDS = 15.0
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"


class ClusterError(Exception):
    """What a cluster did not do, and why; one line, without a token or body."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status; 0: no answer."""


class BadCredentials(ClusterError):
    """A kubeconfig that cannot be used: nothing was asked."""


class Cluster(Protocol):
    """One API server."""

    server: str
    namespace: str
    """Of the kubeconfig's context; `default` where it names none."""

    def request(
        self, method: str, path: str, body: Document | None = None, *, query: Mapping[str, str] | None = None
    ) -> Document:
        """The answer; ClusterError otherwise. A PATCH is a merge patch."""

    def lines(self, path: str, *, query: Mapping[str, str] | None = None) -> Iterator[str]:
        """Lines of a text as they come."""


def find(cluster: Cluster, path: str) -> Document | None:
    """One object; None when there is none."""
    try:
        return cluster.request("GET", path)
    except ClusterError as error:
        if error.status == 404:
            return None
        raise


class KubeCluster:
    """On a client of the official library."""

    def __init__(self, api: Any, namespace: str) -> None:
        self._api = api
        self.server = str(api.configuration.host)
        self.namespace = namespace

    def close(self) -> None:
        """End its connections, which are kept between requests."""
        pools = self._api.rest_client.pool_manager.pools
        for key in pools.keys():  # noqa: SIM118 - it cannot be iterated over
            pools[key].close()

    def request(
        self, method: str, path: str, body: Document | None = None, *, query: Mapping[str, str] | None = None
    ) -> Document:
        answer = self._call(method, path, body, query, READ_SECONDS)
        try:
            found = json.loads(answer.read())
        except ValueError as error:
            raise ClusterError(f"{self.server}: the answer is not JSON") from error
        if not isinstance(found, dict):
            raise ClusterError(f"{self.server}: the answer is not an object")
        return found

    def lines(self, path: str, *, query: Mapping[str, str] | None = None) -> Iterator[str]:
        import urllib3

        answer = self._call("GET", path, None, query, None)
        rest = b""
        try:
            for part in answer.stream(2**16):
                *whole, rest = (rest + part).split(b"\n")
                yield from (line.decode(errors="replace") for line in whole)
        except urllib3.exceptions.HTTPError as error:
            raise ClusterError(f"{self.server}: the stream broke off ({type(error).__name__})") from error
        finally:
            answer.close()
        if rest:
            yield rest.decode(errors="replace")

    def _call(
        self, method: str, path: str, body: Document | None, query: Mapping[str, str] | None, read: float | None
    ) -> Any:
        import urllib3
        from kubernetes.client.exceptions import ApiException

        headers = {"Accept": JSON, "Content-Type": MERGE_PATCH if method == "PATCH" else JSON}
        asked = self._api.param_serialize(
            method, path, query_params=list((query or {}).items()), header_params=headers, body=body,
            auth_settings=["BearerToken"],
        )  # fmt: skip
        try:
            answer = self._api.call_api(*asked, _request_timeout=(CONNECT_SECONDS, read)).response
            if answer.status < 400:
                return answer
            text = answer.read()
        except ApiException as error:  # of the client itself: there was no answer
            raise ClusterError(f"{self.server} does not answer: {_one_line(str(error.reason))}") from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ClusterError(f"{self.server} does not answer: {_transport(error)}") from error
        raise ClusterError(_refusal(self.server, answer.status, text), answer.status)


def open_own(context: str | None) -> KubeCluster:
    """The cluster of the user's kubeconfig (KUBECONFIG, else ~/.kube/config). BadCredentials when it has none."""
    from kubernetes import config

    try:
        contexts, current = config.list_kube_config_contexts()  # type: ignore[no-untyped-call]
        chosen = current if context is None else next((one for one in contexts if one["name"] == context), None)
        if chosen is None:
            raise BadCredentials(f"--context {context}: there is no such context")
        api = config.new_client_from_config(  # type: ignore[no-untyped-call]
            context=context, client_configuration=_configuration()
        )
    except (config.ConfigException, OSError) as error:
        raise BadCredentials(f"KUBECONFIG, or ~/.kube/config: {_one_line(str(error))}") from error
    return KubeCluster(api, chosen["context"].get("namespace") or "default")


def open_site(text: bytes) -> KubeCluster:
    """A site by its kubeconfig. BadCredentials when the operator would not use it."""
    import yaml
    from kubernetes import config

    from diloco_operator.sites.kubeconfig import KubeconfigRefused, parse_kubeconfig

    try:
        parse_kubeconfig(text)
        api = config.new_client_from_config_dict(  # type: ignore[no-untyped-call]
            yaml.safe_load(text), client_configuration=_configuration()
        )
    except KubeconfigRefused as error:
        raise BadCredentials(str(error)) from error
    except config.ConfigException as error:
        raise BadCredentials(f"kubeconfig: {type(error).__name__}") from error  # its text may quote a secret
    return KubeCluster(api, "default")


def read_site_file(file: Path) -> bytes:
    """A kubeconfig file as the operator is to get it: the entries of its current context and nothing else."""
    import base64

    from diloco_operator.sites.kubeconfig import KubeconfigRefused, parse_kubeconfig

    try:
        found = parse_kubeconfig(file.read_bytes())
    except KubeconfigRefused as error:
        raise BadCredentials(f"{file}: {error}") from error
    except OSError as error:
        raise BadCredentials(f"{file}: {error.strerror or error}") from error

    def encoded(pem: str) -> str:
        return base64.b64encode(pem.encode()).decode()

    user = (
        {"token": found.token}
        if found.token
        else {
            "client-certificate-data": encoded(found.client_cert_pem),
            "client-key-data": encoded(found.client_key_pem),
        }
    )
    cluster = {"server": found.server, "certificate-authority-data": encoded(found.ca_pem)}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "site", "cluster": cluster}],
        "users": [{"name": "site", "user": user}],
        "contexts": [{"name": "site", "context": {"cluster": "site", "user": "site"}}],
        "current-context": "site",
    }
    return json.dumps(document, indent=1).encode()


def _configuration() -> Any:
    from kubernetes import client

    configuration = client.Configuration()
    configuration.retries = False  # a person waits; the error is told at once
    return configuration


def _refusal(server: str, status: int, text: bytes) -> str:
    """What the server's Status object says, else its number."""
    try:
        message = json.loads(text).get("message")
    except (ValueError, AttributeError):
        message = None
    return f"{server}: {message or f'HTTP status {status}'}"


def _transport(error: Exception) -> str:
    cause = error
    while isinstance(reason := getattr(cause, "reason", None), Exception):
        cause = reason
    text = str(cause).partition(": ")[2] or str(cause)
    return _one_line(text) or type(cause).__name__


def _one_line(text: str) -> str:
    return " ".join(text.split())

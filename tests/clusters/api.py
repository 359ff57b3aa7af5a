"""A small client of an API server for the tests and the set-up: plain dicts, standard library only.

It is no part of what is tested: the project speaks to API servers by the official client.
"""

import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlencode

from clusters.layout import API_PORT, SiteLayout

Object = dict[str, Any]
T = TypeVar("T")

_FIELD_MANAGER = "test-clusters"
_CLUSTER_SCOPED = {
    "Namespace", "Node", "PersistentVolume", "StorageClass", "PriorityClass", "ClusterRole", "ClusterRoleBinding",
    "CustomResourceDefinition", "RuntimeClass",
}  # fmt: skip
_PLURALS = {
    "NetworkPolicy": "networkpolicies", "Endpoints": "endpoints", "StorageClass": "storageclasses",
    "PriorityClass": "priorityclasses", "RuntimeClass": "runtimeclasses",
}  # fmt: skip


class ApiError(Exception):
    """The API server answered with an error; `status` is the HTTP status, `reason` the machine's word."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status, self.reason, self.message = status, reason, message


def path_of(api_version: str, kind: str, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
    """URL path of a collection or an object; a namespaced kind without namespace means all namespaces."""
    prefix = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
    inside = f"/namespaces/{namespace}" if namespace and kind not in _CLUSTER_SCOPED else ""
    plural = _PLURALS.get(kind, f"{kind.lower()}s")
    return "/".join(part for part in (f"{prefix}{inside}/{plural}", name, subresource) if part)


class Api:
    """The API server of one site, as its administrator. May be used by several threads: a connection a request."""

    def __init__(self, site: SiteLayout, timeout_seconds: float = 10) -> None:
        self._site = site
        self._timeout = timeout_seconds
        self._tls = ssl.create_default_context(cafile=str(site.pki / "ca.crt"))
        self._tls.load_cert_chain(site.pki / "admin.crt", site.pki / "admin.key")

    def request(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        """The decoded answer; text that is not JSON as it is. Raises ApiError, OSError where nobody answers."""
        with self._send(method, path, body, content_type, self._timeout) as response:
            return _decoded(response)

    def get(self, api_version: str, kind: str, namespace: str | None, name: str) -> Object | None:
        """The object, None if there is none."""
        try:
            return self.request("GET", path_of(api_version, kind, namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def all(self, api_version: str, kind: str, namespace: str | None = None, selector: str = "") -> list[Object]:
        query = f"?{urlencode({'labelSelector': selector})}" if selector else ""
        return self.request("GET", path_of(api_version, kind, namespace) + query)["items"]

    def create(self, manifest: Object) -> Object:
        metadata = manifest["metadata"]
        path = path_of(manifest["apiVersion"], manifest["kind"], metadata.get("namespace"))
        return self.request("POST", path, manifest)

    def apply(self, manifest: Object) -> Object:
        """Server-side apply."""
        metadata = manifest["metadata"]
        path = path_of(manifest["apiVersion"], manifest["kind"], metadata.get("namespace"), metadata["name"])
        query = urlencode({"fieldManager": _FIELD_MANAGER, "force": "true"})
        return self.request("PATCH", f"{path}?{query}", manifest, "application/apply-patch+yaml")

    def patch(self, path: str, patch: Object | list[Object], *, strategic: bool = False) -> Object:
        """JSON patch for a list; merge patch for a dict, or a strategic one (merges status conditions by type)."""
        kind = "json-patch" if isinstance(patch, list) else ("strategic-merge-patch" if strategic else "merge-patch")
        return self.request("PATCH", path, patch, f"application/{kind}+json")

    def delete(
        self, api_version: str, kind: str, namespace: str | None, name: str, grace_seconds: int | None = None
    ) -> None:
        """Nothing happens if there is none."""
        options = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        try:
            self.request("DELETE", path_of(api_version, kind, namespace, name), options)
        except ApiError as error:
            if error.status != 404:
                raise

    def watch(self, path: str, timeout_seconds: int, **query: str) -> Iterator[Object]:
        """Events until the server ends the watch; the first ones are the objects that are there."""
        full = f"{path}?{urlencode({'watch': '1', 'timeoutSeconds': timeout_seconds, **query})}"
        with self._send("GET", full, None, "application/json", timeout_seconds + self._timeout) as response:
            while line := response.readline():
                yield json.loads(line)

    @contextmanager
    def _send(
        self, method: str, path: str, body: Any, content_type: str, timeout_seconds: float
    ) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPSConnection(
            self._site.address, API_PORT, timeout=timeout_seconds, context=self._tls
        )
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": content_type, "User-Agent": _FIELD_MANAGER})
            response = connection.getresponse()
            if response.status >= 400:
                raise _error(response)
            yield response
        finally:
            connection.close()


def wait_until(
    what: str, condition: Callable[[], T | None], timeout_seconds: float = 60, every_seconds: float = 0.3
) -> T:
    """Wait until the condition is true and return what it gave; an API server that does not answer is waited for."""
    deadline = time.monotonic() + timeout_seconds
    last: object = None
    while True:
        try:
            last = condition()
            if last:
                return last
        except (ApiError, OSError) as error:
            last = error
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_seconds:g} s: {what} (last seen: {last})")
        time.sleep(every_seconds)


def _decoded(response: http.client.HTTPResponse) -> Any:
    text = response.read().decode()
    return json.loads(text) if response.headers.get_content_type() == "application/json" else text


def _error(response: http.client.HTTPResponse) -> ApiError:
    answer = _decoded(response)
    if isinstance(answer, dict):
        return ApiError(response.status, answer.get("reason", ""), answer.get("message", ""))
    return ApiError(response.status, response.reason, answer)

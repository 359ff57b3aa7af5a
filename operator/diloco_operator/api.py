"""The seam to an API server for what is not an object of a job: the job itself, its Events, Lease, own Secrets.

One request, one answer, as plain dicts; every failure is an `ApiError`. Objects of jobs go through `sites`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from diloco_api import names
from diloco_operator.hub import HubError

Document = dict[str, Any]
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_PAGE = 25
"""Metadata of a job with many Learners is up to a few 100 kB: who wrote which field of its status."""
_MOST_PAGES = 2000
"""A list without end would take all memory."""


class ApiError(HubError):
    """A request failed. The text is what the server says of it, without headers or bodies."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status; 0: there was no answer."""
        self.reason = reason
        """CamelCase, for conditions."""


class Api(Protocol):
    """One API server, reached with the operator's own rights."""

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> Document:
        """The answer's document; ApiError otherwise."""


@dataclass(frozen=True)
class JobRef:
    """Which job: two of one name, one after the other, are told apart by their uid."""

    namespace: str
    name: str
    uid: str

    @property
    def path(self) -> str:
        return f"{jobs_path(self.namespace)}/{self.name}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def jobs_path(namespace: str | None) -> str:
    """The collection of jobs of a namespace, of all where it is None."""
    scope = f"/namespaces/{namespace}" if namespace is not None else ""
    return f"/apis/{names.API_VERSION}{scope}/{names.PLURAL}"


def core_path(namespace: str, plural: str, name: str = "") -> str:
    """An object, or a collection, of the core group."""
    return f"/api/v1/namespaces/{namespace}/{plural}" + (f"/{name}" if name else "")


async def find(api: Api, path: str) -> Document | None:
    """One object; None when there is none."""
    try:
        return await api.request("GET", path)
    except ApiError as error:
        if error.status == 404:
            return None
        raise


async def list_all(api: Api, path: str, *, metadata_only: bool = False) -> list[Document]:
    """A whole collection, page after page: complete or an ApiError."""
    items: list[Document] = []
    query = {"limit": str(_PAGE)}
    for _ in range(_MOST_PAGES):
        page = await api.request("GET", path, query=query, accept=METADATA_ONLY if metadata_only else JSON)
        items += page.get("items") or []
        token = page.get("metadata", {}).get("continue")
        if not token:
            return items
        query = {"limit": str(_PAGE), "continue": token}
    raise ApiError(500, "ServerError", f"a list of {path} without end")

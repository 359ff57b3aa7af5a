"""An API server in memory, for what the operator asks one directly: versions, patches, uids, refusals."""

import copy
from collections.abc import Mapping
from typing import Any

from diloco_operator.api import JSON, JSON_PATCH, ApiError, Document


class FakeApi:
    """`drops` are paths below status an old CRD does not know; `broken` refuses every request with that error."""

    def __init__(self) -> None:
        self.objects: dict[str, Document] = {}
        self.requests: list[tuple[str, str]] = []
        self.bodies: list[object] = []
        self.dry_runs: list[tuple[str, str]] = []
        self.drops: set[str] = set()
        self.broken: ApiError | None = None
        self.refused: dict[tuple[str, str], ApiError] = {}
        """By method and the end of the path."""
        self._version = 0

    @property
    def writes(self) -> list[tuple[str, str]]:
        return [(method, path) for method, path in self.requests if method != "GET"]

    def put(self, path: str, document: Document) -> Document:
        """As if somebody else had written it."""
        before = self.objects.get(path)
        stored = copy.deepcopy(document)
        self._version += 1
        metadata = stored.setdefault("metadata", {})
        metadata.setdefault("name", path.rsplit("/", 1)[1])
        metadata.setdefault("uid", f"uid-{self._version}" if before is None else before["metadata"]["uid"])
        metadata["resourceVersion"] = str(self._version)
        self.objects[path] = stored
        return copy.deepcopy(stored)

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
        if query and "dryRun" in query:
            return await self._tried(method, path, body, content_type)
        self.requests.append((method, path))
        self.bodies.append(copy.deepcopy(body))
        if self.broken is not None:
            raise self.broken
        for (refused, end), error in self.refused.items():
            if refused == method and path.endswith(end):
                raise error
        if method == "POST":
            return self._create(path, body)  # type: ignore[arg-type]
        if method == "GET" and path not in self.objects and self._is_collection(path):
            return {"items": [copy.deepcopy(item) for at, item in self.objects.items() if at.startswith(f"{path}/")]}
        target = path.removesuffix("/status")
        if target not in self.objects:
            raise ApiError(404, "NotFound", f"{target} not found")
        if method == "GET":
            return copy.deepcopy(self.objects[target])
        if method == "DELETE":
            return self.objects.pop(target)
        return self._change(target, path.endswith("/status"), method, body, content_type)

    async def _tried(self, method: str, path: str, body: object, content_type: str) -> Document:
        """What would be answered; nothing is kept."""
        kept = copy.deepcopy(self.objects), self._version, list(self.requests), list(self.bodies)
        try:
            return await self.request(method, path, body, content_type=content_type)
        finally:
            self.objects, self._version, self.requests, self.bodies = kept
            self.dry_runs.append((method, path))

    def _is_collection(self, path: str) -> bool:
        return path.rsplit("/", 1)[1] in ("secrets", "dilocojobs", "events", "leases")

    def _create(self, path: str, body: Document) -> Document:
        target = f"{path}/{body['metadata']['name']}"
        if target in self.objects:
            raise ApiError(409, "AlreadyExists", f"{target} exists")
        return self.put(target, body)

    def _change(self, path: str, status_only: bool, method: str, body: Any, content_type: str) -> Document:
        stored = self.objects[path]
        if content_type == JSON_PATCH:
            changed = _json_patched(stored, body)
        else:
            asked = body.get("metadata", {}).get("resourceVersion")
            if asked is not None and asked != stored["metadata"]["resourceVersion"]:
                raise ApiError(409, "Conflict", f"{path} has changed")
            changed = copy.deepcopy(body) if method == "PUT" else _merged(stored, body)
            if status_only:
                changed = {**stored, "status": self._pruned(changed.get("status", {}))}
            changed["metadata"] = {**stored["metadata"], **changed["metadata"]}
        if changed == stored:
            return copy.deepcopy(stored)
        return self.put(path, changed)

    def _pruned(self, status: Any, path: str = "status") -> Any:
        if isinstance(status, dict):
            return {
                name: self._pruned(value, f"{path}.{name}")
                for name, value in status.items()
                if f"{path}.{name}" not in self.drops
            }
        return [self._pruned(item, f"{path}[]") for item in status] if isinstance(status, list) else status


def _merged(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = copy.deepcopy(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), value)
    return merged


def _json_patched(target: Document, operations: list[Document]) -> Document:
    """RFC 6902, as far as it is used."""
    changed = copy.deepcopy(target)
    for operation in operations:
        *parents, last = operation["path"].strip("/").split("/")
        node: Any = changed
        for key in parents:
            node = node[int(key)] if isinstance(node, list) else node[key]
        match operation["op"]:
            case "test":
                held = node[int(last) : int(last) + 1] == [operation["value"]] if isinstance(node, list) else None
                if held is False or (held is None and node.get(last) != operation["value"]):
                    raise ApiError(422, "Invalid", "the test failed")
            case "add" if isinstance(node, list):
                node.append(operation["value"])
            case "add":
                node[last] = operation["value"]
            case "remove":
                del node[int(last) if isinstance(node, list) else last]
    return changed

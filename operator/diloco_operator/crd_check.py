"""Whether the installed CRD knows every field this operator writes and reads.

Reading it needs a right that an operator of some namespaces only does not have; then what the hub drops is noticed at
the first write (`KubeHub`).
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from diloco_api import names
from diloco_api.crd import build_schema
from diloco_operator.api import Api, ApiError

PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_THIS_ONE = {"fieldSelector": f"metadata.name={names.PLURAL}.{names.GROUP}"}
KEEP_SECONDS = 300.0
AGAIN_SECONDS = 10.0
"""While it is too old: somebody is probably about to update it."""


class CrdCheck:
    """Looks seldom, and remembers."""

    def __init__(self, api: Api, *, now: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._now = now
        self._problem = ""
        self._look_at = 0.0
        self._wanted = build_schema()

    async def problem(self) -> str:
        """What it lacks; empty when it lacks nothing or may not be read."""
        if self._now() < self._look_at:
            return self._problem
        try:
            found = (await self._api.request("GET", PATH, query=_THIS_ONE)).get("items") or []
        except ApiError as error:
            self._look_at = self._now() + (KEEP_SECONDS if error.status == 403 else AGAIN_SECONDS)
            return self._problem
        self._problem = self._compare(found[0]) if found else ""
        self._look_at = self._now() + (AGAIN_SECONDS if self._problem else KEEP_SECONDS)
        return self._problem

    def _compare(self, found: Mapping[str, Any]) -> str:
        versions = {version["name"]: version for version in found["spec"]["versions"]}
        if names.VERSION not in versions:
            return f"lacks version {names.VERSION}"
        installed = versions[names.VERSION].get("schema", {}).get("openAPIV3Schema", {})
        lacking = next(lacks(self._wanted, installed), None)
        return f"lacks {lacking}" if lacking else ""


def lacks(wanted: Mapping[str, Any], installed: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Paths of fields that are wanted and would be dropped."""
    if installed.get("x-kubernetes-preserve-unknown-fields"):
        return
    known = installed.get("properties", {})
    for name, child in wanted.get("properties", {}).items():
        inner = f"{path}.{name}" if path else name
        if name in known:
            yield from lacks(child, known[name], inner)
        elif inner not in ("apiVersion", "kind", "metadata"):
            yield inner
    if "items" in wanted:
        yield from lacks(wanted["items"], installed.get("items", {}), f"{path}[]")

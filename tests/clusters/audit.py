"""Which pods were created, deleted or changed, by anybody: what the API servers wrote down, a line for every write."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from clusters.api import Object
from clusters.layout import SiteLayout

_READS = ("get", "list", "watch")
_OWN_BUSINESS = ("status", "binding")
"""Subresources by which kubelets and schedulers do their work."""


@dataclass
class PodWrites:
    """Names of pods by what was asked for and granted; the kubelet's last deletion of an ended pod counts as one."""

    created: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    """Also by eviction."""
    changed: set[str] = field(default_factory=set)


class AuditTrail:
    """The writes to pods of one namespace in some clusters, from its making on."""

    def __init__(self, sites: list[SiteLayout], namespace: str) -> None:
        self._begins = {site: site.audit_log.stat().st_size for site in sites}
        self._namespace = namespace

    def pod_writes(self) -> PodWrites:
        """By whomever: operator, kubelets, controllers, the test."""
        found = PodWrites()
        for verb, reference in self._writes():
            name, subresource = reference.get("name", ""), reference.get("subresource", "")
            if verb == "deletecollection":
                found.deleted.add("(all of the namespace)")
            elif verb == "delete" or subresource == "eviction":
                found.deleted.add(name)
            elif verb == "create" and subresource in ("", "binding"):
                found.created |= {name} - {""}  # where the server made the name up, its binding to a node tells it
            elif subresource not in _OWN_BUSINESS:
                found.changed.add(name)
        return found

    def _writes(self) -> Iterator[tuple[str, Object]]:
        for site, begin in self._begins.items():
            with site.audit_log.open("rb") as log:
                log.seek(begin)
                lines = log.read().splitlines()
            for event in map(json.loads, lines):
                if event["verb"] in _READS:
                    continue
                reference = event.get("objectRef", {})
                granted = event.get("responseStatus", {}).get("code", 500) < 300
                if (reference.get("resource"), reference.get("namespace")) == ("pods", self._namespace) and granted:
                    yield event["verb"], reference

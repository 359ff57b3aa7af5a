"""What a ServiceAccount may do in a cluster, and what it has done there, in one form: both can be compared.

Granted: all roles bound to it. Done: what the API server's audit log tells of it.
"""

import json
from collections.abc import Iterator

from clusters.api import Api, Object
from clusters.layout import SiteLayout

Right = tuple[str, str, str]
"""(verb, group, resource or resource/subresource)."""
_RBAC = "rbac.authorization.k8s.io/v1"


def granted(site: SiteLayout, namespace: str, account: str) -> set[Right]:
    """By Roles anywhere and ClusterRoles; resource names are left out, as the audit log is of what was allowed."""
    api, found = Api(site), set()
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        for binding in api.all(_RBAC, kind):
            if not any(_is(subject, namespace, account) for subject in binding.get("subjects", [])):
                continue
            role, at = binding["roleRef"], binding["metadata"].get("namespace")
            bound = api.get(_RBAC, role["kind"], at if role["kind"] == "Role" else None, role["name"])
            assert bound is not None, f"{kind} {binding['metadata']['name']} binds {role['name']}, which is not there"
            found |= set(_of_rules(bound["rules"]))
    return found


def _is(subject: Object, namespace: str, account: str) -> bool:
    return (subject["kind"], subject.get("namespace"), subject["name"]) == ("ServiceAccount", namespace, account)


def _of_rules(rules: list[Object]) -> Iterator[Right]:
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                yield from ((verb, group, resource) for verb in rule["verbs"])


class Record:
    """What the accounts of a cluster do from now on."""

    def __init__(self, site: SiteLayout) -> None:
        self._site = site
        self._begin = site.audit_log.stat().st_size

    def done(self, namespace: str, account: str) -> set[Right]:
        return {right for right, decision in self._asked(namespace, account) if decision == "allow"}

    def denied(self, namespace: str, account: str) -> set[Right]:
        return {right for right, decision in self._asked(namespace, account) if decision != "allow"}

    def _asked(self, namespace: str, account: str) -> set[tuple[Right, str]]:
        user, found = f"system:serviceaccount:{namespace}:{account}", set()
        with self._site.audit_log.open("rb") as log:
            log.seek(self._begin)
            for line in log.read().splitlines():
                event = json.loads(line)
                if event["user"].get("username") != user or "resource" not in event.get("objectRef", {}):
                    continue
                reference = event["objectRef"]
                parts = (reference["resource"], reference.get("subresource", ""))
                right = (event["verb"], reference.get("apiGroup", ""), "/".join(part for part in parts if part))
                found.add((right, event["annotations"]["authorization.k8s.io/decision"]))
        return found

"""What the operator does in a site's namespace, as rights to ask about: just what the chart diloco-site grants."""

from dataclasses import dataclass

_KEPT = ("get", "list", "create", "patch", "delete")


@dataclass(frozen=True)
class Needed:
    """Verbs on one resource in the site's namespace."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    optional_for: str = ""
    """What does not work without it; empty: the site cannot be used without it."""


NEEDED = (
    Needed("", "pods", ("get", "list", "watch", "create", "delete")),
    Needed("", "configmaps", _KEPT),
    Needed("", "secrets", _KEPT),
    Needed("networking.k8s.io", "networkpolicies", _KEPT),
    Needed(
        "",
        "pods/log",
        ("get",),
        optional_for="diloco logs, and to say why Learners there do not reach the Synchronizer",
    ),
)

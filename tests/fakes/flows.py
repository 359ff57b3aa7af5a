"""Which connections NetworkPolicies allow: an evaluator of networking.k8s.io/v1 for pods of one namespace.

As the API's documentation says it: a pod no policy selects for a direction is open in that direction; what one policy
allows, all do. The other end is a pod of the same namespace, of another one, or an address outside.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any

Policy = dict[str, Any]


@dataclass(frozen=True)
class End:
    """One end of a connection."""

    labels: dict[str, str] = field(default_factory=dict)
    namespace: str = "default"
    address: str = ""
    """Given: not a pod, but this address outside."""


def accepts(policies: Iterable[Policy], pod: End, source: End, port: int, protocol: str = "TCP") -> bool:
    """Whether `pod` may be connected to."""
    return _allows(policies, pod, source, port, protocol, "Ingress", "from")


def reaches(policies: Iterable[Policy], pod: End, target: End, port: int, protocol: str = "TCP") -> bool:
    """Whether `pod` may connect."""
    return _allows(policies, pod, target, port, protocol, "Egress", "to")


def _allows(
    policies: Iterable[Policy], pod: End, other: End, port: int, protocol: str, direction: str, peers: str
) -> bool:
    selecting = [
        policy["spec"]
        for policy in policies
        if direction in policy["spec"]["policyTypes"] and _selects(policy["spec"]["podSelector"], pod.labels)
    ]
    if not selecting:
        return True
    rules = [rule for spec in selecting for rule in spec.get(direction.lower(), [])]
    return any(_port(rule, port, protocol) and _peer(rule.get(peers), pod, other) for rule in rules)


def _port(rule: dict[str, Any], port: int, protocol: str) -> bool:
    ports = rule.get("ports")
    return not ports or any((each["port"], each.get("protocol", "TCP")) == (port, protocol) for each in ports)


def _peer(peers: list[dict[str, Any]] | None, pod: End, other: End) -> bool:
    return not peers or any(_is(peer, pod, other) for peer in peers)


def _is(peer: dict[str, Any], pod: End, other: End) -> bool:
    if "ipBlock" in peer:
        block = peer["ipBlock"]
        return (
            bool(other.address)
            and _within(other.address, block["cidr"])
            and not any(_within(other.address, hole) for hole in block.get("except", []))
        )
    if other.address:
        return False
    if "namespaceSelector" in peer:
        name = {"kubernetes.io/metadata.name": other.namespace}
        return _selects(peer["namespaceSelector"], name) and _selects(peer.get("podSelector", {}), other.labels)
    return other.namespace == pod.namespace and _selects(peer["podSelector"], other.labels)


def _within(address: str, network: str) -> bool:
    found, block = ip_address(address), ip_network(network)
    return found.version == block.version and found in block


def _selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    return selector.get("matchLabels", {}).items() <= labels.items()

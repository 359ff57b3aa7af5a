"""What keeps a job's pods to themselves: the Synchronizer's disruption budget, and NetworkPolicies at every site."""

from ipaddress import ip_address

from diloco_api import names
from diloco_api.names import Role
from diloco_api.status import PortsStatus
from diloco_operator.planning.manifests import common
from diloco_operator.planning.manifests.common import Home
from diloco_operator.planning.types import Manifest

_LABEL_NAMESPACE = "kubernetes.io/metadata.name"
_DNS_PORT = 53
_EVERYWHERE: list[Manifest] = [
    {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}},
    {"ipBlock": {"cidr": "::/0", "except": ["fe80::/10"]}},
]
"""But link-local addresses, where clouds answer with the credentials of a node."""


def disruption_budget(home: Home) -> Manifest:
    """The Synchronizer is not evicted to make room; one that does not work may be."""
    spec = {
        "maxUnavailable": 0,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": common.matching(home, Role.SYNCHRONIZER)},
    }
    name = names.synchronizer_name(home.name, home.uid)
    own = common.labels(home, Role.SYNCHRONIZER)
    return common.finished_object("policy/v1", "PodDisruptionBudget", name, home, own, {"spec": spec})


def synchronizer_policy(
    home: Home, ports: PortsStatus, exposed: bool, operator_namespace: str, monitoring_namespace: str
) -> Manifest:
    """In: the wire from the job's Learners, and from anywhere when exposed; Admin from the operator; metrics."""
    learners = {"podSelector": {"matchLabels": common.matching(home, Role.LEARNER)}}
    ingress: list[Manifest] = [{"ports": [_tcp(ports.synchronizer)], **({} if exposed else {"from": [learners]})}]
    admin: Manifest = {"ports": [_tcp(ports.admin)]}
    ingress.append(admin | ({"from": [_namespace(operator_namespace)]} if operator_namespace else {}))
    if monitoring_namespace:
        ingress.append({"ports": [_tcp(ports.metrics)], "from": [_namespace(monitoring_namespace)]})
    spec = {
        "podSelector": {"matchLabels": common.matching(home, Role.SYNCHRONIZER)},
        "policyTypes": ["Ingress"],
        "ingress": ingress,
    }
    name = names.synchronizer_name(home.name, home.uid)
    return _policy(name, home, Role.SYNCHRONIZER, spec)


def learners_policy(
    home: Home, ports: PortsStatus, addresses: tuple[str, ...], monitoring_namespace: str, metrics_port: int
) -> Manifest:
    """In: metrics alone. Out: DNS, the Synchronizer, and data stores, which may be anywhere."""
    ingress: list[Manifest] = []
    if monitoring_namespace and metrics_port:
        ingress = [{"ports": [_tcp(metrics_port)], "from": [_namespace(monitoring_namespace)]}]
    dns = [{"protocol": protocol, "port": _DNS_PORT} for protocol in ("UDP", "TCP")]
    egress: list[Manifest] = [{"ports": dns}]
    if home.hub:
        synchronizer = {"podSelector": {"matchLabels": common.matching(home, Role.SYNCHRONIZER)}}
        egress.append({"ports": [_tcp(ports.synchronizer)], "to": [synchronizer]})
    egress += [_to(address) for address in addresses]
    egress.append({"to": _EVERYWHERE})
    spec = {
        "podSelector": {"matchLabels": common.matching(home, Role.LEARNER)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": ingress,
        "egress": egress,
    }
    return _policy(names.learners_name(home.name, home.uid), home, Role.LEARNER, spec)


def _policy(name: str, home: Home, role: Role, spec: Manifest) -> Manifest:
    own = common.labels(home, role)
    return common.finished_object("networking.k8s.io/v1", "NetworkPolicy", name, home, own, {"spec": spec})


def _to(address: str) -> Manifest:
    """The Synchronizer's address; a name is not known to policies, so its port alone."""
    host, _, port = address.rpartition(":")
    found: Manifest = {"ports": [_tcp(int(port))]}
    try:
        ip = ip_address(host.strip("[]"))
    except ValueError:
        return found
    return found | {"to": [{"ipBlock": {"cidr": f"{ip}/{ip.max_prefixlen}"}}]}


def _tcp(port: int) -> Manifest:
    return {"protocol": "TCP", "port": port}


def _namespace(name: str) -> Manifest:
    return {"namespaceSelector": {"matchLabels": {_LABEL_NAMESPACE: name}}}

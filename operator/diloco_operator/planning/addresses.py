"""Where the Learners of a site find the Synchronizer: at the hub its Service, elsewhere what its exposure leads to.

An address that is not known yet is None: nothing is written then, and Learners of that site wait.
"""

from diloco_api import names
from diloco_api.synchronizer import has_port
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.planning.sites import SiteRef
from diloco_operator.planning.types import ObjectView, Observed, OperatorPolicy

MAX_NODES = 8
"""Nodes that are named; each of them leads to the Synchronizer."""


def addresses(
    job: DiLoCoJob, site: SiteRef, port: int, policy: OperatorPolicy, observed: Observed
) -> tuple[str, ...] | None:
    """host:port in the order in which they are tried; `port` is the Synchronizer's own."""
    if policy.synchronizer_hosts:
        return tuple(with_port(host, port) for host in policy.synchronizer_hosts)
    if site.is_hub:
        return (with_port(names.synchronizer_name(job.metadata.name, job.metadata.uid), port),)
    return _external(job, port, observed)


def pending_words(job: DiLoCoJob) -> str:
    """What is waited for."""
    words = {
        "NodePort": "a node port, and addresses of the hub's nodes",
        "LoadBalancer": "an address of the load balancer",
    }
    return f"Learners of other sites wait for {words.get(job.spec.synchronizer.exposure.type, 'its address')}"


def with_port(host: str, port: int) -> str:
    """IPv6 addresses in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def _external(job: DiLoCoJob, port: int, observed: Observed) -> tuple[str, ...] | None:
    exposure = job.spec.synchronizer.exposure
    key = ("Service", names.external_name(job.metadata.name, job.metadata.uid))
    service = observed.sites[0].objects.get(key, ObjectView(uid=""))
    found: tuple[str, ...] = ()
    match exposure.type:
        case "Address":
            found = tuple(exposure.addresses)
        case "LoadBalancer":
            found = tuple(with_port(host, port) for host in service.addresses)
        case "NodePort" if exposure.addresses and (service.node_port or all(map(has_port, exposure.addresses))):
            found = tuple(
                address if has_port(address) else with_port(address, service.node_port)
                for address in exposure.addresses
            )
        case "NodePort" if service.node_port and not exposure.addresses:
            nodes = sorted(observed.hub_addresses)[:MAX_NODES]
            found = tuple(with_port(host, service.node_port) for host in nodes)
    return found or None

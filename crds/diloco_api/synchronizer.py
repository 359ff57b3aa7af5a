"""`spec.synchronizer`: ports, volume, and how Learners of other clusters reach it.

`problems` holds the rules between its fields, and those with the sites.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, JsonValue

from diloco_api import rules
from diloco_api.errors import Problem
from diloco_api.rules import rule
from diloco_api.sites import ObjectName, OpenObject
from diloco_api.train import SpecModel

PATH = "spec.synchronizer"
_HOST = r"([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])"
_ADDRESS = f"^{_HOST}(:[1-9][0-9]{{0,4}})?$"
_WITH_PORT = ":[1-9][0-9]{0,4}$"
_QUANTITY = r"^[1-9][0-9]*(\.[0-9]+)?(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
_ATOMIC: dict[str, JsonValue] = {"x-kubernetes-list-type": "atomic"}
_Port = Annotated[int, Field(ge=1, le=65535)]
Address = Annotated[str, Field(min_length=1, max_length=260, pattern=_ADDRESS)]


class StorageSpec(SpecModel):
    """The Synchronizer's volume: its log, snapshots and final parameters."""

    size: str = Field(default="10Gi", min_length=1, max_length=20, pattern=_QUANTITY)
    """Size asked for. Default 10Gi."""
    storage_class_name: ObjectName | None = None
    """StorageClass. Default: the cluster's."""


class ExposureSpec(SpecModel):
    """How Learners of other clusters reach the Synchronizer; always by TLS."""

    model_config = ConfigDict(
        json_schema_extra=rules.cel(
            rule(
                "self.type != 'Address' || (has(self.addresses) && self.addresses.size() > 0)",
                rules.ADDRESSES_NEEDED,
                "addresses",
            ),
            rule(
                "!has(self.addresses) || self.addresses.size() == 0 || self.type in ['Address', 'NodePort']",
                rules.ADDRESSES_UNUSED,
                "addresses",
            ),
            rule(
                f"self.type != 'Address' || !has(self.addresses) || self.addresses.all(a, a.matches('{_WITH_PORT}'))",
                rules.ADDRESS,
                "addresses",
            ),
        )
    )

    type: Literal["ClusterIP", "NodePort", "LoadBalancer", "Address"] = "ClusterIP"
    """`ClusterIP`: from the hub alone. `NodePort`: a port of the hub's nodes. `LoadBalancer`: what the hub's cloud
    gives. `Address`: what is routed there by other means. Default `ClusterIP`."""
    addresses: list[Address] = Field(default=[], max_length=16, json_schema_extra=_ATOMIC)
    """Where it is reached, each host:port, tried in turn. For `NodePort`: hosts to use instead of the nodes' addresses;
    the port is the node port where none is given."""


class SynchronizerSpec(SpecModel):
    """The Synchronizer. Ports and storage are immutable."""

    model_config = ConfigDict(
        json_schema_extra=rules.cel(
            rule(
                "!has(self.adminPort) || !has(self.port) || self.adminPort != self.port",
                rules.PORTS_DIFFER,
                "adminPort",
            ),
            *(rules.fixed(field) for field in ("port", "adminPort", "metricsPort", "storage")),
            rule(
                "!has(self.metricsPort) || !has(self.port) || self.metricsPort != self.port",
                rules.PORTS_DIFFER,
                "metricsPort",
            ),
            rule(
                "!has(self.metricsPort) || !has(self.adminPort) || self.metricsPort != self.adminPort",
                rules.PORTS_DIFFER,
                "metricsPort",
            ),
        )
    )

    port: _Port | None = None
    """gRPC port for Learners. Default: a free one, which a local run keeps while it is free; 29400 on a cluster."""
    admin_port: _Port | None = None
    """HTTP port for progress and drain. Default: as `port`."""
    metrics_port: _Port | None = None
    """HTTP port of /metrics and /healthz. Default: as `port`."""
    storage: StorageSpec = StorageSpec()
    """Its volume. Local runs keep it in the work folder."""
    exposure: ExposureSpec = ExposureSpec()
    """How Learners of other clusters reach it."""
    template: OpenObject | None = None
    """What is changed of its pod, as in `learners.template`. A change restarts it, and no Learner."""

    @property
    def ports(self) -> dict[str, int]:
        """The ports that are given, by their names in the manifest."""
        given = {"port": self.port, "adminPort": self.admin_port, "metricsPort": self.metrics_port}
        return {name: port for name, port in given.items() if port is not None}


def has_port(address: str) -> bool:
    """Whether it says which port."""
    return re.search(_WITH_PORT, address) is not None


def problems(spec: SynchronizerSpec, remote_sites: bool) -> Iterator[Problem]:
    """Every broken rule; `remote_sites`: some Learners may run in other clusters."""
    seen: dict[int, str] = {}
    for name, port in spec.ports.items():
        if port in seen:
            yield Problem(f"{PATH}.{name}", f"{port}", f"{rules.PORTS_DIFFER} ({seen[port]} has it)")
        seen[port] = name
    exposure, at = spec.exposure, f"{PATH}.exposure.addresses"
    if remote_sites and exposure.type == "ClusterIP":
        yield Problem(f"{PATH}.exposure.type", exposure.type, rules.EXPOSURE_NEEDED)
    if exposure.type == "Address" and not exposure.addresses:
        yield Problem(at, "", rules.ADDRESSES_NEEDED)
    if exposure.addresses and exposure.type not in ("Address", "NodePort"):
        yield Problem(at, ", ".join(exposure.addresses), rules.ADDRESSES_UNUSED)
    for address in exposure.addresses:
        if exposure.type == "Address" and not has_port(address):
            yield Problem(at, address, rules.ADDRESS)

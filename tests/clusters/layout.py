"""Names, addresses and folders of a set of test clusters: the one home of all of them.

A set is a hub and numbered sites. Everything a set leaves on the machine is under its folder, its cgroup and its
network namespaces, and all three carry the folder's name, so that several sets can be up side by side.
"""

import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

WAN = "wan"
WAN_ADDRESS = "192.0.2.1"
API_PORT = 6443
SERVICE_CIDR = "10.96.0.0/16"
KUBERNETES_SERVICE = "10.96.0.1"
DNS_SERVICE = "10.96.0.10"
HUB = "hub"
MAX_SITES = 20
MAX_NODES = 9
HIDDEN_FROM_NODES = ("/run", "/var/lib", "/var/log")
"""Folders that each node has for itself: what lies there on the machine is not seen by its kubelet."""


class LayoutRefused(ValueError):
    """The folder or the number of sites cannot be used."""


@dataclass(frozen=True)
class NodeLayout:
    """One real node of a site; the first shares the network namespace of the site's control plane."""

    site: "SiteLayout"
    index: int

    @property
    def name(self) -> str:
        return f"{self.site.name}-node-{self.index}"

    @property
    def address(self) -> str:
        return f"192.0.2.{10 * (self.site.index + 1) + self.index}"

    @property
    def pod_cidr(self) -> str:
        return f"10.{100 + self.site.index}.{self.index}.0/24"

    @property
    def namespace(self) -> str:
        """Short name of the network namespace."""
        return self.site.name if self.index == 0 else f"{self.site.name}-{self.index}"

    @property
    def link(self) -> str:
        """The end of the node's link in `wan`; the other end is the node's eth0."""
        return f"v-{self.site.index}-{self.index}"

    @property
    def folder(self) -> Path:
        return self.site.folder / self.name

    @property
    def cgroup(self) -> str:
        return f"{self.site.cgroup}/{self.name}"


@dataclass(frozen=True)
class SiteLayout:
    """One cluster: control plane, nodes."""

    clusters: "Layout"
    name: str
    index: int

    @property
    def folder(self) -> Path:
        return self.clusters.folder / self.name

    @property
    def pki(self) -> Path:
        return self.folder / "pki"

    @property
    def address(self) -> str:
        return self.node(0).address

    @property
    def server(self) -> str:
        return f"https://{self.address}:{API_PORT}"

    @property
    def cluster_cidr(self) -> str:
        return f"10.{100 + self.index}.0.0/16"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's, with everything inline."""
        return self.clusters.folder / f"{self.name}.kubeconfig"

    @property
    def audit_log(self) -> Path:
        """One JSON object a line for every write that reached the API server."""
        return self.folder / "log" / "audit"

    @property
    def volumes(self) -> Path:
        return self.folder / "volumes"

    @property
    def cgroup(self) -> str:
        return f"{self.clusters.name}/{self.name}"

    def node(self, index: int) -> NodeLayout:
        if not 0 <= index < MAX_NODES:
            raise LayoutRefused(f"a site has at most {MAX_NODES} nodes")
        return NodeLayout(self, index)

    def nodes(self) -> list[NodeLayout]:
        """The real nodes that were started, by their folders."""
        return [node for node in map(self.node, range(MAX_NODES)) if node.folder.is_dir()]


@dataclass(frozen=True)
class Layout:
    """A set of clusters; `folder` is where everything of it lies."""

    folder: Path

    @classmethod
    def from_environment(cls) -> "Layout":
        folder = Path(os.environ.get("CLUSTERS_DIR") or "/var/tmp/diloco-clusters")
        return cls(Path(os.path.abspath(folder)))

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,39}", self.name):
            raise LayoutRefused(
                f"CLUSTERS_DIR must end in a name of a-z, 0-9 and -, at most 40 long, not {self.name!r}"
            )
        for hidden in HIDDEN_FROM_NODES:
            if self.folder.is_relative_to(hidden):
                raise LayoutRefused(f"CLUSTERS_DIR cannot be in {hidden}: every node has its own")

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @cached_property
    def hub(self) -> SiteLayout:
        return self.site(HUB)

    def site(self, name: str) -> SiteLayout:
        if name == HUB:
            return SiteLayout(self, HUB, 0)
        prefix, _, number = name.partition("-")
        if prefix != "site" or not number.isdigit() or not 1 <= int(number) <= MAX_SITES:
            raise LayoutRefused(f"no such site: {name!r}; there are {HUB} and site-1 to site-{MAX_SITES}")
        return SiteLayout(self, name, int(number))

    def sites(self) -> list[SiteLayout]:
        """The clusters that were started, the hub first, by their folders."""
        names = [HUB, *(f"site-{number}" for number in range(1, MAX_SITES + 1))]
        return [site for site in map(self.site, names) if site.folder.is_dir()]

    def namespace(self, short: str) -> str:
        """Full name of a network namespace; the dot keeps sets apart whose names begin alike."""
        return f"{self.name}.{short}"

    def namespace_path(self, short: str) -> Path:
        return Path("/run/netns") / self.namespace(short)

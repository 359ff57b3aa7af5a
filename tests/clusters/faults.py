"""Failures on purpose: a site cut off, links down, components stopped or frozen.

Cuts are nftables rules where `wan` forwards between sites: packets vanish, also those of established connections, as
they do when a route is lost. A process in `wan` itself still reaches every site and can watch what happens.
"""

import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Literal, get_args

from clusters import cgroups, network
from clusters.api import Object
from clusters.layout import API_PORT, HUB, WAN, Layout, SiteLayout
from clusters.processes import Processes

Kind = Literal["api", "pods", "all"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""api: the site's API from the hub. pods: everything else between site and hub, so its pods from the hub's NodePorts.
all: the site's link is down, nobody reaches it."""


def cut(site: SiteLayout, kind: Kind) -> None:
    """Cut a site off; cutting twice is cutting once."""
    if site.name == HUB and kind != "all":
        raise ValueError("the hub cannot be cut from itself")
    _change(site.clusters, {*_read(site.clusters), (site.name, kind)})


def heal(site: SiteLayout, kind: Kind) -> None:
    _change(site.clusters, _read(site.clusters) - {(site.name, kind)})


def heal_everything(layout: Layout) -> None:
    """No cut is left, and every component runs."""
    _change(layout, set())
    for site in layout.sites():
        processes = Processes(site.folder)
        for name in processes.names():
            processes.restart(name)
            processes.send(name, signal.SIGCONT)


def restore(layout: Layout) -> None:
    """Make the rules as they were last said to be, after the namespace was made."""
    _change(layout, _read(layout))


def stop(site: SiteLayout, component: str) -> None:
    """SIGKILL, and wait until it has ended."""
    Processes(site.folder).stop(component)


def start(site: SiteLayout, component: str) -> None:
    Processes(site.folder).restart(component)


def freeze(site: SiteLayout, component: str) -> None:
    """SIGSTOP: it accepts connections and never answers."""
    Processes(site.folder).send(component, signal.SIGSTOP)


def thaw(site: SiteLayout, component: str) -> None:
    Processes(site.folder).send(component, signal.SIGCONT)


def kill_container(site: SiteLayout, pod: Object) -> None:
    """SIGKILL the processes of the pod's first container, as the kernel does where memory runs out."""
    container = pod["status"]["containerStatuses"][0]["containerID"].partition("://")[2]
    for process in cgroups.processes_of_folder(site.cgroup, container):
        with suppress(ProcessLookupError):  # they go with the first of them
            os.kill(process, signal.SIGKILL)


def rules(layout: Layout, cuts: set[tuple[str, str]]) -> str:
    """The whole table, given at once to nft."""
    lines = [_own_pods_only(site) for site in layout.sites()]
    hub = _addresses(layout.hub)
    for name, kind in sorted(cuts):
        site = _addresses(layout.site(name))
        if kind == "api":
            lines.append(f"ip saddr {hub} ip daddr {site} tcp dport {API_PORT} drop")
            lines.append(f"ip saddr {site} ip daddr {hub} tcp sport {API_PORT} drop")
        if kind == "pods":
            for source, target, port in ((site, hub, "sport"), (hub, site, "dport")):
                lines.append(f"ip saddr {source} ip daddr {target} tcp {port} != {API_PORT} drop")
                lines.append(f"ip saddr {source} ip daddr {target} meta l4proto != tcp drop")
    chain = "\n    ".join(["type filter hook forward priority 0; policy accept;", *lines])
    emptied = "table inet faults\ndelete table inet faults\n"
    return f"{emptied}table inet faults {{\n  chain forward {{\n    {chain}\n  }}\n}}\n"


def _own_pods_only(site: SiteLayout) -> str:
    """Pods have no address outside their cluster: what other sites want of them goes through NodePorts."""
    own = ", ".join([*(node.address for node in site.nodes()), site.cluster_cidr])
    return f"ip daddr {site.cluster_cidr} ip saddr != {{ {own} }} drop"


def _addresses(site: SiteLayout) -> str:
    return f"{{ {', '.join(node.address for node in site.nodes())} }}"


def _change(layout: Layout, cuts: set[tuple[str, str]]) -> None:
    network.run_in(layout, WAN, "nft", "-f", "-", stdin=rules(layout, cuts))
    for site in layout.sites():
        for node in site.nodes():
            network.set_link(node, up=(site.name, "all") not in cuts)
    _file(layout).write_text(json.dumps(sorted(cuts)))


def _read(layout: Layout) -> set[tuple[str, str]]:
    path = _file(layout)
    return {(name, kind) for name, kind in json.loads(path.read_text())} if path.exists() else set()


def _file(layout: Layout) -> Path:
    return layout.folder / "cuts.json"

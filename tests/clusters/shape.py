"""Shaping a site's link: a token bucket on both ends of it, so each direction has the rate."""

from clusters import network
from clusters.layout import WAN, SiteLayout


def limit(site: SiteLayout, mbit: float) -> None:
    """So many megabit a second each way for each node of the site; 0 takes the limit away."""
    for node in site.nodes():
        for namespace, device in ((WAN, node.link), (node.namespace, "eth0")):
            _limit(site, namespace, device, mbit)


def _limit(site: SiteLayout, namespace: str, device: str, mbit: float) -> None:
    where = site.clusters.namespace(namespace)
    if mbit > 0:
        bucket = ("rate", f"{mbit}mbit", "burst", "64kb", "latency", "200ms")
        network.run("tc", "-n", where, "qdisc", "replace", "dev", device, "root", "tbf", *bucket)
    elif "tbf" in network.run("tc", "-n", where, "qdisc", "show", "dev", device):
        network.run("tc", "-n", where, "qdisc", "delete", "dev", device, "root")

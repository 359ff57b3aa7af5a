"""Network namespaces: `wan` routes between the sites, every site and every further node has its own.

Nothing has a route out of the machine, and the machine itself has none in: a process enters `wan` to reach the API
servers and NodePorts. Sites reach each other only through `wan`, where links are cut (faults.py) and shaped (shape.py).
"""

import ctypes
import os
import subprocess
from pathlib import Path

from clusters.layout import WAN, WAN_ADDRESS, Layout, NodeLayout

_CLONE_NEWNET = 0x40000000
_FOLDER = Path("/run/netns")
"""Made and mounted by `ip netns add`; never removed by it."""


def run(*command: str, stdin: str | None = None) -> str:
    """Run a command of the machine; its error output is in the exception."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def run_in(layout: Layout, namespace: str, *command: str, stdin: str | None = None) -> str:
    """Run a command in a network namespace given by its short name."""
    return run("nsenter", f"--net={layout.namespace_path(namespace)}", "--", *command, stdin=stdin)


def enter(layout: Layout, namespace: str = WAN) -> None:
    """Move this thread, and every thread it starts later, into a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(layout.namespace_path(namespace), os.O_RDONLY)
    try:
        if libc.setns(descriptor, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter network namespace {namespace}")
    finally:
        os.close(descriptor)


def make_wan(layout: Layout) -> None:
    if _make_namespace(layout, WAN):
        run("ip", "-n", layout.namespace(WAN), "address", "add", f"{WAN_ADDRESS}/32", "dev", "lo")
        _forward(layout, WAN)


def link_node(node: NodeLayout) -> None:
    """Make the node's namespace and its link to `wan`; nothing happens where they are there."""
    layout = node.site.clusters
    _make_namespace(layout, node.namespace)
    wan, inside = layout.namespace(WAN), layout.namespace(node.namespace)
    if _has_link(wan, node.link):
        return
    run("ip", "-n", wan, "link", "add", node.link, "type", "veth", "peer", "name", "eth0", "netns", inside)
    run("ip", "-n", wan, "link", "set", node.link, "up")
    run("ip", "-n", inside, "address", "add", f"{node.address}/32", "dev", "eth0")
    run("ip", "-n", inside, "link", "set", "eth0", "up")
    run("ip", "-n", inside, "route", "add", WAN_ADDRESS, "dev", "eth0", "scope", "link")
    run("ip", "-n", inside, "route", "add", "default", "via", WAN_ADDRESS, "dev", "eth0")
    set_routes(node)
    _forward(layout, node.namespace)


def set_routes(node: NodeLayout) -> None:
    """Routes of `wan` to the node; they vanish when its link goes down."""
    wan = node.site.clusters.namespace(WAN)
    run("ip", "-n", wan, "route", "replace", node.address, "dev", node.link, "src", WAN_ADDRESS)
    run("ip", "-n", wan, "route", "replace", node.pod_cidr, "via", node.address, "dev", node.link, "onlink")


def set_link(node: NodeLayout, *, up: bool) -> None:
    wan = node.site.clusters.namespace(WAN)
    run("ip", "-n", wan, "link", "set", node.link, "up" if up else "down")
    if up:
        set_routes(node)


def remove_namespaces(layout: Layout) -> None:
    """Remove all namespaces of the set; their links go with them, and with the last one the folder of them all."""
    for name in namespaces(layout):
        run("ip", "netns", "delete", name)
    mounted = f" {_FOLDER} " in Path("/proc/self/mounts").read_text()
    if mounted and not any(_FOLDER.iterdir()):
        run("umount", str(_FOLDER))
        _FOLDER.rmdir()


def remove_namespace(node: NodeLayout) -> None:
    """Remove the namespace of one node and its link, which would stay as long as any process is left in there."""
    run("ip", "-n", node.site.clusters.namespace(WAN), "link", "delete", node.link)
    run("ip", "netns", "delete", node.site.clusters.namespace(node.namespace))


def namespaces(layout: Layout) -> list[str]:
    return sorted(path.name for path in _FOLDER.glob(layout.namespace("*"))) if _FOLDER.is_dir() else []


def _make_namespace(layout: Layout, short: str) -> bool:
    path = layout.namespace_path(short)
    if path.exists():
        if path.stat().st_dev != path.parent.stat().st_dev:  # a namespace is mounted on it
            return False
        path.unlink()  # left by a machine that went down
    run("ip", "netns", "add", path.name)
    run("ip", "-n", path.name, "link", "set", "lo", "up")
    return True


def _has_link(namespace: str, link: str) -> bool:
    names = run("ip", "-n", namespace, "-br", "link", "show").split("\n")
    return any(line.split("@")[0].split(" ")[0] == link for line in names)


def _forward(layout: Layout, namespace: str) -> None:
    run_in(layout, namespace, "sysctl", "-qw", "net.ipv4.ip_forward=1")

"""`make clusters-up`, `make clusters-down` and what a person wants to do to running clusters.

Run as root: PYTHONPATH=tests python3 -m clusters.cli --help
"""

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

from clusters import build, cgroups, faults, images, network, node, shape, site, storage
from clusters.layout import HUB, MAX_SITES, Layout, LayoutRefused
from clusters.processes import Processes

FREE_VOLUMES = 8
"""Volumes that each first node offers to claims."""


def up(layout: Layout, num_sites: int = 2, num_nodes: int = 1) -> list[str]:
    """Start what does not run of a hub and so many sites; `site/component` of what was started."""
    if not 0 <= num_sites <= MAX_SITES:
        raise LayoutRefused(f"SITES must be 0 to {MAX_SITES}, not {num_sites}")
    build.install_packages()
    build.raise_limits()
    with _locked(layout):
        build.install_binaries(layout)
        network.make_wan(layout)
        network.enter(layout)
        archives = [images.archive(layout, images.busybox())]
        names = [HUB, *(f"site-{number}" for number in range(1, num_sites + 1))]
        with ThreadPoolExecutor(len(names)) as pool:
            started = list(pool.map(lambda name: site.start(layout.site(name), num_nodes, archives), names))
        for name in names:
            storage.provide(layout.site(name), layout.site(name).node(0), FREE_VOLUMES)
        faults.restore(layout)
    return [f"{name}/{component}" for name, components in zip(names, started, strict=True) for component in components]


def down(layout: Layout) -> None:
    """End everything and remove every trace but the binaries' cache; nothing happens if nothing is up."""
    if not layout.folder.exists() and not leftovers(layout):
        return
    with _locked(layout):
        if cgroups.exists(layout.name):
            cgroups.kill(layout.name)
            cgroups.remove(layout.name)
        network.remove_namespaces(layout)
        node.remove_folder(layout.folder)
    left = leftovers(layout)
    if left:
        raise RuntimeError(f"left behind: {', '.join(left)}")


def leftovers(layout: Layout) -> list[str]:
    """What a set that is down must not leave: namespaces, mounts, cgroups (so no processes either), files."""
    found = [f"network namespace {name}" for name in network.namespaces(layout)]
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    found += [f"mount {line.split()[1]}" for line in mounts if str(layout.folder) in line]
    found += [f"cgroup {layout.name}"] if cgroups.exists(layout.name) else []
    found += [f"folder {layout.folder}"] if layout.folder.exists() else []
    return found


def how_to_use(layout: Layout) -> str:
    setting = "" if "CLUSTERS_DIR" not in os.environ else f"CLUSTERS_DIR={layout.folder} "
    lines = ["The clusters are up. Nothing outside their network namespaces has a route to them; `wan` reaches all:"]
    for one in layout.sites():
        lines.append(f"  {setting}tests/clusters/exec wan kubectl --kubeconfig {one.kubeconfig} get nodes")
    return "\n".join([*lines, "Take them down with: make clusters-down"])


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    layout = Layout.from_environment()
    if os.geteuid() != 0:
        print("error: test clusters need root (namespaces, mounts, cgroups)", file=sys.stderr)
        return 1
    begin = time.monotonic()
    options.run(layout, options)
    if options.command in ("up", "down"):
        print(f"{options.command}: {time.monotonic() - begin:.1f} s")
    return 0


def _up(layout: Layout, options: argparse.Namespace) -> None:
    started = up(layout, options.sites, options.nodes)
    print(f"started: {' '.join(started) or 'nothing, all of it ran'}")
    print(how_to_use(layout))


def _build(layout: Layout, _: argparse.Namespace) -> None:
    build.install_packages()
    build.binaries()


def _load(layout: Layout, options: argparse.Namespace) -> None:
    for one in layout.sites():
        for each in one.nodes():
            for archive in options.archives:
                node.load_image(each, Processes(one.folder), archive)
                print(f"{each.name}: {archive}")


def _shape(layout: Layout, options: argparse.Namespace) -> None:
    shape.limit(layout.site(options.site), options.mbit)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="clusters", description="Real Kubernetes clusters on this machine")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("up", help="start a hub and sites")
    one.add_argument("--sites", type=int, default=2)
    one.add_argument("--nodes", type=int, default=1, help="real nodes a cluster")
    one.set_defaults(run=_up)
    commands.add_parser("down", help="remove every trace").set_defaults(run=lambda layout, _: down(layout))
    commands.add_parser("build", help="build what is not built yet").set_defaults(run=_build)
    one = commands.add_parser("load", help="load image archives (OCI, docker) into every node")
    one.add_argument("archives", type=Path, nargs="+")
    one.set_defaults(run=_load)
    for name, act in (("cut", faults.cut), ("heal", faults.heal)):
        one = commands.add_parser(name, help=f"{name} a site: {', '.join(faults.KINDS)}")
        one.add_argument("site")
        one.add_argument("kind", choices=faults.KINDS)
        one.set_defaults(run=lambda layout, options, act=act: act(layout.site(options.site), options.kind))
    one = commands.add_parser("shape", help="limit a site's link, both ways")
    one.add_argument("site")
    one.add_argument("mbit", type=float, help="megabit a second; 0 takes the limit away")
    one.set_defaults(run=_shape)
    for name in ("stop", "start", "freeze", "thaw"):
        one = commands.add_parser(name, help=f"{name} a component (etcd, kube-apiserver, kubelet, ...)")
        one.add_argument("site")
        one.add_argument("component")
        act = getattr(faults, name)
        one.set_defaults(run=lambda layout, options, act=act: act(layout.site(options.site), options.component))
    return parser


def _locked(layout: Layout) -> AbstractContextManager[None]:
    """One command at a time on a set; the lock is no part of the set and stays in the cache."""
    return build.locked(build.cache() / f"{layout.name}.lock")


if __name__ == "__main__":
    sys.exit(main())

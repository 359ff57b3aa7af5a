"""`make clusters-load`: the images that were built, into the nodes' containerd. The operator's goes to the hub only.

Run as root: PYTHONPATH=tests python3 -m clusters.load --help
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from clusters import network, node
from clusters.layout import HUB, Layout
from clusters.processes import Processes

IMAGES_PROGRAM = Path(__file__).resolve().parents[2] / ".ci/images.py"
TARGETS = ("operator", "trainer")
GIB = 2**30


class NoRoom(Exception):
    """With the line that says what to do."""


def load(layout: Layout, target: str, tag: str, only: str = "") -> list[str]:
    """Load one image; names of the nodes that have it now."""
    wanted = only or (HUB if target == "operator" else "")
    nodes = [(site, one) for site in layout.sites() if wanted in ("", site.name) for one in site.nodes()]
    with tempfile.TemporaryDirectory(dir=layout.folder) as folder:
        save = [sys.executable, str(IMAGES_PROGRAM), "save", target, "--tag", tag, "--folder", folder]
        subprocess.run(save, check=True)
        archive = Path(folder, f"{target}.tar")
        _check_room(layout, target, archive.stat().st_size, len(nodes))
        for site, one in nodes:
            node.load_image(one, Processes(site.folder), archive)
    return [one.name for _, one in nodes]


def _check_room(layout: Layout, target: str, size: int, num_nodes: int) -> None:
    """Each node keeps the archive's layers and unpacks them."""
    needed, free = 2 * size * num_nodes + 2 * GIB, shutil.disk_usage(layout.folder).free
    if needed > free:
        raise NoRoom(
            f"{target}: {needed / GIB:.0f} GiB of free disk needed for {num_nodes} nodes, {free / GIB:.0f} GiB there; "
            "ONLY=site-1 loads it into one site, IMAGES=operator leaves the trainer's image out"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", default=TARGETS, help="operator, trainer; default both")
    parser.add_argument("--tag", default="dev")
    parser.add_argument("--only", default="", help="one site; default: all, the operator's image the hub")
    options = parser.parse_intermixed_args()
    layout = Layout.from_environment()
    if not layout.folder.is_dir():
        print("error: no clusters are up; make clusters-up", file=sys.stderr)
        return 1
    known = [site.name for site in layout.sites()]
    if options.only and options.only not in known:
        print(f"error: there is no site {options.only}; there are {', '.join(known)}", file=sys.stderr)
        return 1
    network.enter(layout)
    try:
        for target in options.targets:
            print(f"{target}: {', '.join(load(layout, target, options.tag, options.only))}", flush=True)
    except (NoRoom, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

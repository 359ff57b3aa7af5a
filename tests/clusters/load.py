"""`make clusters-load`: the images that were built, into the nodes' containerd. The operator's goes to the hub only.

Run as root: PYTHONPATH=tests python3 -m clusters.load --help
"""

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clusters import network, node
from clusters.layout import HUB, Layout
from clusters.processes import Processes

IMAGES_PROGRAM = Path(__file__).resolve().parents[2] / ".ci/images.py"
TARGETS = ("operator", "trainer")
GIB = 2**30


class NoRoom(Exception):
    """With the line that says what to do."""


def load(layout: Layout, target: str, tag: str, only: Sequence[str] = ()) -> list[str]:
    """Load one image; names of the nodes that have it now."""
    everywhere = [HUB] if target == "operator" else [site.name for site in layout.sites()]
    nodes = [(site, one) for site in layout.sites() if site.name in (only or everywhere) for one in site.nodes()]
    with tempfile.TemporaryDirectory(dir=layout.folder) as folder:
        save = [sys.executable, str(IMAGES_PROGRAM), "save", target, "--tag", tag, "--folder", folder]
        subprocess.run(save, check=True)
        archive = Path(folder, f"{target}.tar")
        _check_room(layout, target, archive.stat().st_size, len(nodes))
        for site, one in nodes:
            processes = Processes(site.folder)
            node.load_image(one, processes, archive)
            # They are unpacked: kept as well, they would take the image's size once more on every node.
            node.run(one, processes, "ctr", "-n", "k8s.io", "content", "rm", *_layers(archive))
    return [one.name for _, one in nodes]


def _check_room(layout: Layout, target: str, size: int, num_nodes: int) -> None:
    """The last node takes the archive in and unpacks it."""
    needed, free = size * (num_nodes + 1) + 3 * GIB, shutil.disk_usage(layout.folder).free
    if needed > free:
        raise NoRoom(
            f"{target}: {needed / GIB:.0f} GiB of free disk needed for {num_nodes} nodes, {free / GIB:.0f} GiB there; "
            "ONLY=hub,site-1 loads it into these, IMAGES=operator leaves the trainer's image out"
        )


def _layers(archive: Path) -> list[str]:
    """Digests of an archive's layers, which are not compressed."""

    def read(tar: tarfile.TarFile, name: str) -> dict[str, Any]:
        file = tar.extractfile(name)
        assert file is not None
        found = json.load(file)
        return found[0] if isinstance(found, list) else found

    with tarfile.open(archive) as tar:
        config = read(tar, read(tar, "manifest.json")["Config"])
    return list(dict.fromkeys(config["rootfs"]["diff_ids"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", default=TARGETS, help="operator, trainer; default both")
    parser.add_argument("--tag", default="dev")
    parser.add_argument(
        "--only", default="", help="sites, separated by commas; default: all, for the operator's image the hub"
    )
    options = parser.parse_intermixed_args()
    layout = Layout.from_environment()
    if not layout.folder.is_dir():
        print("error: no clusters are up; make clusters-up", file=sys.stderr)
        return 1
    known = [site.name for site in layout.sites()]
    only = [name for name in options.only.split(",") if name]
    if unknown := set(only) - set(known):
        print(f"error: there is no {', '.join(sorted(unknown))}; there are {', '.join(known)}", file=sys.stderr)
        return 1
    network.enter(layout)
    try:
        for target in options.targets:
            print(f"{target}: {', '.join(load(layout, target, options.tag, only))}", flush=True)
    except (NoRoom, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`make clusters-load`: the images that were built, into the nodes' containerd. The operator's goes to the hub only.

On disk an image is there once, however many nodes have it: their unpacked layers are hard links to the first node's.

Run as root: PYTHONPATH=tests python3 -m clusters.load --help
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clusters import network, node
from clusters.layout import HUB, Layout, NodeLayout
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
    _check_room(layout, target, _size(target, tag))
    first: list[Path] = []
    with tempfile.TemporaryDirectory(dir=layout.folder) as folder:
        _images_program("save", target, "--tag", tag, "--folder", folder)
        archive = Path(folder, f"{target}.tar")
        for site, one in nodes:
            processes = Processes(site.folder)
            node.load_image(one, processes, archive)
            layers = _layers(archive)
            # They are unpacked: kept as well, they would take the image's size once more on every node.
            node.run(one, processes, "ctr", "-n", "k8s.io", "content", "rm", *layers)
            unpacked = _unpacked(one, processes, layers)
            for mine, its in zip(unpacked, first, strict=False):
                share(its, mine)
            first = first or unpacked
    return [one.name for _, one in nodes]


def share(kept: Path, copy: Path) -> None:
    """Files of `copy` become hard links to those of `kept`, the same layer unpacked. Nobody may be writing to them."""
    for folder, _, names in os.walk(copy):
        for name in names:
            mine = Path(folder, name)
            its = kept / mine.relative_to(copy)
            if its.is_file() and not its.is_symlink() and _looks(its) == _looks(mine) and not its.samefile(mine):
                link = mine.with_name(f"{name[:200]}.link")
                link.hardlink_to(its)
                link.replace(mine)


def _looks(file: Path) -> tuple[int, ...]:
    """What files of one layer that were unpacked twice have in common."""
    found = file.lstat()
    return found.st_mode, found.st_uid, found.st_gid, found.st_size, found.st_mtime_ns


def _unpacked(one: NodeLayout, processes: Processes, layers: Sequence[str]) -> list[Path]:
    """Folders of an image's layers on this machine, the lowest first."""
    chain = layers[0]
    for layer in layers[1:]:
        chain = f"sha256:{hashlib.sha256(f'{chain} {layer}'.encode()).hexdigest()}"
    ctr = ("ctr", "-n", "k8s.io", "snapshots")
    (mount,) = json.loads(node.run(one, processes, *ctr, "view", "--mounts", "looked-at", chain))
    try:
        node.run(one, processes, *ctr, "rm", "looked-at")
    except RuntimeError as error:
        if "not found" not in str(error):  # containerd may have been quicker: nothing refers to it
            raise
    lower = [option.removeprefix("lowerdir=") for option in mount["Options"] if option.startswith("lowerdir=")]
    folders = lower[0].split(":") if lower else [mount["Source"]]  # an image of one layer is no overlay
    return [one.folder / folder.lstrip("/") for folder in reversed(folders)]


def _images_program(*arguments: str) -> str:
    command = [sys.executable, str(IMAGES_PROGRAM), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _size(target: str, tag: str) -> int:
    return int(_images_program("size", target, "--tag", tag))


def _check_room(layout: Layout, target: str, size: int) -> None:
    """For the archive, for what a containerd takes in of it, and for the layers of two nodes until they are shared."""
    needed, free = 4 * size + 2 * GIB, shutil.disk_usage(layout.folder).free
    if needed > free:
        raise NoRoom(
            f"{target}: {needed / GIB:.0f} GiB of free disk needed meanwhile, {free / GIB:.0f} GiB there; "
            "IMAGES=operator leaves the trainer's image out"
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

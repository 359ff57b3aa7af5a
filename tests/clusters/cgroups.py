"""Cgroups (v1) of a set of clusters: the nodes' pods live in them, and every process started is known by them.

A process cannot leave the group it was started in, so the groups list exactly what belongs to a set, also what a
container or a shim started, and what nobody's process id was written down for.
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

TRACKING = "pids"
"""The hierarchy in which the components themselves are found; pods are in all."""


class CgroupsUnfit(RuntimeError):
    """The machine's cgroups are not what the nodes need."""


def hierarchies() -> dict[str, Path]:
    """Mounted v1 hierarchies by the name of their folder."""
    found = {path.name: path for path in _mounted("cgroup")}
    missing = {"cpu", "cpuset", "memory", TRACKING} - {name for names in found for name in names.split(",")}
    if missing:
        raise CgroupsUnfit(
            f"cgroup v1 hierarchies missing: {', '.join(sorted(missing))}. The test clusters run on machines with"
            " cgroup v1; where there is only v2, use kind (make kind-load) instead."
        )
    return found


def _mounted(kind: str) -> list[Path]:
    fields = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    return [Path(field[1]) for field in fields if field[2] == kind]


def _everywhere() -> list[Path]:
    """Also v2, where that is mounted beside v1: kubelets make the groups of their pods there, too."""
    return [*hierarchies().values(), *_mounted("cgroup2")]


def make(group: str) -> None:
    """Make the group in every hierarchy; a cpuset without CPUs takes no process, so these are handed down."""
    for root in hierarchies().values():
        folder = root
        for part in group.split("/"):
            parent, folder = folder, folder / part
            folder.mkdir(exist_ok=True)
            for name in ("cpuset.cpus", "cpuset.mems"):
                if (folder / name).exists() and not (folder / name).read_text().strip():
                    (folder / name).write_text((parent / name).read_text())


def tracking_file(group: str) -> Path:
    """Where a process writes its id to belong to the group."""
    return hierarchies()[TRACKING] / group / "cgroup.procs"


def processes(group: str) -> set[int]:
    """Ids of all processes in the group and below, in any hierarchy."""
    found: set[int] = set()
    for root in hierarchies().values():
        for folder in _below(root / group):
            try:
                found.update(int(line) for line in (folder / "cgroup.procs").read_text().split())
            except OSError:  # the group went away meanwhile
                continue
    return found - {os.getpid()}


def processes_of_folder(group: str, name: str) -> set[int]:
    """Ids of the processes in the group of that name somewhere below the group, such as a container's."""
    root = hierarchies()[TRACKING]
    found = [folder for folder in _below(root / group) if folder.name == name]
    return set().union(*(processes(str(folder.relative_to(root))) for folder in found))


def kill(group: str, timeout_seconds: float = 20) -> None:
    """SIGKILL everything in the group until nothing is left."""
    deadline = time.monotonic() + timeout_seconds
    while left := processes(group):
        if time.monotonic() > deadline:
            raise CgroupsUnfit(f"processes of {group} do not end: {sorted(left)}")
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)


def remove(group: str, timeout_seconds: float = 10) -> None:
    """Remove the group and everything below it; processes must have ended."""
    deadline = time.monotonic() + timeout_seconds
    for root in _everywhere():
        for folder in reversed(list(_below(root / group))):
            while folder.exists():
                try:
                    folder.rmdir()
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)


def exists(group: str) -> bool:
    return any((root / group).exists() for root in _everywhere())


def _below(folder: Path) -> Iterator[Path]:
    """The group itself and all below it, parents first."""
    for path, _, _ in os.walk(folder):
        yield Path(path)

"""Learners that train without end start at full speed, then go on slowly: all of them would take the whole machine.

A Learner needs some seconds of a core before it trains (Python, torch, the first steps). A limit that leaves room for
the rest of the machine would make nearly a minute of it, each time a Learner is replaced. So containers whose limit is
`LIMIT` have their quota lowered once they have used what it takes to start. Only the container's own cgroup is written
to, as the kubelet would for a lower limit; nothing of it is seen through the API.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from clusters import cgroups
from clusters.layout import Layout

LIMIT = "900m"
"""Marks the containers that are meant; no other has it."""
_QUOTA = "90000"
"""The same in microseconds of a period of 100 ms."""
_SLOW_QUOTA = "5000"
_TO_START_NANOSECONDS = 6_000_000_000
_LOOK_SECONDS = 1.0


@contextlib.contextmanager
def kept(layout: Layout) -> Iterator[None]:
    """As long as the context is open, containers of all nodes of the clusters are looked at."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(_LOOK_SECONDS):
            slow_down(layout)

    thread = threading.Thread(target=look, name="pace")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def slow_down(layout: Layout) -> None:
    """Slow down those that have started."""
    quotas, used = (_hierarchy(name) / layout.name for name in ("cpu", "cpuacct"))
    for folder, inner, _ in os.walk(quotas):
        path = Path(folder)
        if inner or "kubepods" not in path.parts:
            continue
        try:
            meant = (path / "cpu.cfs_quota_us").read_text().strip() == _QUOTA
            if meant and int((used / path.relative_to(quotas) / "cpuacct.usage").read_text()) > _TO_START_NANOSECONDS:
                (path / "cpu.cfs_quota_us").write_text(_SLOW_QUOTA)
        except OSError:
            if path.exists():  # else it has ended meanwhile
                raise


def _hierarchy(controller: str) -> Path:
    return next(path for names, path in cgroups.hierarchies().items() if controller in names.split(","))

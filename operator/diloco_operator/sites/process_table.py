"""The local processes this site has started, on disk, so that a later run can end what a killed one left behind.

A process is known by its pid and its start time: a pid alone may have been given to a stranger. Does not start
anything.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from diloco_operator.files import write_atomically

_LINUX = sys.platform.startswith("linux")


@dataclass(frozen=True)
class ProcessRecord:
    """One running process, leader of its own process group."""

    pid: int
    start_time: str
    pod: str


def start_time(pid: int) -> str | None:
    """An opaque text that differs between two processes of one pid; None when there is no such process."""
    if _LINUX:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
            boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        except OSError:
            return None
        fields = stat.rsplit(")", 1)[1].split()
        return None if fields[0] in "ZX" else f"{boot}:{fields[19]}"
    listed = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return listed.stdout.strip() or None


def signal_process(pid: int, signum: signal.Signals) -> None:
    """Signal one process; gone is fine."""
    with suppress(ProcessLookupError):
        os.kill(pid, signum)


def signal_group(pid: int, signum: signal.Signals) -> None:
    """Signal the process group led by `pid`; gone is fine."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signum)


class ProcessTable:
    """`processes.json` of a site's folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records: dict[int, ProcessRecord] = {}

    def add(self, pid: int, pod: str) -> None:
        """Record a process that was just started."""
        started = start_time(pid)
        if started is not None:
            self._records[pid] = ProcessRecord(pid=pid, start_time=started, pod=pod)
            self._write()

    def remove(self, pid: int) -> None:
        """Forget a process that has ended."""
        if self._records.pop(pid, None) is not None:
            self._write()

    def end_leftovers(self, patience_seconds: float = 5.0) -> list[ProcessRecord]:
        """Kill what an earlier run recorded and left running, wait until it is gone, and forget it."""
        leftovers = [record for record in self._read() if start_time(record.pid) == record.start_time]
        for record in leftovers:
            signal_group(record.pid, signal.SIGKILL)
        deadline = time.monotonic() + patience_seconds
        while any(start_time(r.pid) == r.start_time for r in leftovers) and time.monotonic() < deadline:
            time.sleep(0.02)
        self._records = {}
        self._write()
        return leftovers

    def _read(self) -> list[ProcessRecord]:
        try:
            listed = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return []
        except ValueError:  # cut short by a crash of the machine: none of its processes is alive
            return []
        return [ProcessRecord(**record) for record in listed]

    def _write(self) -> None:
        write_atomically(self._path, json.dumps([asdict(record) for record in self._records.values()]))

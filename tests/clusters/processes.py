"""Long-running processes of a cluster: start, find, signal, stop.

A process is known by its id and its start time, so that a reused id is never mistaken for it. What was started is
kept as JSON in the site's folder, with its command line, so that a later run can start it again the same way.
"""

import json
import os
import signal
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from clusters import cgroups

_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}
"""All that a component sees: no proxy or Go setting of the caller reaches it."""


@dataclass(frozen=True)
class Component:
    """One process of a cluster: etcd, kubelet, ..."""

    name: str
    command: list[str]
    network: str
    """Path of its network namespace."""
    cgroup: str
    mounts_of: str = ""
    """Name of the component whose mount namespace it joins; empty: the machine's."""
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Record:
    component: Component
    pid: int
    start_time: int


class Processes:
    """The processes of one folder; records are in `run`, output in `log`."""

    def __init__(self, folder: Path) -> None:
        self._run = folder / "run"
        self._log = folder / "log"

    def start(self, component: Component) -> bool:
        """Start it unless it runs; True if it was started."""
        if self.is_running(component.name):
            return False
        self._run.mkdir(parents=True, exist_ok=True)
        self._log.mkdir(parents=True, exist_ok=True)
        pid = self._spawn(component)
        record = _Record(component, pid, _start_time(pid))
        written = self._run / f".{component.name}"
        written.write_text(json.dumps(asdict(record)))
        written.rename(self._run / f"{component.name}.json")
        return True

    def restart(self, name: str) -> None:
        """Start a stopped one again as it was."""
        self.start(self._record(name).component)

    def forget(self, name: str) -> None:
        """It has ended and will not be started again."""
        (self._run / f"{name}.json").unlink(missing_ok=True)

    def names(self) -> list[str]:
        return sorted(path.stem for path in self._run.glob("*.json"))

    def pid(self, name: str) -> int | None:
        """Process id, None if it does not run."""
        if not (self._run / f"{name}.json").exists():
            return None
        record = self._record(name)
        return record.pid if 0 != _start_time(record.pid) == record.start_time else None

    def is_running(self, name: str) -> bool:
        return self.pid(name) is not None

    def send(self, name: str, number: signal.Signals) -> None:
        """Raises ProcessLookupError if it does not run."""
        pid = self.pid(name)
        if pid is None:
            raise ProcessLookupError(f"{name} does not run")
        os.kill(pid, number)

    def stop(self, name: str, number: signal.Signals = signal.SIGKILL, timeout_seconds: float = 20) -> None:
        """End it and wait until it has ended; nothing happens if it does not run."""
        if not self.is_running(name):
            return
        self.send(name, number)
        deadline = time.monotonic() + timeout_seconds
        while self.is_running(name):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} did not end after {number.name}")
            time.sleep(0.02)

    def log_tail(self, name: str, num_lines: int = 15) -> str:
        path = self._log / name
        return "\n".join(path.read_text(errors="replace").splitlines()[-num_lines:]) if path.exists() else ""

    def enter(self, component: Component) -> list[str]:
        """Command prefix that runs something where the component runs."""
        prefix = ["nsenter", f"--net={component.network}"]
        if component.mounts_of:
            pid = self.pid(component.mounts_of)
            if pid is None:
                raise ProcessLookupError(f"{component.mounts_of} does not run, its mounts are gone")
            prefix.append(f"--mount=/proc/{pid}/ns/mnt")
        return [*prefix, "--"]

    def _record(self, name: str) -> _Record:
        read = json.loads((self._run / f"{name}.json").read_text())
        return _Record(Component(**read["component"]), read["pid"], read["start_time"])

    def _spawn(self, component: Component) -> int:
        """The shell puts itself into the cgroup, then becomes the command: the id stays the same."""
        into_group = f'echo $$ > {cgroups.tracking_file(component.cgroup)} && exec "$@"'
        command = ["/bin/sh", "-c", into_group, "sh", *self.enter(component), *component.command]
        log = str(self._log / component.name)
        return os.posix_spawn(
            command[0], command, _ENVIRONMENT | component.environment, setsid=True,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
        )  # fmt: skip


def write_configuration(path: Path, text: str) -> None:
    """Write the file unless it says so already: kube-proxy ends when its configuration is written again."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def _start_time(pid: int) -> int:
    """Start time in clock ticks since boot; 0 if there is no such process or it has ended and waits for its parent."""
    try:
        os.waitpid(pid, os.WNOHANG)  # ours, if this process started it
    except ChildProcessError:
        pass
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    # With threads left, its sockets are still open although its first thread has ended.
    ended = fields[0] in "ZX" and int(fields[17]) <= 1
    return 0 if ended else int(fields[19])

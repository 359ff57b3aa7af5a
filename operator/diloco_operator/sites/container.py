"""The life of one pod on the local machine: start, wait, restart with back-off, terminate with grace.

Plays the kubelet for one container: keeps `status` of the pod manifest as the kubelet would. Does not decide whether a
pod should exist; `ProcessSite` does what it is told about that.
"""

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from diloco_operator.sites import child
from diloco_operator.sites.command import command_line, environment, log_tail
from diloco_operator.sites.process_table import ProcessTable, signal_group, signal_process
from diloco_operator.sites.site import Manifest
from diloco_operator.sites.volumes import MissingObject, Volumes, secret_values

log = logging.getLogger(__name__)

DEFAULT_GRACE_SECONDS = 30


@dataclass(frozen=True)
class RestartBackoff:
    """Waits before a restarted container: 1, 2, 4 ... s, from the start again after a while of healthy running."""

    first_seconds: float = 1.0
    cap_seconds: float = 30.0
    reset_after_seconds: float = 60.0

    def wait(self, restarts_in_a_row: int) -> float:
        """Seconds to wait before restart number `restarts_in_a_row` (from 1)."""
        return float(min(self.cap_seconds, self.first_seconds * 2 ** min(restarts_in_a_row - 1, 30)))


@dataclass(frozen=True)
class Surroundings:
    """What all containers of a site share."""

    volumes: Volumes
    table: ProcessTable
    logs: Path
    own_environment: Mapping[str, str]
    backoff: RestartBackoff
    secrets: Callable[[], list[Manifest]]
    """The Secrets as they are now, for redaction."""


def timestamp(ahead_seconds: float = 0.0) -> str:
    """Now (or later), as Kubernetes writes it."""
    return (datetime.now(UTC) + timedelta(seconds=ahead_seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


class PodRun:
    """One pod. `run()` returns when its process is over for good or its deletion is complete."""

    def __init__(self, pod: Manifest, around: Surroundings, changed: Callable[[], None]) -> None:
        self.pod = pod
        self.pid: int | None = None
        self._around = around
        self._changed = changed
        self._deleting = asyncio.Event()
        self._poked = asyncio.Event()
        self._restarts = 0
        pod["status"] = {"phase": "Pending", "startTime": timestamp(), "containerStatuses": []}

    @property
    def deleting(self) -> bool:
        return self._deleting.is_set()

    def poke(self) -> None:
        """An object this pod may wait for has appeared."""
        self._poked.set()

    def delete(self, grace_seconds: float | None = None) -> None:
        """SIGTERM now; SIGKILL when the grace period is over. A second call can only shorten the grace."""
        configured = self.pod["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS)
        grace = float(configured if grace_seconds is None else grace_seconds)
        if not self.deleting:
            self.pod["metadata"]["deletionTimestamp"] = timestamp(grace)
            self.pod["metadata"]["deletionGracePeriodSeconds"] = int(grace)
            self._deleting.set()
            if self.pid is not None:
                signal_process(self.pid, signal.SIGTERM)
            self._changed()
        asyncio.get_running_loop().call_later(grace, self._kill)

    def _kill(self) -> None:
        if self.pid is not None:
            signal_group(self.pid, signal.SIGKILL)

    async def run(self) -> None:
        """Until the container is over for good (restartPolicy Never) or the pod is deleted."""
        always = self.pod["spec"].get("restartPolicy", "Always") == "Always"
        in_a_row = 0
        while not self.deleting:
            began = time.monotonic()
            try:
                mounts = await self._mounts()
                if mounts is None:
                    return
                began = time.monotonic()
                code = await self._run_once(mounts)
            except OSError as error:  # no processes, file descriptors or space left
                code = 128
                self._set_terminated(code, 0, timestamp(), f"error: cannot be started: {error}")
            if not always or self._deleting.is_set():
                self._set_phase("Succeeded" if code == 0 else "Failed")
                return
            in_a_row = 1 if time.monotonic() - began > self._around.backoff.reset_after_seconds else in_a_row + 1
            self._restarts += 1
            wait = self._around.backoff.wait(in_a_row)
            self._set_waiting("CrashLoopBackOff", f"back-off {wait:g}s restarting failed container")
            await self._sleep_unless_deleted(wait)

    async def _mounts(self) -> dict[str, Path] | None:
        """The pod's mounts, waiting for missing objects; None when it is deleted meanwhile."""
        while not self.deleting:
            self._poked.clear()
            try:
                return self._around.volumes.prepare(self.pod, fresh=self._restarts == 0)
            except MissingObject as missing:
                self._set_waiting("CreateContainerConfigError", str(missing))
            waits = [asyncio.ensure_future(event.wait()) for event in (self._poked, self._deleting)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
        return None

    async def _run_once(self, mounts: dict[str, Path]) -> int:
        """Start the process and wait for its end; returns the exit code as the kubelet gives it."""
        name = self.pod["metadata"]["name"]
        path = self._around.logs / f"{name}.log"
        with path.open("ab") as file:
            start = file.tell()
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", child.__file__, str(os.getpid())),
                *command_line(self.pod, mounts),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=environment(self.pod, mounts, self._around.own_environment),
                start_new_session=True,
            )
        began = timestamp()
        try:
            self.pid = process.pid
            self._around.table.add(process.pid, name)
            self._set_running(began)
            if self.deleting:  # deleted between the check and the start
                signal_process(process.pid, signal.SIGTERM)
            returned = await process.wait()
        finally:
            signal_group(process.pid, signal.SIGKILL)  # what it may have forked, or itself when it is not recorded
            self.pid = None
            self._forget(process.pid)
        code = returned if returned >= 0 else 128 - returned
        self._set_terminated(code, returned, began, self._last_words(path, start) if code else "")
        return code

    def _forget(self, pid: int) -> None:
        """A record that stays does no harm: the process it names has ended."""
        try:
            self._around.table.remove(pid)
        except OSError as error:
            log.warning("pod %s: %s", self.pod["metadata"]["name"], error)

    def _last_words(self, path: Path, start: int) -> str:
        try:
            return log_tail(path, start, self._redactions())
        except OSError as error:
            return f"its log cannot be read: {error.strerror}"

    def _redactions(self) -> frozenset[str]:
        used = {v["secret"]["secretName"] for v in self.pod["spec"].get("volumes", []) if "secret" in v}
        secrets = [s for s in self._around.secrets() if s["metadata"]["name"] in used]
        values = [value for secret in secrets for value in secret_values(secret).values()]
        return frozenset(text for value in values if (text := value.decode(errors="replace").strip()))

    async def _sleep_unless_deleted(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._deleting.wait(), seconds)
        except TimeoutError:
            pass

    def _container(self) -> Manifest:
        statuses = self.pod["status"]["containerStatuses"]
        if not statuses:
            statuses.append({"name": self.pod["spec"]["containers"][0]["name"], "restartCount": 0, "ready": False})
        status: Manifest = statuses[0]
        return status

    def _set_waiting(self, reason: str, message: str) -> None:
        status = self._container()
        if status.get("state", {}).get("terminated"):
            status["lastState"] = status["state"]
        status |= {"state": {"waiting": {"reason": reason, "message": message}}, "ready": False}
        self._changed()

    def _set_running(self, began: str) -> None:
        self.pod["status"]["phase"] = "Running"
        status = self._container()
        status |= {"state": {"running": {"startedAt": began}}, "ready": True, "restartCount": self._restarts}
        self._changed()

    def _set_terminated(self, code: int, returned: int, began: str, message: str) -> None:
        terminated = {
            "exitCode": code,
            "reason": "Completed" if code == 0 else "Error",
            "startedAt": began,
            "finishedAt": timestamp(),
            "message": message,
        }
        if returned < 0:
            terminated["signal"] = -returned
        self._container().update({"state": {"terminated": terminated}, "ready": False})

    def _set_phase(self, phase: str) -> None:
        self.pod["status"]["phase"] = phase
        self._changed()

"""A job on this machine: work folder, local processes and reconciler put together for the command line.

A second run on the same folder resumes: same uid, key and data, the same ports where they are free, new
incarnations. Nothing is decided here.
"""

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from diloco_api import names
from diloco_api.accept import problems
from diloco_api.errors import SpecError, spec_error
from diloco_api.names import Role
from diloco_api.progress import Progress
from diloco_api.states import ConditionType, JobPhase, Reason
from diloco_api.status import JobStatus
from diloco_api.timeouts import Timeouts
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.files import write_atomically
from diloco_operator.hub import FileHub, HubError
from diloco_operator.hub_facts import FixedFacts, HubFacts
from diloco_operator.planning.conditions import find, is_true
from diloco_operator.planning.learners import revived
from diloco_operator.planning.types import OperatorPolicy, Stop
from diloco_operator.ports import LOOPBACK, asked_ports, check_ports, free_again, free_ports
from diloco_operator.reconciler import Pass, Reconciler, RunEnd
from diloco_operator.site_link import FixedSites
from diloco_operator.sites.process import ProcessSite
from diloco_operator.sites.site import SiteError
from diloco_operator.synchronizer_client import SynchronizerClient

LOCAL_IMAGE = "local"
"""There is no image: processes run from the installed package."""
POLL_SECONDS = 0.5

_FINAL = {ConditionType.COMPLETE: JobPhase.COMPLETE, ConditionType.FAILED: JobPhase.FAILED}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Snapshot:
    """What is known of the run at one instant."""

    status: JobStatus
    """As of this pass, also what is not written yet."""
    progress: Progress | None
    """The last one heard."""
    fresh: bool
    """The Synchronizer was heard in this pass."""
    at: float
    """Unix seconds."""
    problem: str = ""
    """Why the job cannot be read or written just now; `status` and `progress` are those of before."""
    crashed: bool = False
    """At some time of this run the Synchronizer crashed again and again: its logs are worth keeping."""


@dataclass(frozen=True)
class LocalOutcome:
    """How a run ended."""

    phase: JobPhase
    """Complete, Failed or Stopped, from the job's conditions."""
    reason: str
    """Of the condition that says so; HubError or JobGone: the end could not be written."""
    message: str
    snapshot: Snapshot


class LocalRun:
    """One `diloco run`. `open_folder` may raise SpecError; then nothing was started."""

    def __init__(self, hub: FileHub, folder: Path, policy: OperatorPolicy) -> None:
        self._hub = hub
        self._folder = folder
        self._policy = policy
        self._site = ProcessSite(names.LOCAL_SITE, folder, os.environ)
        self._reconciler: Reconciler | None = None
        self._stop = Stop.NO
        self._listeners: list[Callable[[Snapshot], None]] = []
        self._observed: Snapshot | None = None

    @classmethod
    def open_folder(cls, job: DiLoCoJob, folder: Path, timeouts: Timeouts | None = None) -> "LocalRun":
        """Check the job, take the folder, choose ports. SpecError names what is wrong and where."""
        found = problems(job)
        if found:
            raise spec_error(found)
        folder = folder.absolute()
        hub = FileHub.open_folder(folder, job, check_ports)
        policy = OperatorPolicy(
            image=LOCAL_IMAGE,
            ports=free_ports(folder, asked_ports(job)),
            synchronizer_hosts=(LOOPBACK,),
            loopback=True,
            timeouts=timeouts or Timeouts(),
            poll_seconds=POLL_SECONDS,
            kill_margin_seconds=5.0,
        )
        return cls(hub, folder, policy)

    @property
    def folder(self) -> Path:
        """The work folder."""
        return self._folder

    @property
    def observed(self) -> Snapshot | None:
        """The newest snapshot; None before the first pass."""
        return self._observed

    @property
    def outer_file(self) -> Path:
        """Where the final outer parameters are once the job is Complete."""
        return self._folder / names.FILE_OUTER

    def listen(self, listener: Callable[[Snapshot], None]) -> None:
        """Call `listener` with every new snapshot, on the event loop; it must return quickly."""
        self._listeners.append(listener)

    def pids(self, role: Role, index: int | None = None) -> list[int]:
        """Process ids of the Synchronizer, of all Learners, or of one; empty while it does not run."""
        return [
            process.pid
            for process in self._site.processes()
            if process.labels.get(names.LABEL_ROLE) == role.value
            and (index is None or process.labels.get(names.LABEL_LEARNER_INDEX) == str(index))
        ]

    def log_file(self, role: Role, index: int | None = None) -> Path | None:
        """The log of the newest process of a role; None when there is none."""
        running = [
            process.pod
            for process in self._site.processes()
            if process.labels.get(names.LABEL_ROLE) == role.value
            and (index is None or process.labels.get(names.LABEL_LEARNER_INDEX) == str(index))
        ]
        return self._site.log_file(running[-1]) if running else None

    def drain(self) -> None:
        """Merge what is trained, then end all processes; a later run resumes. Safe in a signal handler of the loop."""
        self._request(Stop.DRAIN)

    def stop_now(self) -> None:
        """End all processes; what is trained and not merged is lost, a later run resumes."""
        self._request(Stop.NOW)

    async def run(self) -> LocalOutcome:
        """Until the job is Complete, Failed or Stopped and every process has ended."""
        try:
            await self._begin()
            async with SynchronizerClient() as client:
                self._reconciler = Reconciler(
                    self._hub, FixedSites([self._site]), FixedFacts(HubFacts(LOOPBACK)), client, self._policy,
                    fresh_start=True, on_pass=self._keep, on_problem=self._keep_problem,
                )  # fmt: skip
                if self._stop is not Stop.NO:
                    self._reconciler.request_stop(self._stop)
                end = await self._reconciler.run()
            self._save_progress()
            outcome = self._outcome(end)
            if outcome.phase is JobPhase.COMPLETE and end.last is not None:
                await asyncio.to_thread(self._publish, end.last.job)
            return outcome
        finally:
            await self._site.close()
            if self._observed is not None and self._observed.crashed:
                self._hub.close()
            else:
                self._hub.leave()

    async def _begin(self) -> None:
        """What can go wrong here the user can mend."""
        try:
            await self._site.start()
            await self._prepare()
        except SiteError as error:
            raise SpecError(f"{self._folder}: {error}") from error
        except HubError as error:
            raise SpecError(str(error)) from error

    async def _prepare(self) -> None:
        """A failed job is tried again. Ports that were asked for must be free, others are chosen anew when taken."""
        job = await self._hub.read_job()
        if job is None:
            return  # the first pass says so
        if is_true(job.status.conditions, ConditionType.COMPLETE):
            return
        check_ports(job)
        status = job.status
        if is_true(status.conditions, ConditionType.FAILED):
            status = revived(status)
        if status.resolved is not None:
            ports = free_again(status.resolved.ports, self._policy.ports, asked_ports(job))
            status = status.model_copy(update={"resolved": status.resolved.model_copy(update={"ports": ports})})
        if status != job.status:
            await self._hub.commit_status(job, status)

    def _request(self, stop: Stop) -> None:
        self._stop = stop
        if self._reconciler is not None:
            self._reconciler.request_stop(stop)

    def _keep(self, done: Pass) -> None:
        heard = done.observed.progress
        known = self._observed.progress if self._observed else self._saved_progress()
        ready = find(done.plan.live.conditions, ConditionType.SYNCHRONIZER_READY)
        crashed = ready is not None and ready.reason == Reason.CRASH_LOOP
        crashed |= self._observed is not None and self._observed.crashed
        self._show(Snapshot(done.plan.live, heard or known, heard is not None, done.at, crashed=crashed))

    def _keep_problem(self, problem: str) -> None:
        self._show(replace(self._known(), fresh=False, at=time.time(), problem=problem))

    def _known(self) -> Snapshot:
        """The last snapshot; before the first one, nothing is known but the progress of an earlier run."""
        return self._observed or Snapshot(JobStatus(), self._saved_progress(), False, time.time())

    def _show(self, snapshot: Snapshot) -> None:
        self._observed = snapshot
        for listener in self._listeners:
            listener(snapshot)

    def _outcome(self, end: RunEnd) -> LocalOutcome:
        known = self._known()
        if end.problem:
            phase, reason = (JobPhase.FAILED, "JobGone") if end.gone else (JobPhase.STOPPED, "HubError")
            return LocalOutcome(phase, reason, end.problem, known)
        assert end.last is not None, "its end was planned"
        status = end.last.plan.status
        snapshot = replace(known, status=status)
        for kind, phase in _FINAL.items():
            condition = find(status.conditions, kind)
            if condition is not None and condition.status == "True":
                return LocalOutcome(phase, condition.reason, condition.message, snapshot)
        stopped = find(status.conditions, ConditionType.PROGRESSING)
        message = stopped.message if stopped is not None else ""
        return LocalOutcome(JobPhase.STOPPED, "Stopped", message, snapshot)

    def _save_progress(self) -> None:
        """For later runs of an ended job; one that cannot be kept is no reason to call this run a failure."""
        if self._observed is None or self._observed.progress is None:
            return
        try:
            write_atomically(self._progress_file, self._observed.progress.model_dump_json(indent=2) + "\n")
        except OSError as error:
            log.warning("%s: cannot be written: %s", self._progress_file, error.strerror)

    def _publish(self, job: DiLoCoJob) -> None:
        """Copy the final outer parameters out of the Synchronizer's folder."""
        claim = self._site.claim_folder(names.synchronizer_name(job.metadata.name, job.metadata.uid))
        source = claim / names.FILE_OUTER
        if source.exists() and not self.outer_file.exists():
            partial = self.outer_file.with_suffix(".partial")
            shutil.copyfile(source, partial)
            partial.replace(self.outer_file)

    @property
    def _progress_file(self) -> Path:
        return self._folder / "progress.json"

    def _saved_progress(self) -> Progress | None:
        """The last progress of an earlier run: a job that has ended is not heard any more."""
        if not self._progress_file.exists():
            return None
        return Progress.model_validate_json(self._progress_file.read_text(encoding="utf-8"))

"""The loop of one job: observe, plan, commit, apply, sleep until it is time or something happened.

All deciding is in `planning.plan`. The status is written once a pass and before anything is done; a failed write ends
the pass, and the run where its end is asked for. Sites are asked and told in parallel; an error of one, also one nobody
has thought of, is an observation of the next pass or a line in the log, and stops no other.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from diloco_api import names
from diloco_api.progress import Progress
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.hub import Hub, HubError
from diloco_operator.planning.learners import NAME_CONFLICT
from diloco_operator.planning.plan import plan
from diloco_operator.planning.steps import Steps, watch_steps
from diloco_operator.planning.types import (
    Action,
    Apply,
    CreatePod,
    Delete,
    Drain,
    Observed,
    OperatorPolicy,
    Plan,
    Refusal,
    SiteView,
    Stop,
)
from diloco_operator.planning.views import split_objects
from diloco_operator.sites.following import follow, report
from diloco_operator.sites.site import AlreadyExists, Site, SiteError
from diloco_operator.synchronizer_client import SynchronizerSilent

log = logging.getLogger(__name__)

COALESCE_SECONDS = 0.02
"""Events come in bursts; one look serves them all."""
RETRY_SECONDS = 1.0
"""Until the next pass after one that failed."""
DRAIN_ATTEMPTS = 5
"""Passes that fail one after the other before a run that is being drained ends all the same."""


class SynchronizerSource(Protocol):
    """Whom progress is asked of; `SynchronizerClient` is the real one."""

    async def progress(self, port: int, key: bytes, job_uid: str) -> Progress: ...

    async def drain(self, port: int, key: bytes, job_uid: str) -> None: ...


@dataclass(frozen=True)
class Pass:
    """One pass, for those who watch."""

    job: DiLoCoJob
    """As committed."""
    observed: Observed
    plan: Plan
    at: float
    """Unix seconds."""


@dataclass(frozen=True)
class RunEnd:
    """How the loop of a job ended."""

    last: Pass | None
    """The last pass; None when none could be made."""
    problem: str = ""
    """Why the run was left without its end in the status; empty: the last pass has it."""
    gone: bool = False
    """There is no such job any more."""


class Reconciler:
    """The task of one job and the only writer of its status."""

    def __init__(
        self,
        hub: Hub,
        sites: Sequence[Site],
        synchronizer: SynchronizerSource,
        policy: OperatorPolicy,
        *,
        fresh_start: bool = False,
        now: Callable[[], float] = time.time,
        on_pass: Callable[[Pass], None] | None = None,
        on_problem: Callable[[str], None] | None = None,
    ) -> None:
        self._hub = hub
        self._sites = {site.name: site for site in sites}
        self._synchronizer = synchronizer
        self._policy = policy
        self._fresh_start = fresh_start
        self._now = now
        self._on_pass = on_pass
        self._on_problem = on_problem
        self._stop = Stop.NO
        self._stop_at = 0.0
        self._problem = ""
        self._gone = False
        self._steps: Steps = {}
        self._woken = asyncio.Event()
        self._refusals: dict[str, dict[str, Refusal]] = {name: {} for name in self._sites}

    def request_stop(self, stop: Stop) -> None:
        """Ask for the end of this run; a stronger wish replaces a weaker one."""
        if stop is not Stop.NO and self._stop is Stop.NO:
            self._stop_at = self._now()
        if stop is Stop.NOW or self._stop is Stop.NO:
            self._stop = stop
        self.wake()

    def wake(self) -> None:
        """Look again now."""
        self._woken.set()

    async def run(self) -> RunEnd:
        """Until the job has ended and nothing but its data is left, or it cannot be had and its end is asked for."""
        watchers: list[asyncio.Task[None]] = []
        last, failures = None, 0
        try:
            while True:
                done = await self.one_pass()
                failures = failures + 1 if done is None else 0
                last = done or last
                if done is not None and done.plan.finished:
                    return RunEnd(done)
                if done is None and self._must_leave(failures):
                    return RunEnd(last, self._problem, self._gone)
                if done is not None and not watchers:
                    uid = done.job.metadata.uid
                    watchers = [asyncio.create_task(follow(site, uid, self.wake)) for site in self._sites.values()]
                    continue  # what happened before the watches began
                await self._sleep(RETRY_SECONDS if done is None else done.plan.requeue_after)
        finally:
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)

    def _must_leave(self, failures: int) -> bool:
        """The job cannot be read or written: whoever waits for the end of the run must not wait for that, too."""
        drained = self._stop is Stop.DRAIN and failures >= DRAIN_ATTEMPTS
        return self._gone or self._stop is Stop.NOW or drained

    async def one_pass(self) -> Pass | None:
        """Observe, plan, commit, apply, tell. None: the status could not be read or written, and nothing was done."""
        self._woken.clear()
        try:
            job = await self._hub.read_job()
            if job is None:
                self._gone = True
                self._failed("the job is gone")
                return None
            observed = await self._observe(job, await self._hub.read_key())
            now = self._now()
            planned = plan(job, self._policy, observed, now)
            committed = job
            if planned.status != job.status:
                committed = await self._hub.commit_status(job, planned.status)
        except HubError as error:
            self._failed(str(error))
            return None
        self._fresh_start = False
        self._problem = ""
        await self._apply(committed, observed, planned)
        if planned.status != job.status:
            await self._tell(committed, planned)
        done = Pass(committed, observed, planned, now)
        if self._on_pass is not None:
            self._on_pass(done)
        return done

    def _failed(self, problem: str) -> None:
        log.warning("%s", problem)
        self._problem = problem
        if self._on_problem is not None:
            self._on_problem(problem)

    async def _observe(self, job: DiLoCoJob, key: bytes) -> Observed:
        """Sites first: a pod that ended well did so before the progress was asked for."""
        looks = [self._look(site, job.metadata.uid) for site in self._sites.values()]
        found = await asyncio.gather(*looks, return_exceptions=True)
        views = [self._view(name, view) for name, view in zip(self._sites, found, strict=True)]
        progress, silence = None, "NotAccepted"
        if job.status.resolved is not None:
            try:
                port = job.status.resolved.ports.admin
                progress, silence = await self._synchronizer.progress(port, key, job.metadata.uid), ""
            except SynchronizerSilent as error:
                silence = error.reason
        stopping = 0.0 if self._stop is Stop.NO else max(0.0, self._now() - self._stop_at)
        now = self._now()
        self._steps = watch_steps(self._steps, progress, now)
        return Observed(
            tuple(views), progress, silence, key, self._stop, stopping,
            stepless_seconds={who: now - last.seen_at for who, last in self._steps.items()},
            fresh_start=self._fresh_start,
        )  # fmt: skip

    def _view(self, site: str, found: SiteView | BaseException) -> SiteView:
        """An error nobody has thought of is a site that cannot be reached."""
        if isinstance(found, SiteView):
            return found
        report(f"site {site}", found)
        return SiteView(site, unreachable="InternalError", message=repr(found), refusals=self._refusals[site])

    async def _look(self, site: Site, job_uid: str) -> SiteView:
        refusals = dict(self._refusals[site.name])
        try:
            pods, objects = split_objects(await site.list_owned(job_uid), self._now())
        except SiteError as error:
            return SiteView(site.name, unreachable=error.reason, message=str(error), refusals=refusals)
        return SiteView(site.name, pods=pods, objects=objects, refusals=refusals)

    async def _tell(self, job: DiLoCoJob, planned: Plan) -> None:
        for event in planned.events:
            try:
                await self._hub.emit_event(job, event.type, event.reason, event.message)
            except HubError as error:
                log.warning("%s; it was: %s %s", error, event.reason, event.message)

    async def _apply(self, job: DiLoCoJob, observed: Observed, planned: Plan) -> None:
        """Each site's actions in their order, the sites in parallel."""
        by_site: dict[str, list[CreatePod | Apply | Delete]] = {name: [] for name in self._sites}
        calls: list[Awaitable[None]] = []
        for action in planned.actions:
            if isinstance(action, Drain):
                calls.append(self._drain(job, observed.key))
            else:
                by_site[action.site].append(action)
        calls += [self._apply_site(job, self._sites[name], actions) for name, actions in by_site.items()]
        for error in await asyncio.gather(*calls, return_exceptions=True):
            if error is not None:
                report("apply", error)

    async def _drain(self, job: DiLoCoJob, key: bytes) -> None:
        assert job.status.resolved is not None, "only an accepted job has a Synchronizer"
        try:
            await self._synchronizer.drain(job.status.resolved.ports.admin, key, job.metadata.uid)
        except SynchronizerSilent as error:
            log.info("drain: %s", error)

    async def _apply_site(self, job: DiLoCoJob, site: Site, actions: Sequence[CreatePod | Apply | Delete]) -> None:
        refusals: dict[str, Refusal] = {}
        for action in actions:
            try:
                refusal = await _do(site, action, job.metadata.uid)
            except SiteError as error:
                log.warning("site %s: %s: %s", site.name, error.reason, error)
                refusal = Refusal(error.reason, str(error))
            if refusal is not None and isinstance(action, CreatePod):
                refusals[action.name] = refusal
        self._refusals[site.name] = refusals

    async def _sleep(self, seconds: float | None) -> None:
        try:
            await asyncio.wait_for(self._woken.wait(), seconds)
            await asyncio.sleep(COALESCE_SECONDS)
        except TimeoutError:
            pass


async def _do(site: Site, action: Action, job_uid: str) -> Refusal | None:
    """Carry one action out; a Refusal when a pod of that name is somebody else's."""
    if isinstance(action, Apply):
        await site.apply(action.manifest)
    elif isinstance(action, Delete):
        await site.delete(action.kind, action.name, action.uid)
    elif isinstance(action, CreatePod):
        answer = await site.create_pod(action.manifest)
        if isinstance(answer, AlreadyExists) and not _is_ours(answer.labels, action, job_uid):
            return Refusal(NAME_CONFLICT, f"a pod named {action.name} belongs to somebody else")
    return None


def _is_ours(labels: Mapping[str, str], action: CreatePod, job_uid: str) -> bool:
    wanted = action.manifest["metadata"]["labels"]
    return labels.get(names.LABEL_JOB_UID) == job_uid and all(
        labels.get(label) == wanted[label] for label in (names.LABEL_LEARNER_INDEX, names.LABEL_INCARNATION)
    )

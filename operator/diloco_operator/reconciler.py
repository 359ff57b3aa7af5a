"""The loop of one job: observe, plan, commit, apply, sleep until it is time or something happened.

All deciding is in `planning.plan`. The status is written once a pass and before anything is done; a failed write ends
the pass, and the run where its end is asked for. Sites are asked and told in parallel (`site_link`); an error of one,
also one nobody has thought of, is an observation of the next pass or a line in the log, and stops no other.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from diloco_api.progress import Progress
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.crd_trial import CrdTrial
from diloco_operator.endpoint import admin_endpoint
from diloco_operator.hub import Hub, HubConflict, HubError, HubOutdated
from diloco_operator.hub_facts import Facts
from diloco_operator.planning.plan import plan
from diloco_operator.planning.starts import MOVED, STARTED
from diloco_operator.planning.steps import Steps, watch_steps
from diloco_operator.planning.types import Drain, Event, Observed, OperatorPolicy, Plan, Stop
from diloco_operator.site_batch import PARALLEL
from diloco_operator.site_link import SiteDirectory
from diloco_operator.site_links import SiteLinks
from diloco_operator.sites.following import report
from diloco_operator.synchronizer_client import AdminEndpoint, SynchronizerSilent
from diloco_operator.wake_ups import WakeUps

log = logging.getLogger(__name__)
_T = TypeVar("_T")
_U = TypeVar("_U")

CONFLICT_SECONDS = 0.05
"""Until the next pass after one that met a job that had changed; one that always has is another failure."""
RETRY_SECONDS = 1.0
"""Until the next pass after one that failed; longer and longer after the first few."""
PATIENT_FAILURES = 5
LONGEST_RETRY_SECONDS = 30.0
RESYNC_SECONDS = 300.0
"""The longest time without a look, more or less by a fifth."""
DRAIN_ATTEMPTS = 5
"""Passes that fail one after the other before a run that is being drained ends all the same."""


class SynchronizerSource(Protocol):
    """Whom progress is asked of; `SynchronizerClient` is the real one."""

    async def progress(self, endpoint: AdminEndpoint, key: bytes, job_uid: str) -> Progress: ...

    async def drain(self, endpoint: AdminEndpoint, key: bytes, job_uid: str) -> None: ...


@dataclass(frozen=True)
class Pass:
    """One pass, for those who watch."""

    job: DiLoCoJob
    """As committed."""
    observed: Observed
    plan: Plan
    at: float
    """Unix seconds."""
    seconds: float = 0.0
    """How long it took."""


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
        sites: SiteDirectory,
        facts: Facts,
        synchronizer: SynchronizerSource,
        policy: OperatorPolicy,
        *,
        fresh_start: bool = False,
        now: Callable[[], float] = time.time,
        on_pass: Callable[[Pass], None] | None = None,
        on_problem: Callable[[str], None] | None = None,
    ) -> None:
        self._hub = hub
        self.wake_ups = WakeUps()
        self._sites = SiteLinks(sites, self.wake, now)
        self._facts = facts
        self._begun_at = now()
        self._synchronizer = synchronizer
        self._policy = policy
        self._fresh_start = fresh_start
        self._now = now
        self._on_pass = on_pass
        self._on_problem = on_problem
        self._stop = Stop.NO
        self._stop_at = 0.0
        self._problem = ""
        self._failures = 0
        self._expected = False
        self._crd = CrdTrial(hub, now)
        self._gone = False
        self._steps: Steps = {}
        self._admin: tuple[AdminEndpoint, bytes] | None = None

    def request_stop(self, stop: Stop) -> None:
        """Ask for the end of this run; a stronger wish replaces a weaker one."""
        if stop is not Stop.NO and self._stop is Stop.NO:
            self._stop_at = self._now()
        if stop is Stop.NOW or self._stop is Stop.NO:
            self._stop = stop
        self.wake()

    def wake(self) -> None:
        """Look again now."""
        self.wake_ups.wake()

    async def run(self) -> RunEnd:
        """Until the job has ended and nothing but its data is left, or it cannot be had and its end is asked for."""
        last = None
        try:
            while True:
                done = await self.one_pass()
                last = done or last
                if done is not None and done.plan.finished:
                    return RunEnd(done)
                if done is None and self._must_leave():
                    return RunEnd(last, self._problem, self._gone)
                if done is not None and not self._sites.watching:
                    self._sites.watch()
                    continue  # what happened before the watches began
                wanted = self._retry_after() if done is None else done.plan.requeue_after
                longest = RESYNC_SECONDS * random.uniform(0.8, 1.2)
                await self.wake_ups.sleep(longest if wanted is None else min(wanted, longest))
        finally:
            await self._sites.close()

    def _retry_after(self) -> float:
        if self._expected:
            return CONFLICT_SECONDS
        grown = RETRY_SECONDS * 2.0 ** min(10, max(0, self._failures - PATIENT_FAILURES))
        return min(LONGEST_RETRY_SECONDS, grown)

    def _must_leave(self) -> bool:
        """The job cannot be read or written: whoever waits for the end of the run must not wait for that, too."""
        drained = self._stop is Stop.DRAIN and self._failures >= DRAIN_ATTEMPTS
        return self._gone or self._stop is Stop.NOW or drained

    async def one_pass(self) -> Pass | None:
        """Observe, plan, commit, apply, tell. None: the status could not be read or written, and nothing was done."""
        self.wake_ups.begin()
        try:
            return await self._pass()
        finally:
            self.wake_ups.end()

    async def _pass(self) -> Pass | None:
        begun = time.monotonic()
        try:
            job = await self._hub.read_job()
            if job is None:
                self._gone = True
                self._failed("the job is gone")
                return None
            observed = await self._observe(job, await self._hub.read_key())
            now = self._now()
            planned = await self._planned(job, observed, now)
            committed = await self._commit(job, planned)
        except HubError as error:
            self._failed(str(error), retried_at_once=isinstance(error, HubConflict | HubOutdated))
            return None
        self._fresh_start = False
        self._problem, self._failures = "", 0
        await self._apply(committed, planned)
        await self._tell(committed, planned)
        done = Pass(committed, observed, planned, now, time.monotonic() - begun)
        if self._on_pass is not None:
            self._on_pass(done)
        return done

    async def _planned(self, job: DiLoCoJob, observed: Observed, now: float) -> Plan:
        """A CRD that was too old is tried again now and then, by a plan that is not written yet."""
        planned = plan(job, self._policy, observed, now)
        if observed.crd_problem != self._crd.problem or not self._crd.is_due():
            return planned
        hopeful = plan(job, self._policy, replace(observed, crd_problem=""), now)
        return hopeful if await self._crd.passed(job, hopeful.status) else planned

    async def _commit(self, job: DiLoCoJob, planned: Plan) -> DiLoCoJob:
        """The one write of a pass, then the finalizer. A hub that forgets what it is told is an observation."""
        committed = job
        if planned.status != job.status:
            try:
                committed = await self._hub.commit_status(job, planned.status)
            except HubOutdated as error:
                if self._crd.note(error):
                    raise
                committed = error.kept
        if planned.finalizer != "keep":
            await self._hub.edit_finalizer(committed, planned.finalizer)
            self.wake()
        return committed

    def _failed(self, problem: str, *, retried_at_once: bool = False) -> None:
        """That a job has changed meanwhile, or is gone, is nobody's problem."""
        log.log(logging.INFO if self._gone else logging.WARNING, "%s", problem)
        self._problem, self._failures = problem, self._failures + 1
        self._expected = self._gone or (retried_at_once and self._failures <= PATIENT_FAILURES)
        if self._on_problem is not None and not self._expected:
            self._on_problem(problem)

    async def _observe(self, job: DiLoCoJob, key: bytes) -> Observed:
        """Sites first: a pod that ended well did so before the progress was asked for."""
        views, facts = await _both(self._sites.look(job), self._facts.read(job))
        self._admin = self._admin_of(job, facts.admin_host, key)
        progress, silence = await self._hear(job)
        now = self._now()
        self._steps = watch_steps(self._steps, progress, now)
        return Observed(
            views, progress, silence, key, self._stop,
            stop_seconds=0.0 if self._stop is Stop.NO else max(0.0, now - self._stop_at),
            stepless_seconds={who: now - last.seen_at for who, last in self._steps.items()},
            fresh_start=self._fresh_start,
            watched_seconds=now - self._begun_at,
            hub_addresses=facts.node_addresses,
            propagated=facts.propagated,
            namespace_ends=facts.namespace_ends,
            crd_problem=facts.crd_problem or self._crd.problem,
        )  # fmt: skip

    def _admin_of(self, job: DiLoCoJob, host: str, key: bytes) -> tuple[AdminEndpoint, bytes] | None:
        """None while there is nobody to ask: not accepted, without an address yet, or the key is gone."""
        if job.status.resolved is None or job.status.start_time is None or not host or not key:
            return None
        return admin_endpoint(job, self._policy, key, self._now(), host)

    async def _hear(self, job: DiLoCoJob) -> tuple[Progress | None, str]:
        if self._admin is None:
            return None, "NotAccepted" if job.status.resolved is None else "AddressPending"
        try:
            return await self._synchronizer.progress(*self._admin, job.metadata.uid), ""
        except SynchronizerSilent as error:
            return None, error.reason

    async def _tell(self, job: DiLoCoJob, planned: Plan) -> None:
        """Begun in their order, some at once: many Learners have many stories."""
        slots = asyncio.Semaphore(PARALLEL)
        for event in planned.events:
            if event.reason in (STARTED, MOVED):
                log.info("job %s/%s: %s", job.metadata.namespace, job.metadata.name, event.message)

        async def one(event: Event) -> None:
            async with slots:
                try:
                    await self._hub.emit_event(job, event.type, event.reason, event.message)
                except HubError as error:
                    log.warning("%s; it was: %s %s", error, event.reason, event.message)

        await asyncio.gather(*map(one, planned.events))

    async def _apply(self, job: DiLoCoJob, planned: Plan) -> None:
        drains = [self._drain(job) for action in planned.actions if isinstance(action, Drain)]
        actions = [action for action in planned.actions if not isinstance(action, Drain)]
        for error in await asyncio.gather(*drains, self._sites.apply(actions), return_exceptions=True):
            if error is not None:
                report("apply", error)

    async def _drain(self, job: DiLoCoJob) -> None:
        if self._admin is None:
            return
        try:
            await self._synchronizer.drain(*self._admin, job.metadata.uid)
        except SynchronizerSilent as error:
            log.info("drain: %s", error)


async def _both(one: Coroutine[None, None, _T], other: Coroutine[None, None, _U]) -> tuple[_T, _U]:
    """Side by side; an error only when both have ended, so that nothing of a pass goes on beside the next."""
    first, second = await asyncio.gather(one, other, return_exceptions=True)
    if isinstance(first, BaseException):
        raise first
    if isinstance(second, BaseException):
        raise second
    return first, second

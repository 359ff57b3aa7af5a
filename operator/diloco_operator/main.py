"""`python -m diloco_operator`: the operator's process. Lease first, then kopf's watch, one task per job, own health.

Losing the Lease ends the process at once: whoever holds it now acts.
"""

import asyncio
import logging
import random
import signal
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from functools import partial

import kopf

from diloco_operator.api import ApiError, JobRef, jobs_path
from diloco_operator.crd_check import CrdCheck
from diloco_operator.handlers import make_registry
from diloco_operator.health import Health, HealthServer
from diloco_operator.hub import HubError
from diloco_operator.job_list import JobList
from diloco_operator.job_runner import JobRunner, Shared
from diloco_operator.kube_api import KubeApi
from diloco_operator.kubeconfigs import SELECTOR, Kubeconfigs
from diloco_operator.lease import Lease
from diloco_operator.metrics.jobs import JobMetrics
from diloco_operator.metrics.site_calls import SiteCalls
from diloco_operator.namespaces import Namespaces
from diloco_operator.origin import read_origin
from diloco_operator.planning.types import OperatorPolicy
from diloco_operator.reconciler import Pass
from diloco_operator.registry import Registry
from diloco_operator.settings import OperatorSettings, kopf_settings, read_settings
from diloco_operator.sites.kubeconfig import (
    ClusterCredentials,
    KubeconfigRefused,
    from_kubeconfig_file,
    in_cluster_credentials,
)
from diloco_operator.supervisor import Supervisor
from diloco_operator.sweep import Sweep

log = logging.getLogger("diloco_operator")

LIST_SECONDS = 60.0
"""Between two lists of all jobs, more or less by a fifth."""
SWEEP_EVERY = 5
"""Lists between two sweeps."""
RETRY_SECONDS = 2.0


class Operator:
    """One process, put together and taken apart."""

    def __init__(self, settings: OperatorSettings) -> None:
        self._settings = settings
        self._health = Health()
        self._jobs = JobMetrics(self._health.registry)
        self._stop = asyncio.Event()
        self._supervisor: Supervisor | None = None

    async def run(self) -> int:
        """The exit code: 0 when asked to end, 1 when the Lease was lost or something necessary broke."""
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signum, self._stop.set)
        async with AsyncExitStack() as stack:
            server = HealthServer(self._health, self._settings.health_port, self._settings.metrics_port)
            stack.push_async_callback(server.close)
            await server.start()
            api = KubeApi(self._credentials())
            stack.push_async_callback(api.close)
            settings = self._settings
            lease = Lease(api, settings.own_namespace, settings.identity, predecessors=settings.predecessors)
            self._health.lease_held = lease.is_held
            if not await self._unless_stopped(lease.acquire()):
                return 0
            stack.push_async_callback(lease.release)
            return await self._act(api, lease)

    async def _act(self, api: KubeApi, lease: Lease) -> int:
        """While the Lease is ours."""
        holding = asyncio.create_task(lease.hold(), name="lease")
        acting = asyncio.create_task(self._look_after_jobs(api), name="operator")
        stopping = asyncio.create_task(self._stop.wait(), name="stop")
        tasks = (holding, acting, stopping)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            self._stop.set()
            if holding.done():
                log.error("%s: ending", holding.exception())
                return 1
            if acting.done() and acting.exception() is not None:
                log.error("the watch of jobs broke", exc_info=acting.exception())
                return 1
            return 0  # kopf takes signals over, and ends its watch by them
        finally:
            self._health.active = False
            if self._supervisor is not None:  # first: without the Lease nothing may be done, and kopf ends slowly
                await self._supervisor.close()
            for task in (acting, holding, stopping):
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _look_after_jobs(self, api: KubeApi) -> None:
        origin = await self._prepared(api)
        namespaces = self._settings.namespaces
        kubeconfigs = Kubeconfigs(api)
        calls = SiteCalls(self._health.registry, lambda: [live.site.name for live in registry.live.values()])
        registry = Registry(self._credentials(), kubeconfigs, calls.connect)
        jobs = JobList(api, namespaces)
        supervisor = self._supervisor = Supervisor(lambda ref: JobRunner(shared, ref))
        ending = Namespaces(api, namespaces, supervisor.wake_all)
        shared = Shared(
            api, registry, self._policy(origin), CrdCheck(api).problem, self._served, self._not_served,
            namespace_ends=ending.ends, on_end=self._jobs.forget,
        )  # fmt: skip
        self._health.unserved = lambda: list(supervisor.unserved())
        self._health.watch_behind = jobs.behind_seconds

        def on_event(ref: JobRef, version: str) -> None:
            jobs.told(ref, version)
            if version or ref in supervisor.jobs:  # one that is gone needs no task
                supervisor.wake(ref, version)

        async def end() -> None:
            await supervisor.close()
            await registry.close()
            self._stop.set()  # kopf waits for whoever waits for this

        sweep = Sweep(origin, namespaces, jobs)
        work: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            (f"watch of {path}", partial(_follow_kubeconfigs, api, path, kubeconfigs, supervisor))
            for path in [f"/api/v1/namespaces/{namespace}/secrets" for namespace in namespaces] or ["/api/v1/secrets"]
        ]
        work.append(("look at namespaces", ending.follow))
        work.append(("list of jobs", lambda: _list_jobs(jobs, supervisor, registry, sweep)))
        helpers = [asyncio.create_task(for_ever(*each), name=each[0]) for each in work]
        self._health.active = True
        try:
            await kopf.operator(
                registry=make_registry(self._credentials, on_event, end),
                settings=kopf_settings(),
                standalone=True,
                clusterwide=not namespaces,
                namespaces=namespaces,
                stop_flag=self._stop,
            )
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            await end()

    async def _prepared(self, api: KubeApi) -> str:
        """Wait for what the operator cannot begin without: its own id, and the API of jobs."""
        told = ""
        scope = self._settings.namespaces[0] if self._settings.namespaces else None
        while True:
            try:
                origin = await read_origin(api, self._settings.own_namespace)
                await api.request("GET", jobs_path(scope), query={"limit": "1"})
                return origin
            except HubError as error:
                if isinstance(error, ApiError) and error.status == 404:
                    error = HubError("the CustomResourceDefinition dilocojobs.diloco.dev is not installed")
                if told != str(error):
                    log.warning("cannot begin yet: %s", error)
                told = str(error)
            await asyncio.sleep(RETRY_SECONDS)

    async def _unless_stopped(self, waiting: Coroutine[None, None, None]) -> bool:
        """Wait for something or for the wish to end; whether it was the former."""
        task = asyncio.create_task(waiting)
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
        done = task.done()
        for one in (task, stopping):
            one.cancel()
        await asyncio.gather(task, stopping, return_exceptions=True)
        if done:
            task.result()
        return done

    def _credentials(self) -> ClusterCredentials:
        path = self._settings.kubeconfig
        return in_cluster_credentials() if path is None else from_kubeconfig_file(path)

    def _policy(self, origin: str) -> OperatorPolicy:
        settings = self._settings
        return OperatorPolicy(
            image=settings.image,
            tls=True,
            origin=origin,
            operator_namespace=settings.in_cluster_namespace,
            monitoring_namespace=settings.monitoring_namespace,
            fs_group=settings.fs_group,
        )

    def _served(self, ref: JobRef, done: Pass, expiries: dict[str, float]) -> None:
        self._jobs.keep(ref, done, expiries)
        self._health.passes.labels("done").inc()
        self._health.seconds.observe(done.seconds)

    def _not_served(self, ref: JobRef, problem: str) -> None:
        self._health.passes.labels("failed").inc()


async def for_ever(what: str, work: Callable[[], Awaitable[None]], retry_seconds: float = RETRY_SECONDS) -> None:
    """What must not end while the process lives: begun anew, and told, when it breaks by an error nobody thought of."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("%s: broke and begins anew in %g s", what, retry_seconds)
        await asyncio.sleep(retry_seconds)


async def _follow_kubeconfigs(api: KubeApi, path: str, kubeconfigs: Kubeconfigs, supervisor: Supervisor) -> None:
    """A changed kubeconfig Secret is used at once; so is one that appears."""
    async for namespace, name in api.changes(path, SELECTOR):
        kubeconfigs.forget(namespace, name)
        supervisor.wake_all(namespace)


async def _list_jobs(jobs: JobList, supervisor: Supervisor, registry: Registry, sweep: Sweep) -> None:
    """The second source beside the watch: what it shows and the watch did not tell is told here."""
    count = 0
    while True:
        await asyncio.sleep(LIST_SECONDS * random.uniform(0.8, 1.2))
        try:
            listed = await jobs.refresh()
        except ApiError as error:
            log.info("list of jobs: %s: %s", error.reason, error)
            continue
        if jobs.behind_seconds() > 0:
            for ref, version in listed:
                supervisor.wake(ref, version)
        count += 1
        if count % SWEEP_EVERY == 0:
            await sweep.run([live.site for live in registry.live.values()], [ref for ref, _ in listed])


def main(arguments: Sequence[str] | None = None) -> int:
    """The process."""
    settings = read_settings(arguments)
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("aiohttp").setLevel("WARNING")
    logging.getLogger("kopf.objects").setLevel("WARNING")  # a line per event of a job says nothing
    try:
        return asyncio.run(Operator(settings).run())
    except KubeconfigRefused as error:
        log.error("the hub's kubeconfig is refused: %s", error)
    except OSError as error:
        log.error("cannot begin: %s", error)
    return 1

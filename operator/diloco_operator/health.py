"""/healthz and /metrics of the operator process, from what it really does. Decides nothing about jobs.

Healthy: every wake-up was served lately, the hub's watch tells what a list shows, the Lease is held or waited for. An
API server that is away makes nobody unhealthy: a restart would not bring it back.
"""

import platform
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from diloco_operator.metrics.families import counter, gauge, histogram

UNSERVED_LIMIT_SECONDS = 120.0
"""A pass waits for nobody longer than the timeouts of its calls; one that takes this long hangs."""
WATCH_LIMIT_SECONDS = 90.0
"""The watch may be this much behind a list."""


class Health:
    """Figures of one process, and what is wrong with it."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.active = False
        """The Lease is held and jobs are looked after."""
        self.lease_held: Callable[[], bool] = lambda: True
        self.unserved: Callable[[], list[float]] = list
        """Ages of the oldest unserved wake-up of every job."""
        self.watch_behind: Callable[[], float] = lambda: 0.0
        """How long the watch has not told what a list shows, seconds."""
        self.registry = CollectorRegistry()
        self.passes = counter("diloco_reconcile_total", self.registry)
        self.seconds = histogram("diloco_reconcile_seconds", self.registry)
        behind = gauge("diloco_watch_behind_seconds", self.registry)
        behind.set_function(lambda: self.watch_behind())
        depth = gauge("diloco_queue_depth", self.registry)
        depth.set_function(lambda: float(sum(age > 0 for age in self.unserved())))
        oldest = gauge("diloco_queue_oldest_seconds", self.registry)
        oldest.set_function(lambda: max(self.unserved(), default=0.0))
        held = gauge("diloco_lease_held", self.registry)
        held.set_function(lambda: float(self.active and self.lease_held()))
        info = gauge("diloco_build_info", self.registry)
        info.labels(_own_version(), platform.python_version(), version("kopf")).set(1)

    def problems(self) -> list[str]:
        """Why this process should be started anew; empty: it should not."""
        if not self.active:
            return []
        found = []
        oldest = max(self.unserved(), default=0.0)
        if oldest > UNSERVED_LIMIT_SECONDS:
            found.append(f"a job waits for its pass for {oldest:.0f} s")
        if self.watch_behind() > WATCH_LIMIT_SECONDS:
            found.append(f"the watch of jobs is {self.watch_behind():.0f} s behind")
        if not self.lease_held():
            found.append("the lease has run out")
        return found


class HealthServer:
    """Two ports: health for the kubelet, metrics for Prometheus."""

    def __init__(self, health: Health, health_port: int, metrics_port: int, host: str = "") -> None:
        self._health = health
        self._host = host or None
        self._ports = ((health_port, self._health_app()), (metrics_port, self._metrics_app()))
        self._runners: list[web.AppRunner] = []

    async def start(self) -> None:
        """OSError when a port is taken."""
        for port, app in self._ports:
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            self._runners.append(runner)
            await web.TCPSite(runner, self._host, port).start()

    async def close(self) -> None:
        for runner in self._runners:
            await runner.cleanup()

    def _health_app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        return app

    def _metrics_app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        return app

    async def _healthz(self, _: web.Request) -> web.Response:
        problems = self._health.problems()
        return web.Response(status=500 if problems else 200, text="\n".join(problems or ["ok"]) + "\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        """One that waits for the Lease is ready to take over."""
        return web.Response(text="active\n" if self._health.active else "waiting for the lease\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._health.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _own_version() -> str:
    """Run from a checkout there is none."""
    try:
        return version("diloco-operator")
    except PackageNotFoundError:
        return "unreleased"

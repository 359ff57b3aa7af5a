"""The Synchronizer process from start to exit code: environment, doors, signals, and the one line of a failure.

Reads the environment (nothing else in the package does), opens the state folder, serves until SIGTERM or SIGINT, then
closes the doors and lets the engine finish. Errors a user can mend become `error: ...` on stderr and an exit code.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from diloco_api import names
from diloco_api.errors import SpecError
from diloco_api.exit_codes import ExitCode
from diloco_api.run_config import RunConfig, read_run_config
from diloco_trainer.algorithm.codec import CodecUnavailable
from diloco_trainer.synchronizer.assembly import Synchronizer, threaded
from diloco_trainer.synchronizer.clock import SystemClock
from diloco_trainer.synchronizer.lock import FolderLost
from diloco_trainer.synchronizer.metrics import ProgressCollector
from diloco_trainer.synchronizer.recovery import StateError
from diloco_trainer.task.errors import DataError
from diloco_trainer.task.task import make_task
from diloco_trainer.wire.admin import RunningHttp, metrics_app, serve_admin, serve_http
from diloco_trainer.wire.errors import PortInUse
from diloco_trainer.wire.protocol import every_address, listening_socket
from diloco_trainer.wire.server import RunningServer, serve
from diloco_trainer.wire.tls import Credentials

logger = logging.getLogger(__name__)
LOOPBACK = "127.0.0.1"
"""Without TLS nothing else is bound."""


class ProcessError(Exception):
    """The process cannot go on; one line and an exit code."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Given:
    """What the process finds in its environment."""

    run: RunConfig
    key: bytes = field(repr=False)
    state_folder: Path
    threads: int
    tls: Credentials | None
    """None: everything is on this machine."""

    @property
    def host(self) -> str:
        """What the ports are bound to."""
        return LOOPBACK if self.tls is None else every_address()


@dataclass(slots=True)
class Doors:
    """What is served; ports are those bound."""

    wire: RunningServer
    admin: RunningHttp
    metrics: RunningHttp

    async def close(self) -> None:
        await self.wire.stop()
        await self.admin.stop()
        await self.metrics.stop()


def main() -> int:
    """Run the process; returns its exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        given = read_environment(os.environ)
        torch.set_num_threads(given.threads)
        return asyncio.run(run(given))
    except (ProcessError, StateError) as error:
        code, line = error.code, str(error)
    except (DataError, CodecUnavailable) as error:
        code, line = ExitCode.DATA_ERROR if isinstance(error, DataError) else ExitCode.BAD_CONFIG, str(error)
    except SpecError as error:
        code, line = ExitCode.BAD_CONFIG, str(error)
    print(f"error: {line}", file=sys.stderr, flush=True)
    return code


def read_environment(environment: Mapping[str, str]) -> Given:
    """Parse what the process was given; raises ProcessError or SpecError naming what is missing or wrong."""
    folders = {}
    for name in (names.ENV_CONFIG_DIR, names.ENV_CREDENTIALS_DIR, names.ENV_STATE_DIR):
        if not environment.get(name):
            raise ProcessError(ExitCode.BAD_CONFIG, f"the environment variable {name} is not set")
        folders[name] = Path(environment[name])
    key_path = folders[names.ENV_CREDENTIALS_DIR] / names.FILE_KEY
    try:
        key = key_path.read_bytes()
    except OSError as error:
        raise ProcessError(ExitCode.BAD_CONFIG, f"{key_path}: {error.strerror}") from error
    threads = environment.get(names.ENV_THREADS, "1")
    if not threads.isdigit() or int(threads) < 1:
        raise ProcessError(ExitCode.BAD_CONFIG, f"{names.ENV_THREADS}={threads!r} is not a positive number")
    config = read_run_config(folders[names.ENV_CONFIG_DIR] / names.FILE_RUN_CONFIG)
    tls = Credentials(folders[names.ENV_CREDENTIALS_DIR]) if config.tls else None
    if tls is not None:
        tls.check()
    return Given(config, key, folders[names.ENV_STATE_DIR], int(threads), tls)


async def run(given: Given) -> int:
    """Serve until told to stop, then finish what runs; an error nobody can go on from ends it at once."""
    check_ports(given.run, given.host)
    loop = asyncio.get_running_loop()
    crash: asyncio.Future[None] = loop.create_future()
    stop = asyncio.Event()

    def fail(error: BaseException) -> None:
        if not crash.done():
            crash.set_exception(error)

    def crashed(error: BaseException) -> None:
        loop.call_soon_threadsafe(fail, error)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    synchronizer = await asyncio.to_thread(
        threaded,
        given.run,
        make_task(given.run.train),
        given.state_folder,
        SystemClock(),
        crashed,
    )
    synchronizer.engine.start()
    try:
        await _first(crash, _serve(given, synchronizer, stop))
        await asyncio.to_thread(synchronizer.engine.close)
        if crash.done():
            crash.result()
    except FolderLost as error:
        raise ProcessError(ExitCode.FENCED, str(error)) from error
    except OSError as error:
        place, problem = error.filename or given.state_folder, error.strerror or error
        raise ProcessError(ExitCode.STATE_UNWRITABLE, " ".join(f"{place}: {problem}".split())) from error
    logger.info("stopped")
    return ExitCode.COMPLETE


async def _serve(given: Given, synchronizer: Synchronizer, stop: asyncio.Event) -> None:
    """Keep the doors open until `stop`, then close them and let the engine finish."""
    doors = await open_doors(given, synchronizer)
    logger.info("learners: port %d; admin: %d; metrics: %d", doors.wire.port, doors.admin.port, doors.metrics.port)
    try:
        await stop.wait()
    finally:
        await doors.close()
    await synchronizer.backend.stop()


async def _first(crash: asyncio.Future[None], work: Coroutine[Any, Any, None]) -> None:
    """Await `work`, or the crash that makes it pointless."""
    task = asyncio.ensure_future(work)
    await asyncio.wait({crash, task}, return_when=asyncio.FIRST_COMPLETED)
    if crash.done():
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        crash.result()
    await task


async def open_doors(given: Given, synchronizer: Synchronizer) -> Doors:
    """Serve Learners, `Admin` and metrics."""
    run, engine, backend = given.run, synchronizer.engine, synchronizer.backend
    collector = ProgressCollector(run.job_name, run.job_namespace, lambda: engine.latest, engine.pace)
    engine.measures.registry.register(collector)
    try:
        wire = await serve(
            backend,
            host=given.host,
            port=run.synchronizer_port,
            key=given.key,
            job_uid=run.job_uid,
            tls=given.tls,
            idle_seconds=2 * run.timeouts.transfer_idle_seconds,
            on_transfer=engine.transferred,
        )
        admin = await serve_admin(
            backend, host=given.host, port=run.admin_port, key=given.key, job_uid=run.job_uid, tls=given.tls
        )
        app = metrics_app(engine.measures.registry, lambda: None)
        metrics = await serve_http(app, name="metrics port", host=given.host, port=run.synchronizer_metrics_port)
    except PortInUse as error:
        raise ProcessError(ExitCode.PORT_IN_USE, str(error)) from error
    return Doors(wire, admin, metrics)


def check_ports(run: RunConfig, host: str) -> None:
    """Raise ProcessError, before anything is made, when a port cannot be bound."""
    ports = {
        "synchronizer.port": run.synchronizer_port,
        "synchronizer.adminPort": run.admin_port,
        "synchronizer.metricsPort": run.synchronizer_metrics_port,
    }
    for name, port in ports.items():
        try:
            listening_socket(host, port).close()
        except OSError as error:
            raise ProcessError(ExitCode.PORT_IN_USE, f"{name} {port} is in use") from error

"""Synchronizer and Learners as processes with the operator's certificates, bound and reached like pods."""

import asyncio
import os
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

from diloco_api import names
from diloco_api.exit_codes import ExitCode
from diloco_api.progress import LearnerProgress
from diloco_api.run_config import RunConfig
from diloco_api.timeouts import Timeouts
from diloco_api.tokens import make_token
from diloco_operator.planning import pki
from diloco_operator.synchronizer_client import AdminEndpoint, SynchronizerClient, SynchronizerSilent
from fakes import certificates
from fakes.certificates import NOW, OTHER_ROOT, ROOT
from fakes.learners import make_run
from fakes.sync_jobs import decoupled
from fakes.synchronizer_backend import JOB

SOURCES = os.pathsep.join(str(Path(__file__).parents[3] / name) for name in ("crds", "trainer_image"))
KEY = pki.token_key(ROOT, JOB)
TIMEOUTS = Timeouts(heartbeat_seconds=0.5)


def free_port() -> int:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        return int(listener.getsockname()[1])


def own_address() -> str:
    """An address that is not loopback where the machine has one; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


@asynccontextmanager
async def process(module: str, variables: dict[str, str]) -> AsyncIterator[asyncio.subprocess.Process]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DILOCO_")}
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module),
        env={**inherited, "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1", "no_proxy": "*", **variables},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()


def synchronizer_variables(folder: Path, run: RunConfig) -> dict[str, str]:
    certificates.server(folder / "synchronizer")
    (folder / "synchronizer" / names.FILE_KEY).write_bytes(KEY)
    (folder / "config").mkdir()
    (folder / "config" / names.FILE_RUN_CONFIG).write_text(run.model_dump_json())
    (folder / "address").mkdir()
    (folder / "address" / names.FILE_ADDRESSES).write_text(f"{own_address()}:{run.synchronizer_port}\n")
    return {
        names.ENV_CONFIG_DIR: str(folder / "config"),
        names.ENV_CREDENTIALS_DIR: str(folder / "synchronizer"),
        names.ENV_STATE_DIR: str(folder / "state"),
    }


def learner_variables(folder: Path, index: int, trusts: bytes = ROOT) -> dict[str, str]:
    certificates.learner(folder / f"learner-{index}", index, 1, trusts=trusts)
    (folder / f"learner-{index}" / names.FILE_TOKEN).write_text(make_token(KEY, JOB, index, 1))
    return {
        names.ENV_LEARNER_INDEX: str(index),
        names.ENV_INCARNATION: "1",
        names.ENV_SITE: "far",
        names.ENV_CONFIG_DIR: str(folder / "config"),
        names.ENV_ADDRESS_DIR: str(folder / "address"),
        names.ENV_CREDENTIALS_DIR: str(folder / f"learner-{index}"),
        names.ENV_DEVICE: "cpu",
    }


async def heard(client: SynchronizerClient, at: AdminEndpoint, step: int) -> list[LearnerProgress]:
    """Once a Learner has got so far."""
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        try:
            learners = (await client.progress(at, KEY, JOB)).learners
        except SynchronizerSilent as silence:
            if silence.reason not in {"TCPFailure", "Timeout"}:
                raise
            learners = []
        if any(learner.step >= step for learner in learners):
            return list(learners)
        await asyncio.sleep(0.1)
    raise AssertionError("no Learner got that far")


async def test_a_learner_trains_and_one_with_another_ca_ends_and_says_why(tmp_path: Path) -> None:
    ports = {name: free_port() for name in ("synchronizer_port", "admin_port", "synchronizer_metrics_port")}
    run = make_run(tmp_path, decoupled(), {"tls": True, "budget_tokens": 10**9, "timeouts": TIMEOUTS, **ports})
    host = own_address()
    at = AdminEndpoint(host, run.admin_port, pki.ca_bundle(ROOT, JOB, NOW, NOW), names.server_name(JOB))
    async with (
        process("diloco_trainer.synchronizer", synchronizer_variables(tmp_path, run)),
        process("diloco_trainer.learner", learner_variables(tmp_path, 0)),
        process("diloco_trainer.learner", learner_variables(tmp_path, 1, OTHER_ROOT)) as foreign,
        SynchronizerClient() as client,
    ):
        (_, errors), _ = await asyncio.gather(foreign.communicate(), heard(client, at, step=3))
        (learner,) = await heard(client, at, step=4)
        for port in (run.synchronizer_metrics_port, learner.metrics_port):
            assert "diloco_" in await asyncio.to_thread(scrape, host, port)
    assert (learner.index, learner.site) == (0, "far")
    assert foreign.returncode == ExitCode.TLS
    last = errors.decode().splitlines()[-1]
    assert last.startswith(f"error: TLSFailure: {host}:{run.synchronizer_port}: unable to get local issuer certificate")
    assert f"subject CN=synchronizer,O=diloco {JOB}, issuer CN=CA 0,O=diloco {JOB}, until " in last


def scrape(host: str, port: int) -> str:
    with build_opener(ProxyHandler({})).open(f"http://{host}:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())

"""The operator's client against the real `Admin` server over HTTPS: whom it believes, and what a renewal does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from diloco_api import names
from diloco_api.progress import Phase, Progress
from diloco_operator.endpoint import admin_endpoint
from diloco_operator.planning import pki
from diloco_operator.planning.clock import to_seconds
from diloco_operator.synchronizer_client import AdminEndpoint, SynchronizerClient, SynchronizerSilent
from diloco_trainer.wire.admin import RunningHttp, serve_admin
from diloco_trainer.wire.tls import Credentials
from fakes import certificates
from fakes.certificates import NOW, OTHER_ROOT, PERIOD, ROOT
from fakes.synchronizer_backend import JOB, KEY
from fakes.world import World


class NewerProgress(Progress):
    mood: str = "good"


class FakeAdmin:
    drained = 0
    kind = Progress

    async def progress(self) -> Progress:
        return self.kind(
            job_uid=JOB, epoch=1, phase=Phase.RUNNING, served_seconds=1, uptime_seconds=1, budget_tokens=1, percent=1,
            outer_steps=1, outer_rounds=1, tokens={"trained": 1.0},
        )  # fmt: skip

    async def drain(self) -> None:
        self.drained += 1


@asynccontextmanager
async def served(tls: Credentials | None) -> AsyncIterator[tuple[RunningHttp, FakeAdmin]]:
    backend = FakeAdmin()
    running = await serve_admin(backend, host="127.0.0.1", port=0, key=KEY, job_uid=JOB, tls=tls)
    try:
        yield running, backend
    finally:
        await running.stop()


def endpoint(port: int, root: bytes = ROOT, job: str = JOB, age: int = 0, host: str = "127.0.0.1") -> AdminEndpoint:
    started = NOW - age * PERIOD
    return AdminEndpoint(host, port, pki.ca_bundle(root, JOB, started, NOW), names.server_name(job))


async def silence(client: SynchronizerClient, at: AdminEndpoint) -> tuple[str, str]:
    with pytest.raises(SynchronizerSilent) as caught:
        await client.progress(at, KEY, JOB)
    return caught.value.reason, str(caught.value)


async def test_progress_and_drain_go_over_https_by_the_jobs_name(tmp_path: Path) -> None:
    async with served(certificates.server(tmp_path)) as (admin, backend), SynchronizerClient() as client:
        assert (await client.progress(endpoint(admin.port), KEY, JOB)).job_uid == JOB
        await client.drain(endpoint(admin.port), KEY, JOB)
    assert backend.drained == 1


async def test_the_progress_of_a_newer_synchronizer_is_read_as_far_as_it_is_known(tmp_path: Path) -> None:
    async with served(certificates.server(tmp_path)) as (admin, backend), SynchronizerClient() as client:
        backend.kind = NewerProgress
        assert (await client.progress(endpoint(admin.port), KEY, JOB)).outer_steps == 1


async def test_a_renewed_certificate_is_served_without_a_restart(tmp_path: Path) -> None:
    """Another three generations on, the old bundle is of no use for new connections, the new one is."""
    async with served(certificates.server(tmp_path)) as (admin, _):
        async with SynchronizerClient() as client:
            await client.progress(endpoint(admin.port), KEY, JOB)
        certificates.server(tmp_path, age=3)
        async with SynchronizerClient() as client:
            assert (await silence(client, endpoint(admin.port)))[0] == "TLSFailure"
            assert (await client.progress(endpoint(admin.port, age=3), KEY, JOB)).job_uid == JOB


@pytest.mark.parametrize(
    ("root", "job", "words"),
    [(OTHER_ROOT, JOB, "unable to get local issuer certificate"), (ROOT, "another", "Hostname mismatch")],
    ids=["a foreign CA", "another job's name"],
)
async def test_a_certificate_of_somebody_else_gets_no_token(tmp_path: Path, root: bytes, job: str, words: str) -> None:
    async with served(certificates.server(tmp_path)) as (admin, _), SynchronizerClient() as client:
        reason, message = await silence(client, endpoint(admin.port, root, job))
    assert reason == "TLSFailure"
    assert words in message


async def test_https_and_http_do_not_understand_each_other(tmp_path: Path) -> None:
    async with served(None) as (plain, _), SynchronizerClient() as client:
        assert (await silence(client, endpoint(plain.port)))[0] == "TLSFailure"
    async with served(certificates.server(tmp_path)) as (admin, _), SynchronizerClient() as client:
        assert (await silence(client, AdminEndpoint("127.0.0.1", admin.port)))[0] == "TCPFailure"


async def test_a_name_that_does_not_resolve_is_a_dns_failure() -> None:
    async with SynchronizerClient() as client:
        assert (await silence(client, endpoint(1, host="nowhere.invalid")))[0] == "DNSFailure"


async def test_a_ca_without_a_name_is_a_mistake() -> None:
    async with SynchronizerClient() as client:
        with pytest.raises(ValueError, match="verifies nothing"):
            await client.progress(AdminEndpoint("127.0.0.1", 1, endpoint(1).ca_bundle), KEY, JOB)


async def test_callers_without_certificate_or_token_are_told_nothing(tmp_path: Path) -> None:
    async with served(certificates.server(tmp_path)) as (admin, _), aiohttp.ClientSession() as http:
        url = f"https://127.0.0.1:{admin.port}/progress"
        async with asyncio.timeout(10), http.get(url, ssl=False) as answer:
            assert answer.status == 401


# --- which endpoint a job has --------------------------------------------------------------------------------------


def accepted() -> World:
    world = World()
    world.settle()
    return world


def test_on_clusters_the_service_is_asked_with_what_is_derived_from_the_root_key() -> None:
    world = accepted()
    policy = replace(world.policy, tls=True, loopback=False)
    at, key = admin_endpoint(world.job, policy, ROOT, world.now)
    uid, started = world.job.metadata.uid, to_seconds(world.job.status.start_time or "")
    assert at.url == "https://toy-0a1b2c3d-synchronizer.default.svc:29401"
    assert (at.ca_bundle, key) == (
        pki.ca_bundle(ROOT, uid, started, world.now),
        pki.token_key(ROOT, uid),
    )
    assert at.server_name == names.server_name(uid)
    assert admin_endpoint(world.job, policy, ROOT, world.now, "10.0.0.7")[0].host == "10.0.0.7"


def test_on_one_machine_the_jobs_own_key_is_used_in_the_clear() -> None:
    world = accepted()
    at, key = admin_endpoint(world.job, world.policy, KEY, world.now)
    assert (at.url, at.ca_bundle, key) == ("http://127.0.0.1:29401", None, KEY)

"""HTTP beside the wire: who may ask for progress, who may drain, and what Prometheus and probes get."""

from collections.abc import AsyncIterator

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter

from diloco_api.progress import Phase, Progress
from diloco_api.tokens import AdminRole, make_admin_token, make_token
from diloco_trainer.wire.admin import RunningHttp, metrics_app, serve_admin, serve_http
from diloco_trainer.wire.errors import PortInUse
from fakes.synchronizer_backend import JOB, KEY

PROGRESS = Progress(
    job_uid=JOB,
    epoch=1,
    phase=Phase.RUNNING,
    served_seconds=1.0,
    uptime_seconds=1.0,
    budget_tokens=100,
    percent=50.0,
    outer_steps=3,
    outer_rounds=1,
    tokens={"trained": 50.0},
)


class FakeAdmin:
    drained = 0

    async def progress(self) -> Progress:
        return PROGRESS

    async def drain(self) -> None:
        self.drained += 1


@pytest.fixture
def backend() -> FakeAdmin:
    return FakeAdmin()


@pytest.fixture
async def admin(backend: FakeAdmin) -> AsyncIterator[RunningHttp]:
    running = await serve_admin(backend, host="127.0.0.1", port=0, key=KEY, job_uid=JOB)
    yield running
    await running.stop()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize("role", AdminRole)
async def test_both_roles_read_progress(admin: RunningHttp, http: aiohttp.ClientSession, role: AdminRole) -> None:
    headers = bearer(make_admin_token(KEY, JOB, role))
    async with http.get(f"http://127.0.0.1:{admin.port}/progress", headers=headers) as answer:
        assert answer.status == 200
        assert Progress.model_validate_json(await answer.text()) == PROGRESS


@pytest.mark.parametrize(("role", "status"), [(AdminRole.OPERATOR, 202), (AdminRole.READER, 403)])
async def test_only_the_operator_drains(
    admin: RunningHttp, http: aiohttp.ClientSession, backend: FakeAdmin, role: AdminRole, status: int
) -> None:
    headers = bearer(make_admin_token(KEY, JOB, role))
    async with http.post(f"http://127.0.0.1:{admin.port}/drain", headers=headers) as answer:
        assert answer.status == status
    assert backend.drained == (status == 202)


@pytest.mark.parametrize(("method", "path"), [("GET", "/progress"), ("POST", "/drain")])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Basic eHg6eXk="}, 401),
        (bearer("garbage"), 401),
        (bearer(make_admin_token(bytes(32), JOB, AdminRole.OPERATOR)), 401),
        (bearer(make_token(KEY, JOB, 0, 0)), 401),
        (bearer(make_admin_token(KEY, "another", AdminRole.OPERATOR)), 403),
    ],
    ids=["none", "another scheme", "garbage", "another key", "a Learner's token", "another job"],
)
async def test_without_a_fitting_token_nothing_is_told_or_done(
    admin: RunningHttp,
    http: aiohttp.ClientSession,
    backend: FakeAdmin,
    method: str,
    path: str,
    headers: dict[str, str],
    status: int,
) -> None:
    async with http.request(method, f"http://127.0.0.1:{admin.port}{path}", headers=headers) as answer:
        assert answer.status == status
        assert "budget" not in await answer.text()
    assert not backend.drained


async def test_metrics_and_health_are_plain(http: aiohttp.ClientSession) -> None:
    registry = CollectorRegistry()
    Counter("diloco_merges", "Outer steps.", registry=registry).inc(3)
    problems: list[str] = []
    running = await serve_http(
        metrics_app(registry, lambda: problems[0] if problems else None), name="metrics port", host="127.0.0.1", port=0
    )
    url = f"http://127.0.0.1:{running.port}"
    async with http.get(f"{url}/metrics") as answer:
        assert "diloco_merges_total 3.0" in await answer.text()
        assert answer.content_type == "text/plain"
    async with http.get(f"{url}/healthz") as answer:
        assert (answer.status, await answer.text()) == (200, "ok\n")
    problems.append("the state folder cannot be written")
    async with http.get(f"{url}/healthz") as answer:
        assert (answer.status, await answer.text()) == (503, "the state folder cannot be written\n")
    async with http.get(f"{url}/progress") as answer:
        assert answer.status == 404
    await running.stop()


async def test_a_taken_admin_port_is_one_clear_error(admin: RunningHttp, backend: FakeAdmin) -> None:
    with pytest.raises(PortInUse, match=rf"^admin port 127\.0\.0\.1:{admin.port}: Address already in use$"):
        await serve_admin(backend, host="127.0.0.1", port=admin.port, key=KEY, job_uid=JOB)


async def test_admin_binds_loopback_only_without_tls(backend: FakeAdmin) -> None:
    with pytest.raises(ValueError, match="without TLS"):
        await serve_admin(backend, host="0.0.0.0", port=0, key=KEY, job_uid=JOB)

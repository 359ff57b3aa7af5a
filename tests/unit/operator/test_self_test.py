"""What `helm test` asks: each check says what it found, waits for what is starting, and fails by name."""

import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.api import ApiError
from diloco_operator.self_test import (
    SAMPLE,
    CheckFailed,
    api_is_served,
    metrics_are_scraped,
    operator_is_healthy,
    passes,
    read_options,
    sample_is_accepted,
)


class Server:
    """An API server with one answer, and what it was asked."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str, Any, Any]] = []

    async def request(self, method: str, path: str, body: object = None, **more: Any) -> Any:
        self.asked.append((method, path, body, more.get("query")))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
async def pages() -> AsyncIterator[tuple[aiohttp.ClientSession, str, dict[str, tuple[int, str]]]]:
    """A client, the address of a server, and the pages it has: path to status and text."""
    found: dict[str, tuple[int, str]] = {}

    async def answer(request: web.Request) -> web.Response:
        status, text = found[request.path]
        return web.Response(status=status, text=text)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        yield http, f"http://127.0.0.1:{server.port}", found


def test_the_sample_is_a_job_by_the_models() -> None:
    DiLoCoJob.model_validate({**SAMPLE, "metadata": {"name": "helm-test", "namespace": "train", "uid": "u"}})


async def test_the_sample_is_tried_and_not_kept() -> None:
    server = Server({"spec": {"algorithm": {"preset": "DiLoCo"}}})
    assert "namespace train" in await sample_is_accepted(server, "train")
    ((method, path, body, query),) = server.asked
    assert (method, path) == ("POST", "/apis/diloco.dev/v1alpha1/namespaces/train/dilocojobs")
    assert (body, query["dryRun"]) == (SAMPLE, "All")


async def test_a_definition_without_our_defaults_is_not_the_operators() -> None:
    with pytest.raises(CheckFailed, match="got no defaults"):
        await sample_is_accepted(Server({"spec": {}}), "train")


async def test_the_api_is_served_when_discovery_names_it() -> None:
    assert "is served" in await api_is_served(Server({"resources": [{"name": "dilocojobs"}]}))
    with pytest.raises(CheckFailed, match="has no dilocojobs"):
        await api_is_served(Server({"resources": [{"name": "others"}]}))


async def test_health_and_metrics_are_asked_for_where_they_are_served(pages: Any) -> None:
    http, url, found = pages
    found |= {"/healthz": (200, "ok\n"), "/metrics": (200, "diloco_build_info{} 1\n")}
    assert url in await operator_is_healthy(http, f"{url}/healthz")
    assert url in await metrics_are_scraped(http, f"{url}/metrics")


async def test_an_unhealthy_operator_says_why(pages: Any) -> None:
    http, url, found = pages
    found["/healthz"] = (500, "the lease has run out\n")
    with pytest.raises(CheckFailed, match="500: the lease has run out"):
        await operator_is_healthy(http, f"{url}/healthz")


async def test_metrics_of_something_else_are_no_metrics(pages: Any) -> None:
    http, url, found = pages
    found["/metrics"] = (200, "go_goroutines 3\n")
    with pytest.raises(CheckFailed, match="has no series diloco_build_info"):
        await metrics_are_scraped(http, f"{url}/metrics")


async def test_what_is_starting_is_waited_for() -> None:
    problems: list[Exception] = [
        CheckFailed("not yet"),
        ApiError(404, "NotFound", "no API"),
        aiohttp.ClientError("refused"),
    ]

    async def check() -> str:
        if problems:
            raise problems.pop()
        return "all well"

    told: list[str] = []
    assert await passes(check, time.monotonic() + 60, told.append, again_seconds=0)
    assert told == ["ok      all well"]


async def test_what_does_not_become_well_is_told() -> None:
    async def check() -> str:
        raise CheckFailed("the reason")

    told: list[str] = []
    assert not await passes(check, time.monotonic(), told.append)
    assert told == ["FAILED  the reason"]


def test_a_test_of_nothing_is_a_mistake(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        read_options([])
    assert "nothing to ask for" in capsys.readouterr().err

"""What leaves the socket towards an API server, and what becomes of every way in which an answer can fail to come."""

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from diloco_operator.sites import kube_client
from diloco_operator.sites.kube_breaker import Pauses
from diloco_operator.sites.kube_client import KubeClient, KubeLimits
from diloco_operator.sites.kubeconfig import ClusterCredentials
from diloco_operator.sites.site import (
    SiteBusy,
    SiteDNSFailure,
    SiteError,
    SiteServerError,
    SiteTCPFailure,
    SiteTLSFailure,
    SiteUnauthorized,
    SiteUnreachable,
)
from fakes.api_server import TOKEN, ApiServer, always, reset, status, value
from fakes.authority import Authority
from fakes.tcp_proxy import TcpProxy

QUICK = KubeLimits(connect_seconds=0.5, read_seconds=0.5, pauses=Pauses(failures_in_a_row=1000))
PATH = "/api/v1/namespaces/a/pods"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        server.answers[PATH] = value({"items": []})
        yield server


@contextlib.asynccontextmanager
async def client_of(credentials: ClusterCredentials, limits: KubeLimits = QUICK) -> AsyncIterator[KubeClient]:
    client = KubeClient(credentials, limits=limits)
    try:
        yield client
    finally:
        await client.close()


async def error_of(credentials: ClusterCredentials, limits: KubeLimits = QUICK) -> SiteError:
    async with client_of(credentials, limits) as client:
        with pytest.raises(SiteError) as caught:
            await client.request("GET", PATH)
    return caught.value


async def test_the_token_leaves_the_socket_as_a_bearer_token(server: ApiServer) -> None:
    async with client_of(server.credentials()) as client:
        await client.request("GET", PATH)
        await client.request("POST", PATH, body={"kind": "Pod"})
    for asked in server.asked:
        assert asked.headers["Authorization"] == f"Bearer {TOKEN}"
        assert asked.headers["User-Agent"] == "diloco-operator"
    assert server.asked[1].body == {"kind": "Pod"}


async def test_a_pods_own_token_is_read_anew_before_every_call(server: ApiServer, tmp_path: Path) -> None:
    (file := tmp_path / "token").write_text("first\n")
    async with client_of(server.credentials(token_file=str(file))) as client:
        await client.request("GET", PATH)
        file.write_text("second\n")
        await client.request("GET", PATH)
    assert [asked.headers["Authorization"] for asked in server.asked] == ["Bearer first", "Bearer second"]


async def test_a_pods_own_token_that_cannot_be_read_is_an_error_of_the_call(server: ApiServer, tmp_path: Path) -> None:
    error = await error_of(server.credentials(token_file=str(tmp_path / "none")))
    assert isinstance(error, SiteUnauthorized)
    assert not server.asked


async def test_a_client_certificate_proves_who_we_are_and_no_header_is_sent(tmp_path: Path) -> None:
    users = Authority("users")
    certificate, key = users.client("somebody")
    async with ApiServer(clients=users) as server:
        server.answers[PATH] = value({})
        who = server.credentials(client_cert_pem=certificate, client_key_pem=key)
        async with client_of(who) as client:
            await client.request("GET", PATH)
    assert server.asked[0].client == "somebody"
    assert "Authorization" not in server.asked[0].headers


async def test_a_server_that_does_not_accept_our_certificate_is_a_tls_failure() -> None:
    async with ApiServer(clients=Authority("users")) as server:
        certificate, key = Authority("others").client("somebody")
        error = await error_of(server.credentials(client_cert_pem=certificate, client_key_pem=key))
    assert isinstance(error, SiteTLSFailure | SiteTCPFailure)
    assert not server.asked


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"hosts": ("192.0.2.7",)}, "IP address mismatch"),
        ({"expired": True}, "certificate has expired"),
        ({"authority": Authority("another")}, "unable to get local issuer|self-signed"),
    ],
    ids=["another address", "expired", "another authority"],
)
async def test_a_server_that_is_not_the_one_meant_is_told_nothing(setting: dict[str, Any], words: str) -> None:
    ours = Authority("ours")
    async with ApiServer(**({"authority": ours} | setting)) as server:
        error = await error_of(ClusterCredentials(server.url, ours.pem, token=TOKEN))
    assert error.reason == "TLSFailure"
    assert not server.asked
    with pytest.raises(SiteTLSFailure, match=words):
        raise error


async def test_authorities_of_the_system_are_not_trusted(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bundle := tmp_path / "ca.pem").write_text(server.authority.pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    assert ssl.create_default_context().cert_store_stats()["x509_ca"] == 1
    error = await error_of(ClusterCredentials(server.url, Authority("another").pem, token=TOKEN))
    assert isinstance(error, SiteTLSFailure)


async def test_proxies_and_passwords_of_the_environment_are_not_used(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (netrc := tmp_path / "netrc").write_text("machine 127.0.0.1 login canary password canary\n")
    netrc.chmod(0o600)
    async with ApiServer() as proxy:
        monkeypatch.setenv("NETRC", str(netrc))
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        async with client_of(server.credentials()) as client:
            await client.request("GET", PATH)
    assert server.asked[0].headers["Authorization"] == f"Bearer {TOKEN}"
    assert not proxy.asked


async def test_a_redirect_is_not_followed(server: ApiServer) -> None:
    async with ApiServer(authority=server.authority) as elsewhere:

        async def redirect(_: web.Request) -> web.StreamResponse:
            return web.Response(status=302, headers={"Location": elsewhere.url + "/api"})

        server.answers[PATH] = redirect
        error = await error_of(server.credentials())
    assert isinstance(error, SiteServerError)
    assert "302" in str(error)
    assert not elsewhere.asked


async def test_a_name_without_an_address_is_a_dns_failure(server: ApiServer) -> None:
    patient = KubeLimits(connect_seconds=20)
    error = await error_of(server.credentials("https://no-such-site.invalid:6443"), patient)
    assert isinstance(error, SiteDNSFailure)


async def test_a_port_where_nobody_listens_is_a_tcp_failure(server: ApiServer) -> None:
    credentials = server.credentials()
    await server.__aexit__()
    error = await error_of(credentials)
    assert isinstance(error, SiteTCPFailure)
    assert str(error) == f"{credentials.server}: Connection refused"


async def test_a_port_that_speaks_no_tls_is_a_tls_failure(server: ApiServer) -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    plain = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = plain.sockets[0].getsockname()[1]
    error = await error_of(server.credentials(f"https://127.0.0.1:{port}"))
    plain.close()
    assert isinstance(error, SiteTLSFailure)


async def test_a_server_that_accepts_and_says_nothing_is_given_up_in_time(server: ApiServer) -> None:
    async with TcpProxy(server.port) as proxy:
        proxy.frozen = True
        began = time.monotonic()
        error = await error_of(server.credentials(f"https://127.0.0.1:{proxy.port}"))
    assert type(error) is SiteUnreachable
    assert error.reason == "Timeout"
    assert 0.4 < time.monotonic() - began < 3


async def test_a_connection_that_goes_dead_in_use_is_given_up_in_time(server: ApiServer) -> None:
    limits = KubeLimits(connect_seconds=30, read_seconds=0.5)
    async with (
        TcpProxy(server.port) as proxy,
        client_of(server.credentials(f"https://127.0.0.1:{proxy.port}"), limits) as client,
    ):
        await client.request("GET", PATH)
        proxy.connections[0].freeze()
        began = time.monotonic()
        with pytest.raises(SiteUnreachable, match="no answer"):
            await client.request("GET", PATH)
        assert 0.4 < time.monotonic() - began < 3
        await client.request("GET", PATH)  # on a new connection
        assert len(proxy.connections) == 2


async def test_an_answer_that_never_ends_is_given_up_in_time(server: ApiServer) -> None:
    async def trickle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await response.write(b" ")
                await asyncio.sleep(0.05)
        return response

    server.answers[PATH] = trickle
    began = time.monotonic()
    error = await error_of(server.credentials())
    assert type(error) is SiteUnreachable
    assert time.monotonic() - began < 4


async def test_a_connection_reset_in_mid_answer_is_a_tcp_failure(server: ApiServer) -> None:
    async def broken(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'{"items": [')
        await reset(request)
        return response

    server.answers[PATH] = broken
    assert isinstance(await error_of(server.credentials()), SiteTCPFailure)


async def test_half_an_answer_is_no_answer(server: ApiServer) -> None:
    async def half(_: web.Request) -> web.StreamResponse:
        return web.Response(body=b'{"items": [', content_type="application/json")

    server.answers[PATH] = half
    error = await error_of(server.credentials())
    assert isinstance(error, SiteServerError)
    assert "not a JSON object" in str(error)


@pytest.mark.parametrize(("code", "limit"), [(200, "8 MiB"), (403, "1 MiB")], ids=["an answer", "a refusal"])
async def test_an_endless_answer_costs_bounded_memory(server: ApiServer, code: int, limit: str) -> None:
    sent = 0

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(status=code)
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while sent < 64 * 1024**2:
                await response.write(bytes(2**16))
                sent += 2**16
                await asyncio.sleep(0)
        return response

    server.answers[PATH] = flood
    error = await error_of(server.credentials(), KubeLimits())
    assert f"more than {limit}" in str(error)
    assert sent < 20 * 1024**2


async def test_what_is_no_http_at_all_is_an_error_of_the_server(server: ApiServer) -> None:
    async def garbage(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(b"\x00\x01 this is not HTTP\r\n\r\n")
        await asyncio.sleep(0.1)
        return web.Response()

    server.answers[PATH] = garbage
    assert isinstance(await error_of(server.credentials()), SiteServerError)


async def test_no_error_and_no_log_line_holds_a_credential(server: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    async def echo(request: web.Request) -> web.StreamResponse:
        return status(401, "Unauthorized", f"who is {request.headers['Authorization']}?", {"X-Echo": TOKEN})

    server.answers[PATH] = echo
    with caplog.at_level(logging.DEBUG):
        error: BaseException | None = await error_of(server.credentials())
    assert isinstance(error, SiteUnauthorized)
    while error is not None:
        assert TOKEN not in str(error) + repr(error)
        error = error.__cause__ or error.__context__
    assert TOKEN not in caplog.text
    assert TOKEN not in repr(server.credentials())


async def test_a_site_that_fails_three_times_is_not_asked_again_until_it_is_back(server: ApiServer) -> None:
    limits = KubeLimits(connect_seconds=0.3, read_seconds=0.3, pauses=Pauses(first_seconds=0.3, longest_seconds=0.6))
    async with (
        TcpProxy(server.port) as proxy,
        client_of(server.credentials(f"https://127.0.0.1:{proxy.port}"), limits) as client,
    ):
        proxy.frozen = True
        for _ in range(3):
            with pytest.raises(SiteUnreachable):
                await client.request("GET", PATH)
        connections = len(proxy.connections)
        began = time.monotonic()
        for _ in range(100):
            with pytest.raises(SiteUnreachable, match="no connection within the time allowed"):
                await client.request("GET", PATH)
        assert time.monotonic() - began < 0.2
        assert len(proxy.connections) - connections <= 1
        proxy.frozen = False
        async with asyncio.timeout(10):
            await client.usable()
        await client.request("GET", PATH)


async def test_many_calls_that_fail_at_once_are_followed_by_one_look(server: ApiServer) -> None:
    def looks() -> int:
        return sum(task.get_name().startswith("look for") for task in asyncio.all_tasks())

    credentials = server.credentials()
    await server.__aexit__()
    async with client_of(credentials, KubeLimits()) as client:
        calls = [client.request("GET", PATH) for _ in range(20)]
        failures = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(failure) for failure in failures} == {SiteTCPFailure}
        assert looks() == 1
    assert looks() == 0


async def test_failures_that_are_answers_do_not_stop_the_asking(server: ApiServer) -> None:
    server.answers[PATH] = always(500, "InternalError", "etcd is unwell")
    async with client_of(server.credentials(), KubeLimits()) as client:
        for _ in range(5):
            with pytest.raises(SiteServerError, match="etcd is unwell"):
                await client.request("GET", PATH)
    assert len(server.asked) == 5


async def test_a_site_that_asks_to_be_left_alone_is_left_alone(server: ApiServer) -> None:
    server.answers[PATH] = always(429, "TooManyRequests", "slow down", {"Retry-After": "7"})
    now = 100.0
    client = KubeClient(server.credentials(), limits=QUICK, now=lambda: now)
    for then, asked in ((100.0, 1), (106.9, 1), (107.1, 2)):
        now = then
        with pytest.raises(SiteBusy, match="slow down"):
            await client.request("GET", PATH)
        assert len(server.asked) == asked
    await client.close()


async def test_one_dead_site_holds_no_other_up(server: ApiServer) -> None:
    async with (
        TcpProxy(server.port) as proxy,
        client_of(server.credentials(f"https://127.0.0.1:{proxy.port}"), KubeLimits(connect_seconds=3)) as dead,
        client_of(server.credentials()) as alive,
    ):
        proxy.frozen = True
        calls = [asyncio.create_task(dead.request("GET", PATH)) for _ in range(50)]
        await asyncio.sleep(0.1)
        began = time.monotonic()
        await alive.request("GET", PATH)
        assert time.monotonic() - began < 1
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def test_a_list_without_end_is_given_up(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_client, "MAX_LIST_ITEMS", 3 * kube_client.PAGE_SIZE)
    server.answers[PATH] = value({"items": [], "metadata": {"continue": "more"}})
    async with client_of(server.credentials()) as client:
        with pytest.raises(SiteServerError, match="without end"):
            await asyncio.wait_for(client.list_all(PATH, "", metadata_only=True), 5)
    assert len(server.asked) == 3


async def test_pages_that_trickle_in_do_not_hold_a_list_up_for_ever(server: ApiServer) -> None:
    """Each of them comes within the time allowed for a call."""

    async def trickle(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.2)
        return web.json_response({"items": [], "metadata": {"continue": "more"}})

    server.answers[PATH] = trickle
    async with client_of(server.credentials(), replace(QUICK, list_seconds=0.5)) as client:
        began = time.monotonic()
        with pytest.raises(SiteUnreachable, match=f"no end of a list of {PATH} within the time allowed"):
            await client.list_all(PATH, "", metadata_only=True)
        assert time.monotonic() - began < 2
        server.answers[PATH] = value({"items": [], "metadata": {"resourceVersion": "7"}})
        assert await client.list_all(PATH, "", metadata_only=True) == ([], "7")
    assert 3 <= len(server.asked) <= 4


async def test_every_request_is_told_with_its_status_and_time(server: ApiServer) -> None:
    told: list[tuple[str, int | None, float]] = []
    client = KubeClient(server.credentials(), limits=QUICK, on_call=lambda *call: told.append(call))
    try:
        await client.request("GET", PATH)
        server.answers[PATH] = always(403, "Forbidden")
        with pytest.raises(SiteError):
            await client.request("GET", PATH)
        server.answers[PATH] = reset
        with pytest.raises(SiteError):
            await client.request("GET", PATH)
    finally:
        await client.close()
    assert [call[:2] for call in told] == [("GET", 200), ("GET", 403), ("GET", None)]
    assert all(0 <= seconds < QUICK.connect_seconds + QUICK.read_seconds + 1 for *_, seconds in told)

"""Requests of the command line as they leave the process, and what becomes of every failure."""

import asyncio
import base64
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from diloco_cli.cluster import BadCredentials, ClusterError, Document, KubeCluster, open_own, open_site
from fakes.api_server import TOKEN, ApiServer, always, value


def kubeconfig(server: ApiServer, **user: object) -> Document:
    ca = base64.b64encode(server.authority.pem.encode()).decode()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server.url, "certificate-authority-data": ca}}],
        "users": [{"name": "u", "user": user or {"token": TOKEN}}],
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "jobs"}},
            {"name": "there", "context": {"cluster": "c", "user": "u"}},
        ],
        "current-context": "here",
    }


def site(server: ApiServer) -> KubeCluster:
    return open_site(yaml.safe_dump(kubeconfig(server)).encode())


async def ask(server: ApiServer, method: str, path: str, body: Document | None = None, **query: str) -> Document:
    """One request by a cluster of its own, whose connection is ended before the server is."""
    try:
        with closing(site(server)) as cluster:
            return await asyncio.to_thread(cluster.request, method, path, body, query=query)
    finally:
        await server.left()


async def test_a_request_carries_the_token_and_the_body_and_brings_the_answer() -> None:
    async with ApiServer() as server:
        server.answers["POST", "/x"] = value({"kind": "Done"})
        answer = await ask(server, "POST", "/x", {"a": 1}, dryRun="All")
    assert answer == {"kind": "Done"}
    (asked,) = server.asked
    assert (asked.body, asked.query) == ({"a": 1}, {"dryRun": "All"})
    assert asked.headers["Authorization"] == f"Bearer {TOKEN}"
    assert asked.headers["Content-Type"] == "application/json"


async def test_a_patch_is_a_merge_patch() -> None:
    async with ApiServer() as server:
        server.answers["PATCH", "/x"] = value({})
        await ask(server, "PATCH", "/x", {"a": None})
    assert server.asked[0].headers["Content-Type"] == "application/merge-patch+json"
    assert server.asked[0].body == {"a": None}


async def test_a_refusal_is_told_in_the_servers_words_with_its_number() -> None:
    async with ApiServer() as server:
        server.answers["/x"] = always(403, "Forbidden", "pods is forbidden: may not")
        with pytest.raises(ClusterError, match=r"^https://127.0.0.1:\d+: pods is forbidden: may not$") as refused:
            await ask(server, "GET", "/x")
    assert refused.value.status == 403


async def test_a_connection_that_breaks_off_is_told_with_the_server_and_without_the_token() -> None:
    async def hang_up(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    async with ApiServer() as server:
        server.answers["/x"] = hang_up
        with pytest.raises(ClusterError, match=r"https://127.0.0.1:\d+ does not answer: ") as broken:
            await ask(server, "GET", "/x")
    assert len(server.asked) == 1, "a person waits: nothing is tried again"
    assert broken.value.status == 0
    assert TOKEN not in str(broken.value)


async def test_a_server_that_is_not_there_is_told_in_one_line() -> None:
    async with ApiServer() as server:
        gone = site(server)
    with pytest.raises(ClusterError, match=r"does not answer: .*refused") as refused:
        await asyncio.to_thread(gone.request, "GET", "/x")
    assert "\n" not in str(refused.value)


async def test_a_server_with_another_certificate_is_not_spoken_to() -> None:
    async with ApiServer() as server, ApiServer() as other:
        document = kubeconfig(server)
        document["clusters"][0]["cluster"]["server"] = other.url
        stranger = open_site(yaml.safe_dump(document).encode())
        with closing(stranger), pytest.raises(ClusterError, match=r"does not answer: .*certificate verify failed"):
            await asyncio.to_thread(stranger.request, "GET", "/x")
        await other.left()
    assert other.asked == []


async def test_lines_come_one_by_one_also_the_last_without_an_end() -> None:
    async def log(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for part in (b"first\nsec", b"ond\n\n", "dritte \u00e4".encode(), b"\xff"):
            await response.write(part)
            await asyncio.sleep(0)
        return response

    async with ApiServer() as server:
        server.answers["/log"] = log
        with closing(site(server)) as cluster:
            lines = await asyncio.to_thread(lambda: list(cluster.lines("/log", query={"follow": "true"})))
        await server.left()
    assert lines == ["first", "second", "", "dritte \u00e4\ufffd"]
    assert server.asked[0].query == {"follow": "true"}


async def test_the_users_own_kubeconfig_may_run_a_program_and_name_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credential = (
        '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "own"}}'
    )
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-c", f"print('{credential}')"],
        "interactiveMode": "Never",
    }
    async with ApiServer() as server:
        server.answers["/x"] = value({})
        document = kubeconfig(server, exec=plugin)
        (tmp_path / "ca.crt").write_text(server.authority.pem)
        document["clusters"][0]["cluster"] = {"server": server.url, "certificate-authority": "ca.crt"}
        (tmp_path / "config").write_text(yaml.safe_dump(document))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))
        here, there = await asyncio.to_thread(open_own, None), await asyncio.to_thread(open_own, "there")
        with closing(here):
            await asyncio.to_thread(here.request, "GET", "/x")
        await server.left()
    assert server.asked[0].headers["Authorization"] == "Bearer own"
    assert (here.namespace, there.namespace) == ("jobs", "default")
    with pytest.raises(BadCredentials, match="--context nowhere: there is no such context"):
        open_own("nowhere")
    # The same from a site is refused: the operator would run somebody else's program.
    with pytest.raises(BadCredentials, match="refused"):
        open_site(yaml.safe_dump(document).encode())


def test_without_a_kubeconfig_the_line_says_where_one_was_looked_for(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", "from diloco_cli.entry import main; main()", "status"],
        env={"HOME": str(tmp_path), "PATH": "/usr/bin", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert answer.returncode == 2
    assert answer.stderr.startswith("error: KUBECONFIG, or ~/.kube/config: ")
    assert answer.stderr.count("\n") == 1


def test_local_runs_start_without_the_kubernetes_client() -> None:
    ask = "import sys, diloco_cli.main; print(sorted({n.split('.')[0] for n in sys.modules} & {'kubernetes', 'kopf'}))"
    answer = subprocess.run(
        [sys.executable, "-c", ask],
        env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert answer.stdout == "[]\n"

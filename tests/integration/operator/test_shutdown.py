"""The operator's process is asked to end while it looks after a job."""

import asyncio
import base64
import json
import os
import signal
import sys
import time
from pathlib import Path

import yaml
from aiohttp import web

from builders import manifest
from diloco_api import names
from diloco_operator.api import ApiError, JobRef
from diloco_operator.ports import free_ports
from fakes.api_server import TOKEN, ApiServer, status
from fakes.kube_api import FakeApi

DOCUMENT = manifest()
REF = JobRef("default", "toy", DOCUMENT["metadata"]["uid"])
VERBS = ["get", "list", "watch", "patch"]
RESOURCE = {"name": names.PLURAL, "kind": names.KIND, "singularName": "", "namespaced": True, "verbs": VERBS}
GROUP = {"name": names.GROUP, "versions": [{"version": names.VERSION}], "preferredVersion": {"version": names.VERSION}}
DISCOVERY = {
    "/api": {"versions": ["v1"]},
    "/api/v1": {"resources": [{**RESOURCE, "name": "namespaces", "kind": "Namespace", "namespaced": False}]},
    "/apis": {"groups": [GROUP]},
    f"/apis/{names.API_VERSION}": {"resources": [RESOURCE]},
}


class Hub(FakeApi):
    """As an HTTP server; watches tell nothing."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            response = web.StreamResponse()
            await response.prepare(request)
            await asyncio.Event().wait()
        if request.path in DISCOVERY:
            return web.json_response(DISCOVERY[request.path])
        text = await request.text()
        body = json.loads(text) if text else None
        try:
            found = await self.request(request.method, request.path, body, content_type=request.content_type)
        except ApiError as error:
            return status(error.status, error.reason, str(error))
        return web.json_response({"metadata": {"resourceVersion": "1"}, **found})


class AnyPath(dict):
    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def get(self, key: object, default: object = None) -> object:
        return self._hub.answer


async def begun(server: ApiServer) -> None:
    """The job is looked after, and watched."""
    async with asyncio.timeout(20):
        while True:
            watched = any(asked.path.endswith(names.PLURAL) and "watch" in asked.query for asked in server.asked)
            if watched and REF.path in server.paths():
                return
            await asyncio.sleep(0.02)


async def test_a_process_that_is_asked_to_end_does_so_at_once_and_gives_its_lease_back(tmp_path: Path) -> None:
    hub = Hub()
    hub.put(REF.path, DOCUMENT)
    async with ApiServer(answers=AnyPath(hub)) as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "diloco_operator", "--image=trainer:1", "--namespace=default",
            "--lease-namespace=default", f"--kubeconfig={_kubeconfig(tmp_path, server)}", *_ports(tmp_path),
            env={**os.environ, "NO_PROXY": "127.0.0.1"}, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            await begun(server)
            asked_at = time.monotonic()
            process.send_signal(signal.SIGTERM)
            _, said = await asyncio.wait_for(process.communicate(), 30)
            took = time.monotonic() - asked_at
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert (process.returncode, took < 2.0) == (0, True), f"{took:.1f} s: {said.decode()}"
    assert "Hung" not in said.decode()
    (lease,) = [found for path, found in hub.objects.items() if "/leases/" in path]
    assert lease["spec"]["holderIdentity"] == ""


def _kubeconfig(folder: Path, server: ApiServer) -> Path:
    authority = base64.b64encode(server.authority.pem.encode()).decode()
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server.url, "certificate-authority-data": authority}}],
        "users": [{"name": "u", "user": {"token": TOKEN}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    path.chmod(0o600)
    return path


def _ports(folder: Path) -> list[str]:
    ports = free_ports(folder, {})
    return [f"--health-port={ports.admin}", f"--metrics-port={ports.metrics}"]

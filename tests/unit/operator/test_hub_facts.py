"""What planning is told of the hub, how often it is looked up, and what happens when it cannot be."""

import asyncio
import base64

import pytest

from builders import job
from diloco_api import names
from diloco_operator.api import ApiError
from diloco_operator.hub_facts import KEEP_SECONDS, Kept, KubeFacts
from diloco_operator.sites.site import SiteForbidden
from fakes.kube_api import FakeApi

NODE_PORT = {"synchronizer.exposure": {"type": "NodePort"}}
MARK = {"metadata": {"labels": {"diloco.dev/propagate": "true"}}}


class Scene:
    def __init__(self) -> None:
        self.api, self.seconds = FakeApi(), 0.0
        self.nodes: list[str] | Exception = ["192.0.2.1", "192.0.2.2"]
        self.asked = 0
        self.shared: Kept[list[str]] = Kept("nodes", [], now=self.now)
        self.facts = self.of_a_job()

    def now(self) -> float:
        return self.seconds

    def of_a_job(self) -> KubeFacts:
        return KubeFacts(self.api, lambda: self.shared.get(self._nodes), self._crd, now=self.now)

    async def _nodes(self) -> list[str]:
        self.asked += 1
        await asyncio.sleep(0)
        if isinstance(self.nodes, Exception):
            raise self.nodes
        return self.nodes

    async def _crd(self) -> str:
        return ""


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_the_synchronizer_is_reached_at_its_services_address_as_soon_as_there_is_one(scene: Scene) -> None:
    found = job()
    assert (await scene.facts.read(found)).admin_host == ""
    name = names.synchronizer_name(found.metadata.name, found.metadata.uid)
    scene.api.put(f"/api/v1/namespaces/default/services/{name}", {"spec": {"clusterIP": "10.0.0.7"}})
    assert (await scene.facts.read(found)).admin_host == "10.0.0.7"
    requests = len(scene.api.requests)
    await scene.facts.read(found)
    assert len(scene.api.requests) == requests


async def test_nodes_are_asked_for_only_where_their_addresses_are_used(scene: Scene) -> None:
    await scene.facts.read(job())
    await scene.facts.read(job({"synchronizer.exposure": {"type": "NodePort", "addresses": ["h.example:30000"]}}))
    assert scene.asked == 0
    assert (await scene.facts.read(job(NODE_PORT))).node_addresses == ("192.0.2.1", "192.0.2.2")


async def test_nodes_are_listed_once_for_all_jobs(scene: Scene) -> None:
    jobs = [scene.of_a_job() for _ in range(5)]
    for _ in range(3):
        found = await asyncio.gather(*(facts.read(job(NODE_PORT)) for facts in jobs))
        assert {facts.node_addresses for facts in found} == {("192.0.2.1", "192.0.2.2")}
    assert scene.asked == 1
    scene.seconds += KEEP_SECONDS
    await asyncio.gather(*(facts.read(job(NODE_PORT)) for facts in jobs))
    assert scene.asked == 2


async def test_what_cannot_be_read_now_stays_as_it_was_and_is_told_once(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.facts.read(job(NODE_PORT))
    scene.nodes = SiteForbidden("nodes is forbidden")
    for _ in range(3):
        scene.seconds += KEEP_SECONDS + 1
        assert (await scene.facts.read(job(NODE_PORT))).node_addresses == ("192.0.2.1", "192.0.2.2")
    assert scene.asked == 4
    assert caplog.text.count("nodes is forbidden") == 1


async def test_only_labelled_secrets_and_config_maps_are_copied(scene: Scene) -> None:
    secrets, maps = "/api/v1/namespaces/default/secrets/", "/api/v1/namespaces/default/configmaps/"
    scene.api.put(f"{secrets}pull", {**MARK, "data": {"k": base64.b64encode(b"v").decode()}})
    scene.api.put(f"{secrets}private", {"metadata": {}, "data": {"k": base64.b64encode(b"v").decode()}})
    scene.api.put(f"{maps}words", {**MARK, "data": {"a": "b"}, "binaryData": {"c": base64.b64encode(b"\xff").decode()}})
    wanted = job({"propagate": {"secrets": ["pull", "private", "absent"], "configMaps": ["words"]}})
    facts = await scene.facts.read(wanted)
    assert facts.propagated == {("Secret", "pull"): {"k": b"v"}, ("ConfigMap", "words"): {"a": b"b", "c": b"\xff"}}
    assert "b'v'" not in repr(facts)


async def test_a_hub_that_is_away_breaks_no_pass(scene: Scene) -> None:
    scene.api.broken = ApiError(0, "Timeout", "no answer")
    assert (await scene.facts.read(job())).admin_host == ""


async def test_content_to_copy_that_was_never_read_ends_the_pass_and_what_was_read_stays(scene: Scene) -> None:
    wanted = job({"propagate": {"secrets": ["pull"]}})
    scene.api.put("/api/v1/namespaces/default/secrets/pull", {**MARK, "data": {"k": base64.b64encode(b"v").decode()}})
    scene.api.broken = ApiError(0, "Timeout", "no answer")
    with pytest.raises(ApiError):
        await scene.facts.read(wanted)
    scene.api.broken = None
    assert ("Secret", "pull") in (await scene.facts.read(wanted)).propagated
    scene.api.broken, scene.seconds = ApiError(0, "Timeout", "no answer"), KEEP_SECONDS + 1
    assert ("Secret", "pull") in (await scene.facts.read(wanted)).propagated

"""Sites of jobs: who shares a connection, what a changed Secret does, what is kept until a job is gone."""

import base64
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from builders import manifest
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.api import ApiError
from diloco_operator.kubeconfigs import KEEP_SECONDS, Kubeconfigs
from diloco_operator.registry import JobSites, Registry
from diloco_operator.sites.kubeconfig import ClusterCredentials, parse_kubeconfig
from diloco_operator.sites.site import SiteForbidden
from fakes.kube_api import FakeApi
from fakes.kubeconfigs import kubeconfig

HUB = parse_kubeconfig(kubeconfig("https://hub.example:6443"))
SECRET = "/api/v1/namespaces/default/secrets/{}"


class FakeConnection:
    """Stands for a KubeSite; `uid` is the cluster behind it."""

    def __init__(self, name: str, credentials: ClusterCredentials, namespace: str, **_: object) -> None:
        self.name, self.credentials, self.namespace = name, credentials, namespace
        self.uid: str | Exception = "cluster-1"
        self.closed = False

    async def identity(self) -> str:
        if isinstance(self.uid, Exception):
            raise self.uid
        return self.uid

    async def close(self) -> None:
        self.closed = True


class Scene:
    def __init__(self) -> None:
        self.api, self.seconds = FakeApi(), 0.0
        self.kubeconfigs = Kubeconfigs(self.api, now=lambda: self.seconds)
        self.registry = Registry(HUB, self.kubeconfigs, FakeConnection)  # type: ignore[arg-type]
        self.sites = JobSites(self.registry, "uid-1")

    def secret(self, name: str, text: str, labels: Mapping[str, str] | None = None) -> None:
        labels = {"diloco.dev/kubeconfig": "true"} if labels is None else labels
        data = {"kubeconfig": base64.b64encode(text.encode()).decode()}
        self.api.put(SECRET.format(name), {"metadata": {"labels": dict(labels)}, "data": data})
        self.kubeconfigs.forget("default", name)

    async def look(self, job: DiLoCoJob, sites: JobSites | None = None) -> dict[str, Any]:
        return {entry.name: entry for entry in await (sites or self.sites).entries(job)}


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.secret("a", kubeconfig("https://a.example:6443"))
    scene.secret("b", kubeconfig("https://b.example:6443"))
    return scene


def job(*sites: str, uid: str = "uid-1", deleted: bool = False) -> DiLoCoJob:
    listed = [{"name": name, "kubeconfigSecretRef": {"name": name}} for name in sites]
    document = manifest({"sites": listed, "synchronizer.exposure": {"type": "NodePort"}})
    document["metadata"] |= {"uid": uid} | ({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {})
    return DiLoCoJob.model_validate(document)


def with_rows(named: DiLoCoJob, *rows: dict[str, str]) -> DiLoCoJob:
    document = named.model_dump(mode="json", by_alias=True, exclude_none=True)
    return DiLoCoJob.model_validate({**document, "status": {"sites": rows}})


async def test_the_hub_is_always_there_and_comes_first(scene: Scene) -> None:
    assert list(await scene.look(job())) == ["hub"]
    assert list(await scene.look(job("a", "b"))) == ["hub", "a", "b"]


async def test_jobs_with_the_same_secret_and_namespace_share_a_connection_until_the_last_is_gone(scene: Scene) -> None:
    other = JobSites(scene.registry, "uid-2")
    first = (await scene.look(job("a")))["a"].site
    second = (await scene.look(job("a", uid="uid-2"), other))["a"].site
    assert first is second
    await scene.sites.close()
    assert not first.closed
    await other.close()
    assert first.closed


async def test_a_changed_secret_is_used_at_once_and_the_old_connection_closed(scene: Scene) -> None:
    before = (await scene.look(job("a")))["a"].site
    scene.secret("a", kubeconfig("https://new.example:6443"))
    after = (await scene.look(job("a")))["a"].site
    assert (before.closed, after.credentials.server) == (True, "https://new.example:6443")


async def test_a_secret_nobody_told_of_is_looked_at_again_after_a_while(scene: Scene) -> None:
    before = (await scene.look(job("a")))["a"].site
    requests = len(scene.api.requests)
    await scene.look(job("a"))
    assert len(scene.api.requests) == requests
    scene.api.objects[SECRET.format("a")]["data"]["kubeconfig"] = base64.b64encode(
        kubeconfig("https://new.example:6443").encode()
    ).decode()
    scene.seconds += KEEP_SECONDS + 1
    assert (await scene.look(job("a")))["a"].site is not before


async def test_a_secret_that_is_read_again_is_not_parsed_again_and_one_nobody_uses_is_forgotten(scene: Scene) -> None:
    first = await scene.kubeconfigs.read("default", "a")
    scene.kubeconfigs.forget()
    requests = len(scene.api.requests)
    again = await scene.kubeconfigs.read("default", "a")
    assert (again.credentials is first.credentials, len(scene.api.requests)) == (True, requests + 1)
    scene.seconds += KEEP_SECONDS
    await scene.kubeconfigs.read("default", "b")
    other = await scene.kubeconfigs.read("default", "a")
    assert (other.credentials is first.credentials, other.credentials == first.credentials) == (False, True)


async def test_what_is_wrong_with_one_secret_concerns_its_site_alone(scene: Scene) -> None:
    scene.secret("unlabelled", kubeconfig("https://c.example:6443"), {})
    scene.secret("hostile", kubeconfig("https://d.example:6443").replace("token", "tokenFile"))
    found = await scene.look(job("a", "unlabelled", "hostile", "absent"))
    assert found["a"].problem is None
    reasons = {name: entry.problem.reason for name, entry in found.items() if entry.problem}
    assert reasons == {"unlabelled": "SecretInvalid", "hostile": "SecretInvalid", "absent": "SecretMissing"}
    assert "diloco.dev/kubeconfig" in found["unlabelled"].problem.message
    assert all(found[name].site is None for name in reasons)


async def test_a_job_that_goes_with_its_namespace_keeps_what_it_used(scene: Scene) -> None:
    before = (await scene.look(job("a")))["a"].site
    del scene.api.objects[SECRET.format("a")]
    scene.kubeconfigs.forget("default", "a")
    living = (await scene.look(job("a")))["a"]
    assert (living.site, living.problem.reason) == (None, "SecretMissing")
    going = (await scene.look(job("a", deleted=True)))["a"]
    assert (going.site, before.closed) == (before, False)
    await scene.sites.close()
    assert before.closed


async def test_a_site_the_job_no_longer_names_is_looked_at_until_it_is_forgotten(scene: Scene) -> None:
    before = (await scene.look(job("a", "b")))["b"].site
    found = await scene.look(job("a"))
    assert (found["b"].site, found["b"].leaving, found["a"].leaving) == (before, True, False)
    await scene.sites.forget("b")
    assert list(await scene.look(job("a"))) == ["hub", "a"]
    assert before.closed


async def test_an_operator_that_started_since_knows_of_a_site_the_job_no_longer_names_until_it_is_forgotten(
    scene: Scene,
) -> None:
    left = with_rows(job("a"), {"name": "a", "secretName": "a"}, {"name": "b", "secretName": "b", "namespace": "far"})
    found = await scene.look(left)
    site = found["b"].site
    assert (found["b"].leaving, found["a"].leaving) == (True, False)
    assert (site.credentials.server, site.namespace) == ("https://b.example:6443", "far")
    assert (await scene.look(left))["b"].site is site
    await scene.sites.forget("b")
    assert list(await scene.look(left)) == ["hub", "a"], "the row is there until the next write"
    assert site.closed
    assert list(await scene.look(with_rows(job("a", "b"), {"name": "b", "secretName": "b"}))) == ["hub", "a", "b"]
    assert (await scene.look(left))["b"].leaving, "it was named again, and may hold something again"


@pytest.mark.parametrize("restarted", [False, True], ids=["same operator", "restarted operator"])
async def test_a_site_under_another_name_is_not_leaving(scene: Scene, restarted: bool) -> None:
    if not restarted:
        await scene.look(job("a"))
    renamed = job("a")
    sites = [site.model_copy(update={"name": "new"}) if site.name == "a" else site for site in renamed.spec.sites]
    renamed = renamed.model_copy(update={"spec": renamed.spec.model_copy(update={"sites": sites})})
    row = {"name": "a", "secretName": "a", "namespace": renamed.metadata.namespace}
    found = await scene.look(with_rows(renamed, row))
    assert list(found) == ["hub", "new"]


async def test_a_site_the_job_no_longer_names_and_whose_secret_is_gone_is_told_not_forgotten(scene: Scene) -> None:
    entry = (await scene.look(with_rows(job(), {"name": "b", "secretName": "gone", "namespace": "far"})))["b"]
    assert (entry.site, entry.leaving, entry.problem.reason) == (None, True, "SecretMissing")


async def test_a_hub_that_cannot_be_asked_says_nothing_about_secrets(scene: Scene) -> None:
    scene.api.broken = ApiError(0, "Timeout", "no answer")
    with pytest.raises(ApiError):
        await scene.look(job("a"))


async def test_a_site_must_be_identified_the_hub_need_not(scene: Scene) -> None:
    found = await scene.look(job("a"))
    for entry in found.values():
        entry.site.uid = SiteForbidden("may not get namespaces")
    assert await found["hub"].identify() == ""
    with pytest.raises(SiteForbidden):
        await found["a"].identify()


def test_credentials_show_no_secret() -> None:
    assert "s3cret" not in repr(HUB)
    assert "s3cret" not in repr(replace(HUB, server="https://x"))

"""What `KubeSite` asks of an API server, call by call; real ones are asked in tests/clusters."""

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from diloco_api.names import LABEL_JOB_UID, LABEL_ORIGIN
from diloco_operator.sites import kube_client
from diloco_operator.sites.kube import KubeSite
from diloco_operator.sites.kube_kinds import HUB_KINDS, SITE_KINDS
from diloco_operator.sites.site import (
    AlreadyExists,
    Created,
    SiteConflict,
    SiteError,
    SiteForbidden,
    SiteInvalid,
    SiteNamespaceMissing,
    SiteServerError,
    SiteUnauthorized,
)
from fakes.api_server import Answer, ApiServer, always, item, listed, status, value

PODS = "/api/v1/namespaces/a/pods"
SECRET = "/api/v1/namespaces/a/secrets/c"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


@pytest.fixture
async def site(server: ApiServer) -> AsyncIterator[KubeSite]:
    site = KubeSite("s", server.credentials(), "a")
    yield site
    await site.close()


def one_after_the_other(*answers: Answer) -> Answer:
    left = list(answers)

    async def answer(request: web.Request) -> web.StreamResponse:
        return await left.pop(0)(request)

    return answer


def manifest(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "labels": {LABEL_JOB_UID: "j"}}, **more}


async def test_a_pod_is_posted_as_it_is(server: ApiServer, site: KubeSite) -> None:
    server.answers["POST", PODS] = value(item("p", "j"))
    assert await site.create_pod(manifest("Pod", "p")) == Created(uid="uid-p")
    (asked,) = server.asked
    assert asked.body == manifest("Pod", "p")
    assert asked.query == {"fieldManager": "diloco-operator"}


async def test_a_pod_of_that_name_is_an_answer_with_its_labels(server: ApiServer, site: KubeSite) -> None:
    server.answers["POST", PODS] = always(409, "AlreadyExists", 'pods "p" already exists')
    server.answers["GET", PODS + "/p"] = value(item("p", "somebody"))
    assert await site.create_pod(manifest("Pod", "p")) == AlreadyExists({LABEL_JOB_UID: "somebody"}, "uid-p")


async def test_a_pod_that_vanishes_while_it_is_looked_at_is_created_once_more(
    server: ApiServer, site: KubeSite
) -> None:
    exists = always(409, "AlreadyExists", 'pods "p" already exists')
    server.answers["POST", PODS] = one_after_the_other(exists, value(item("p", "j")))
    assert await site.create_pod(manifest("Pod", "p")) == Created(uid="uid-p")


async def test_a_quota_that_changed_under_the_creation_is_not_taken_for_an_existing_pod(
    server: ApiServer, site: KubeSite
) -> None:
    server.answers["POST", PODS] = always(409, "Conflict", "Operation cannot be fulfilled on resourcequotas")
    with pytest.raises(SiteConflict, match="resourcequotas"):
        await site.create_pod(manifest("Pod", "p"))


async def test_an_absent_object_is_applied_after_a_look(server: ApiServer, site: KubeSite) -> None:
    server.answers["PATCH", SECRET] = value({})
    await site.apply(manifest("Secret", "c", stringData={"key": "value"}))
    look, patch = server.asked
    assert (look.method, look.path) == ("GET", SECRET)
    assert "PartialObjectMetadata" in look.headers["Accept"]
    assert patch.headers["Content-Type"] == "application/apply-patch+yaml"
    assert patch.query == {"fieldManager": "diloco-operator", "force": "true"}
    assert patch.body == manifest("Secret", "c", data={"key": base64.b64encode(b"value").decode()})


async def test_an_object_of_the_job_is_applied_to_exactly_the_one_looked_at(server: ApiServer, site: KubeSite) -> None:
    server.answers["GET", SECRET] = value(item("c", "j"))
    server.answers["PATCH", SECRET] = value({})
    await site.apply(manifest("Secret", "c"))
    assert server.asked[1].body["metadata"]["uid"] == "uid-c"


@pytest.mark.parametrize(
    "labels",
    [{}, {LABEL_JOB_UID: "another"}, {LABEL_JOB_UID: "j", LABEL_ORIGIN: "another"}],
    ids=["nobody's", "another job's", "another installation's"],
)
async def test_an_object_that_is_not_the_jobs_is_not_written(
    server: ApiServer, site: KubeSite, labels: dict[str, str]
) -> None:
    server.answers["GET", SECRET] = value(item("c", "j", labels=labels))
    with pytest.raises(SiteConflict):
        await site.apply(manifest("Secret", "c"))
    assert [asked.method for asked in server.asked] == ["GET"]


async def test_pods_are_never_applied_and_unknown_kinds_never_asked_for(server: ApiServer, site: KubeSite) -> None:
    for kind in ("Pod", "Node"):
        with pytest.raises(SiteInvalid):
            await site.apply(manifest(kind, "c"))
    with pytest.raises(SiteInvalid):
        await site.delete("ClusterRole", "c", None)
    assert not server.asked


@pytest.mark.parametrize("name", ["../../b/secrets/c", "..", "c/d", "c?x=y", "c%2F", "", "C", "x" * 254])
async def test_a_name_that_could_mean_another_path_is_never_asked_for(
    server: ApiServer, site: KubeSite, name: str
) -> None:
    with pytest.raises(SiteInvalid):
        await site.secret_data(name)
    assert not server.asked


async def test_deletion_names_the_uid_and_lets_dependents_go_in_the_background(
    server: ApiServer, site: KubeSite
) -> None:
    server.answers["DELETE", PODS + "/p"] = value({})
    await site.delete("Pod", "p", "uid-p")
    assert server.asked[0].body == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "propagationPolicy": "Background",
        "preconditions": {"uid": "uid-p"},
    }


async def test_lists_of_every_kind_come_with_kind_and_version_and_without_content_of_secrets(
    server: ApiServer, site: KubeSite
) -> None:
    for kind in HUB_KINDS:
        server.answers["GET", kind.path("a")] = value(listed(item(kind.plural, "j", managedFields=[{"f": {}}])))
    found = await site.list_owned("j")
    assert {(f["apiVersion"], f["kind"], f["metadata"]["name"]) for f in found} == {
        (kind.api_version, kind.name, kind.plural) for kind in HUB_KINDS
    }
    assert {kind.api_version for kind in HUB_KINDS} == {"v1", "apps/v1", "policy/v1", "networking.k8s.io/v1"}
    assert "managedFields" not in str(found)
    for asked in server.asked:
        assert asked.query["labelSelector"] == f"{LABEL_JOB_UID}=j"
        hidden = asked.path.endswith(("secrets", "configmaps"))
        assert ("PartialObjectMetadataList" in asked.headers["Accept"]) is hidden


async def test_a_site_whose_role_allows_less_is_asked_for_less(server: ApiServer) -> None:
    for kind in SITE_KINDS:
        server.answers["GET", kind.path("a")] = value(listed())
    site = KubeSite("s", server.credentials(), "a", kinds=SITE_KINDS)
    assert await site.list_owned("j") == []
    await site.close()
    assert sorted(path.rpartition("/")[2] for path in server.paths()) == [
        "configmaps", "networkpolicies", "pods", "secrets",
    ]  # fmt: skip


async def test_one_kind_that_cannot_be_listed_makes_the_list_an_error(server: ApiServer, site: KubeSite) -> None:
    for kind in HUB_KINDS:
        server.answers["GET", kind.path("a")] = value(listed())
    server.answers["GET", "/apis/apps/v1/namespaces/a/deployments"] = always(403, "Forbidden", "no deployments")
    with pytest.raises(SiteForbidden, match="no deployments"):
        await site.list_owned("j")


async def test_long_lists_come_in_pages_and_begin_anew_when_a_page_is_no_longer_to_be_had(server: ApiServer) -> None:
    site = KubeSite("s", server.credentials(), "a", kinds=SITE_KINDS[:1])
    server.answers["GET", PODS] = one_after_the_other(
        value(listed(item("a", "j"), token="t1")),
        always(410, "Expired", "too old"),
        value(listed(item("b", "j"), token="t2")),
        value(listed(item("c", "j"))),
    )
    assert [found["metadata"]["name"] for found in await site.list_owned("j")] == ["b", "c"]
    await site.close()
    assert [asked.query.get("continue") for asked in server.asked] == [None, "t1", None, "t2"]
    assert server.asked[0].query["limit"] == str(kube_client.PAGE_SIZE)


async def test_identity_addresses_and_data_are_read(server: ApiServer, site: KubeSite) -> None:
    server.answers["GET", "/api/v1/namespaces/kube-system"] = value(item("kube-system", ""))
    server.answers["GET", SECRET] = value({"data": {"kubeconfig": base64.b64encode(b"\x00x").decode()}})
    server.answers["GET", "/api/v1/namespaces/a/configmaps/c"] = value({"data": {"k": "v"}})
    two = _node("n2", "True", InternalIP="192.0.2.2", ExternalIP="203.0.113.2")
    two["status"]["addresses"].append({"type": "InternalIP", "address": "2001:db8::2"})  # the first one counts
    server.answers["GET", "/api/v1/nodes"] = value(
        listed(
            two,
            _node("n1", "True", Hostname="n1", ExternalIP="203.0.113.1"),
            _node("n3", "False", InternalIP="192.0.2.3"),
            _node("n4", "True", Hostname="n4"),
        )
    )
    assert await site.identity() == "uid-kube-system"
    assert await site.node_addresses() == ["203.0.113.1", "192.0.2.2"]
    assert await site.secret_data("c") == {"kubeconfig": b"\x00x"}
    assert await site.secret_data("none") is None
    assert await site.config_map_data("c") == {"k": "v"}
    assert await site.config_map_data("none") is None


def _node(name: str, ready: str, **addresses: str) -> dict[str, Any]:
    found = [{"type": kind, "address": address} for kind, address in addresses.items()]
    conditions = [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready}]
    return {"metadata": {"name": name}, "status": {"addresses": found, "conditions": conditions}}


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [(SiteUnauthorized, 401, "Unauthorized"), (SiteForbidden, 403, "Forbidden"), (SiteInvalid, 422, "Invalid")],
)
async def test_refusals_come_with_the_servers_own_words(
    server: ApiServer, site: KubeSite, error: type[SiteError], code: int, reason: str
) -> None:
    server.answers["POST", PODS] = always(code, reason, "because I say so")
    with pytest.raises(error, match=r"^because I say so$"):
        await site.create_pod(manifest("Pod", "p"))


async def test_a_missing_namespace_is_told_from_a_missing_object(server: ApiServer, site: KubeSite) -> None:
    async def missing(_: web.Request) -> web.StreamResponse:
        return status(404, "NotFound", 'namespaces "a" not found', details={"name": "a", "kind": "namespaces"})

    server.answers["POST", PODS] = server.answers["PATCH", SECRET] = missing
    with pytest.raises(SiteNamespaceMissing):
        await site.create_pod(manifest("Pod", "p"))
    with pytest.raises(SiteNamespaceMissing):
        await site.apply(manifest("Secret", "c"))
    await site.delete("Pod", "p", None)


async def test_the_end_of_a_log_is_asked_for_by_container_and_bounded(server: ApiServer, site: KubeSite) -> None:
    log = "joined\nan odd byte: \ufffd\n"

    async def text(_: web.Request) -> web.StreamResponse:
        return web.Response(body=b"joined\nan odd byte: \xff\n", content_type="text/plain")

    server.answers["GET", f"{PODS}/p/log"] = text
    assert await site.log_tail("p", "learner") == log
    (asked,) = server.asked
    assert asked.query == {"container": "learner", "tailLines": "50", "limitBytes": "65536"}
    assert await site.log_tail("gone", "learner") == ""


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (always(403, "Forbidden", 'pods "p" is forbidden: cannot get resource "pods/log"'), SiteForbidden, "pods/log"),
        (always(400, "BadRequest", 'container "learner" is waiting to start'), SiteInvalid, "waiting to start"),
        (always(500, "InternalError", "dial tcp 10.0.0.1:10250: no route to host"), SiteServerError, "no route"),
    ],
)
async def test_a_log_that_cannot_be_had_is_an_error_that_says_so(
    server: ApiServer, site: KubeSite, answer: Answer, error: type[SiteError], words: str
) -> None:
    server.answers["GET", f"{PODS}/p/log"] = answer
    with pytest.raises(error, match=words):
        await site.log_tail("p", "learner")


async def test_a_server_that_ignores_the_bound_on_a_log_is_not_believed(server: ApiServer, site: KubeSite) -> None:
    async def endless(_: web.Request) -> web.StreamResponse:
        return web.Response(text="x" * 2**20)

    server.answers["GET", f"{PODS}/p/log"] = endless
    with pytest.raises(SiteServerError, match="an answer of more than"):
        await site.log_tail("p", "learner")

"""`KubeSite` on real clusters: the contract of every site, and what only a real API server says."""

import asyncio
import base64
import copy
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from clusters import faults
from clusters.api import Api
from clusters.images import BUSYBOX
from clusters.layout import SiteLayout
from contract import test_site_contract as contract
from contract.test_site_contract import JOB, OTHER, Manifest, content, pod
from diloco_api.names import LABEL_JOB_UID
from diloco_operator.sites.kube import KubeSite
from diloco_operator.sites.kube_kinds import SITE_KINDS
from diloco_operator.sites.kubeconfig import ClusterCredentials, from_kubeconfig_file, parse_kubeconfig
from diloco_operator.sites.site import (
    AlreadyExists,
    Created,
    SiteConflict,
    SiteEvent,
    SiteForbidden,
    SiteInvalid,
    SiteNamespaceMissing,
    SitePodSecurityDenied,
    SiteQuotaExceeded,
    SiteTLSFailure,
    SiteUnauthorized,
)
from fakes.authority import Authority

pytestmark = pytest.mark.timeout(300)

PROGRAM = """
case $0 in
  fail) echo "error: made to fail" >&2; exit 1;;
  chatty) i=0; while [ $i -lt 1000 ]; do echo "line $i"; i=$((i+1)); done;;
  stubborn) trap '' TERM;;
  *) trap 'exit 0' TERM;;
esac
while true; do sleep 0.1; done
"""

# The same tests, with the `rig` of this module.
globals().update({name: test for name, test in vars(contract).items() if name.startswith("test_")})


class Dressed:
    """A KubeSite whose pods are put into the image and the profile that there is here."""

    def __init__(self, site: KubeSite) -> None:
        self._site = site
        self.name = site.name
        self.list_owned = site.list_owned
        self.delete = site.delete
        self.log_tail = site.log_tail
        self.watch = site.watch

    async def create_pod(self, manifest: Manifest) -> Created | AlreadyExists:
        return await self._site.create_pod(dressed(manifest))

    async def apply(self, manifest: Manifest) -> None:
        if manifest["kind"] == "Deployment":
            manifest = copy.deepcopy(manifest)
            manifest["spec"]["template"] = dressed(manifest["spec"]["template"])
        await self._site.apply(manifest)


def dressed(manifest: Manifest) -> Manifest:
    manifest = copy.deepcopy(manifest)
    manifest["spec"]["securityContext"] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    manifest["spec"]["containers"][0] |= {
        "image": BUSYBOX,
        "command": ["sh", "-c", PROGRAM],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return manifest


class ClusterRig:
    patience_seconds = 90.0

    def __init__(self, layout: SiteLayout, namespace: str, site: KubeSite) -> None:
        self.site = Dressed(site)
        self._layout = layout
        self._namespace = namespace

    def kill(self, pod_name: str) -> None:
        found = Api(self._layout).get("v1", "Pod", self._namespace, pod_name)
        assert found is not None
        faults.kill_container(self._layout, found)


@pytest.fixture
def namespace(site_1: SiteLayout, new_namespace: Callable[..., str]) -> str:
    return new_namespace(site_1)


@pytest.fixture
def credentials(site_1: SiteLayout) -> ClusterCredentials:
    return from_kubeconfig_file(site_1.kubeconfig)


@pytest.fixture
async def site(credentials: ClusterCredentials, namespace: str) -> AsyncIterator[KubeSite]:
    site = KubeSite("site-1", credentials, namespace)
    yield site
    await site.close()


@pytest.fixture
async def rig(site_1: SiteLayout, namespace: str, site: KubeSite) -> ClusterRig:
    return ClusterRig(site_1, namespace, site)


async def test_pod_security_is_told_with_the_servers_words(site: KubeSite) -> None:
    with pytest.raises(SitePodSecurityDenied, match="runAsNonRoot != true"):
        await site.create_pod(pod("a"))


async def test_a_used_up_quota_is_told(site_1: SiteLayout, namespace: str, site: KubeSite) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": namespace}}
    Api(site_1).create(quota | {"spec": {"hard": {"pods": "1"}}})

    async def create_many() -> None:
        for number in range(1000):  # until the quota is counted
            await site.create_pod(dressed(pod(f"a{number}")))

    with pytest.raises(SiteQuotaExceeded, match="exceeded quota: q"):
        await asyncio.wait_for(create_many(), 30)


async def test_a_missing_namespace_is_told_and_nothing_is_in_it(credentials: ClusterCredentials) -> None:
    site = KubeSite("site-1", credentials, "there-is-no-such-namespace")
    for call in (site.create_pod(dressed(pod("a"))), site.apply(content("ConfigMap", "c"))):
        with pytest.raises(SiteNamespaceMissing, match='"there-is-no-such-namespace" not found'):
            await call
    assert await site.list_owned(JOB) == []
    await site.delete("Pod", "a", None)
    await site.close()


async def test_a_namespace_that_is_going_is_as_good_as_missing(
    site_1: SiteLayout, namespace: str, site: KubeSite
) -> None:
    held = content("ConfigMap", "held")
    held["metadata"]["finalizers"] = ["example.com/held"]
    await site.apply(held)
    Api(site_1).delete("v1", "Namespace", None, namespace)
    try:
        with pytest.raises(SiteNamespaceMissing, match="being terminated"):
            await site.create_pod(dressed(pod("a")))
    finally:
        path = f"/api/v1/namespaces/{namespace}/configmaps/held"
        Api(site_1).request("PATCH", path, {"metadata": {"finalizers": None}}, "application/merge-patch+json")


async def test_a_manifest_with_a_mistake_is_told_by_field(site: KubeSite) -> None:
    wrong = dressed(pod("a"))
    wrong["spec"]["restartPolicy"] = "Sometimes"
    with pytest.raises(SiteInvalid, match=r"spec\.restartPolicy"):
        await site.create_pod(wrong)


async def test_a_token_nobody_knows_is_unauthorized(credentials: ClusterCredentials, namespace: str) -> None:
    token = replace(credentials, client_cert_pem="", client_key_pem="", token="nobody")
    site = KubeSite("site-1", token, namespace)
    with pytest.raises(SiteUnauthorized):
        await site.list_owned(JOB)
    await site.close()


async def test_a_server_is_verified_by_the_kubeconfigs_own_authority(
    credentials: ClusterCredentials, namespace: str
) -> None:
    site = KubeSite("site-1", replace(credentials, ca_pem=Authority("another").pem), namespace)
    with pytest.raises(SiteTLSFailure, match="certificate is not accepted"):
        await site.list_owned(JOB)
    await site.close()


async def test_a_clusters_identity_and_the_addresses_of_its_nodes_are_read(
    site_1: SiteLayout, credentials: ClusterCredentials, site: KubeSite, hub: SiteLayout
) -> None:
    elsewhere = KubeSite("hub", from_kubeconfig_file(hub.kubeconfig), "default")
    identities = {await site.identity(), await site.identity(), await elsewhere.identity()}
    await elsewhere.close()
    assert len(identities) == 2
    assert Api(site_1).get("v1", "Namespace", None, "kube-system")["metadata"]["uid"] in identities
    assert [node.address for node in site_1.nodes()] == await site.node_addresses()


async def test_an_entry_that_is_no_longer_applied_is_gone(site: KubeSite) -> None:
    secret = content("Secret", "c")
    secret["stringData"] = {"old": "1", "stays": "2"}
    await site.apply(secret)
    secret["stringData"] = {"stays": "2", "new": "3"}
    await site.apply(secret)
    assert await site.secret_data("c") == {"stays": b"2", "new": b"3"}


async def test_what_others_added_to_our_object_stays_and_their_objects_are_not_touched(
    site_1: SiteLayout, namespace: str, site: KubeSite
) -> None:
    await site.apply(content("ConfigMap", "ours"))
    path = f"/api/v1/namespaces/{namespace}/configmaps/ours"
    theirs = {"metadata": {"labels": {"example.com/theirs": "yes"}}}
    Api(site_1).request("PATCH", path, theirs, "application/merge-patch+json")
    await site.apply(content("ConfigMap", "ours", hash_="h2"))
    found = Api(site_1).get("v1", "ConfigMap", namespace, "ours")
    assert found["metadata"]["labels"] == {LABEL_JOB_UID: JOB, "example.com/theirs": "yes"}
    plain = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "plain", "namespace": namespace}}
    before = Api(site_1).create(plain | {"data": {"a": "b"}})
    with pytest.raises(SiteConflict):
        await site.apply(content("ConfigMap", "plain"))
    assert Api(site_1).get("v1", "ConfigMap", namespace, "plain") == before


async def test_a_deleted_object_is_not_brought_back_by_who_looked_at_it_before(
    site_1: SiteLayout, namespace: str, site: KubeSite
) -> None:
    await site.apply(content("ConfigMap", "c"))
    look = site._metadata

    async def look_and_lose(*asked: Any) -> Manifest | None:
        found = await look(*asked)
        Api(site_1).delete("v1", "ConfigMap", namespace, "c")
        return found

    site._metadata = look_and_lose  # type: ignore[method-assign]
    with pytest.raises(SiteConflict):
        await site.apply(content("ConfigMap", "c", hash_="h2"))
    assert Api(site_1).get("v1", "ConfigMap", namespace, "c") is None


SITE_ROLE = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "create", "delete"]},
    {
        "apiGroups": ["", "networking.k8s.io"],
        "resources": ["configmaps", "secrets", "networkpolicies"],
        "verbs": ["get", "list", "watch", "create", "patch", "delete"],
    },
]
"""All that a site gives to the operator besides the look at its identity."""


async def test_the_role_of_a_site_is_enough_and_no_more_is_asked(
    site_1: SiteLayout, credentials: ClusterCredentials, namespace: str
) -> None:
    user = replace(credentials, client_cert_pem="", client_key_pem="", token=service_account(site_1, namespace))
    site = KubeSite("site-1", parse_kubeconfig(kubeconfig(user)), namespace, kinds=SITE_KINDS)
    watch = site.watch(JOB)
    created = await site.create_pod(dressed(pod("a")))
    assert isinstance(created, Created)
    assert isinstance(await site.create_pod(dressed(pod("a"))), AlreadyExists)
    for kind in ("ConfigMap", "Secret"):
        await site.apply(content(kind, "c"))
    async with asyncio.timeout(30):
        assert await anext(watch) == SiteEvent("ADDED", "Pod", "a")
    assert sorted(found["kind"] for found in await site.list_owned(JOB)) == ["ConfigMap", "Pod", "Secret"]
    await site.delete("Pod", "a", created.uid)
    assert await site.identity()
    with pytest.raises(SiteForbidden, match="nodes is forbidden"):
        await site.node_addresses()
    await site.close()


def service_account(layout: SiteLayout, namespace: str) -> str:
    """A token with the rights of a site's Role in the namespace."""
    api, where = Api(layout), {"name": "operator", "namespace": namespace}
    rbac = "rbac.authorization.k8s.io"
    subjects = [{"kind": "ServiceAccount"} | where]
    api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": where})
    looker = {"name": f"operator-{namespace}", "namespace": "kube-system"}
    look = [{"apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["kube-system"], "verbs": ["get"]}]
    for metadata, rules in ((where, SITE_ROLE), (looker, look)):
        role = {"apiGroup": rbac, "kind": "Role", "name": metadata["name"]}
        api.create({"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": metadata, "rules": rules})
        binding = {"apiVersion": f"{rbac}/v1", "kind": "RoleBinding", "metadata": metadata}
        api.create(binding | {"subjects": subjects, "roleRef": role})
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    answer = api.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/operator/token", request)
    return str(answer["status"]["token"])


def kubeconfig(credentials: ClusterCredentials) -> str:
    ca = base64.b64encode(credentials.ca_pem.encode()).decode()
    cluster = {"server": credentials.server, "certificate-authority-data": ca}
    return json.dumps(
        {
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "clusters": [{"name": "x", "cluster": cluster}],
            "users": [{"name": "x", "user": {"token": credentials.token}}],
        }
    )


async def test_looking_and_watching_write_nothing(site_1: SiteLayout, namespace: str, site: KubeSite) -> None:
    await site.apply(content("ConfigMap", "c"))
    audit = site_1.folder / "log" / "audit"
    watch = site.watch(JOB)
    await asyncio.sleep(1)
    before = [line for line in audit.read_text().splitlines() if f'"{namespace}"' in line]
    for _ in range(20):
        await site.list_owned(JOB)
        await site.identity()
    await asyncio.sleep(1)
    after = [line for line in audit.read_text().splitlines() if f'"{namespace}"' in line]
    assert before
    assert after == before
    del watch


async def test_jobs_of_one_namespace_do_not_see_each_other(site: KubeSite) -> None:
    ours = site.watch(JOB)
    await site.create_pod(dressed(pod("theirs", job=OTHER)))
    await site.create_pod(dressed(pod("ours")))
    async with asyncio.timeout(30):
        assert (await anext(ours)).name == "ours"
    assert [found["metadata"]["name"] for found in await site.list_owned(OTHER)] == ["theirs"]

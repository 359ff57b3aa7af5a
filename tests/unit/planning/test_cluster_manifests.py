"""Manifests of cluster runs: real Kubernetes objects, restricted-profile-clean whatever a template asks for."""

import base64
import json
from dataclasses import replace
from typing import Any

import kubernetes_validate
import pytest

from builders import job as build_job
from diloco_api import names
from diloco_api.run_config import RunConfig
from diloco_api.tokens import Identity, read_token
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.planning import pki
from diloco_operator.planning.types import OperatorPolicy
from fakes import flows
from fakes.fleet import POLICY, ROOT_KEY, Fleet, fleet_job
from fakes.flows import End
from fakes.restricted import breaches

Manifest = dict[str, Any]
POOL = {
    "name": "a100",
    "nodeSelector": {"gpu": "a100"},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "gpuResource": "nvidia.com/mig-1g.10gb",
}
TEMPLATE = {
    "metadata": {"labels": {"team": "x", "kueue.x-k8s.io/queue-name": "q"}, "annotations": {"note": "y"}},
    "spec": {
        "containers": [
            {
                "image": "mine:2",
                "env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}],
                "envFrom": [{"configMapRef": {"name": "settings"}}],
                "resources": {"requests": {"cpu": "2"}, "limits": {"memory": "8Gi"}},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }
        ],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"zone": "a"},
        "priorityClassName": "high",
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "runtimeClassName": "nvidia",
    },
}
PROPAGATED: dict[tuple[str, str], dict[str, bytes]] = {
    ("Secret", "registry"): {".dockerconfigjson": b"{}"},
    ("Secret", "hub"): {"token": b"abc"},
    ("ConfigMap", "settings"): {"A": b"1", "raw": b"\xff"},
}


def rich_job(changes: dict[str, object] | None = None) -> DiLoCoJob:
    """With everything a cluster run can have."""
    sites = [
        {"name": "site-1", "kubeconfigSecretRef": {"name": "k1"}, "namespace": "there", "nodePools": [POOL]},
        {"name": "here", "nodePools": [{"name": "cpu", "device": "cpu"}]},
    ]
    return fleet_job(
        {
            "sites": sites,
            "learners.gpus": 2,
            "learners.template": TEMPLATE,
            "synchronizer.template": {"spec": {"containers": [{"resources": {"requests": {"memory": "2Gi"}}}]}},
            "synchronizer.storage": {"size": "20Gi", "storageClassName": "fast"},
            "propagate": {"secrets": ["registry", "hub"], "configMaps": ["settings"]},
            "priorityClassName": "low",
            **(changes or {}),
        }
    )


def started(of: DiLoCoJob | None = None, policy: OperatorPolicy = POLICY) -> Fleet:
    fleet = Fleet(job=of or rich_job(), policy=policy, propagated=dict(PROPAGATED))
    fleet.settle(3)
    fleet.serve()
    fleet.settle(3)
    return fleet


FLEET = started()
EVERYTHING = [manifest for cluster in FLEET.clusters.values() for manifest in cluster.manifests.values()]


def one(kind: str, part: str = "", site: str = "here", fleet: Fleet = FLEET) -> Manifest:
    found = fleet.clusters[site].manifests
    return next(m for (k, name), m in sorted(found.items()) if k == kind and part in name)


def pod_spec(manifest: Manifest) -> Manifest | None:
    if manifest["kind"] == "Pod":
        return manifest["spec"]
    return manifest["spec"]["template"]["spec"] if manifest["kind"] == "Deployment" else None


def test_the_objects_of_hub_and_site() -> None:
    def found(site: str) -> list[tuple[str, str]]:
        keys = FLEET.clusters[site].objects
        return sorted((kind, name.removeprefix("toy-0a1b2c3d-")) for kind, name in keys)

    assert found("here") == [
        ("ConfigMap", "address"),
        ("ConfigMap", "config"),
        ("Deployment", "synchronizer"),
        ("NetworkPolicy", "learners"),
        ("NetworkPolicy", "synchronizer"),
        ("PersistentVolumeClaim", "synchronizer"),
        ("PodDisruptionBudget", "synchronizer"),
        ("Secret", "1-1"),
        ("Secret", "3-1"),
        ("Secret", "synchronizer"),
        ("Service", "external"),
        ("Service", "synchronizer"),
    ]
    assert found("site-1") == [
        ("ConfigMap", "address"),
        ("ConfigMap", "config"),
        ("ConfigMap", "copy-settings"),
        ("NetworkPolicy", "learners"),
        ("Secret", "0-1"),
        ("Secret", "2-1"),
        ("Secret", "copy-hub"),
        ("Secret", "copy-registry"),
    ]


@pytest.mark.parametrize("manifest", EVERYTHING, ids=lambda m: f"{m['kind']}-{m['metadata']['name'][-12:]}")
def test_every_manifest_is_valid_for_kubernetes(manifest: Manifest) -> None:
    kubernetes_validate.validate(manifest, "1.34", strict=True)


def test_every_pod_keeps_to_the_restricted_profile_whatever_the_template() -> None:
    specs = [spec for spec in map(pod_spec, EVERYTHING) if spec is not None]
    assert len(specs) == 5
    for spec in specs:
        assert breaches(spec) == []
        assert spec["securityContext"]["fsGroup"] == 65532
        assert "runAsUser" not in json.dumps(spec)
        assert spec["automountServiceAccountToken"] is False


def test_the_checker_of_the_restricted_profile_finds_what_breaks_it() -> None:
    spec = json.loads(json.dumps(pod_spec(one("Pod"))))
    spec |= {"hostNetwork": True, "volumes": [*spec["volumes"], {"name": "x", "hostPath": {"path": "/"}}]}
    spec["containers"][0]["securityContext"] = {"privileged": True}
    assert breaches(spec) == [
        "hostNetwork", "volumes.hostPath", "learner.privileged", "learner.allowPrivilegeEscalation", "learner.drop",
    ]  # fmt: skip


def test_a_platform_that_chooses_groups_is_left_to_choose() -> None:
    fleet = started(policy=OperatorPolicy(image="trainer:1", tls=True, fs_group=None))
    for manifest in (one("Pod", fleet=fleet), one("Deployment", fleet=fleet)):
        assert "fsGroup" not in json.dumps(manifest)


def test_a_learner_gets_the_nodes_and_gpus_of_its_pool() -> None:
    spec = one("Pod", "-0-1", "site-1")["spec"]
    (container,) = spec["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/mig-1g.10gb": "2", "memory": "8Gi"}
    assert spec["nodeSelector"] == {"gpu": "a100", "zone": "a"}
    assert {t["key"]: t.get("tolerationSeconds") for t in spec["tolerations"]} == {
        "node.kubernetes.io/not-ready": 300, "node.kubernetes.io/unreachable": 300, "gpu": None, "spot": None,
    }  # fmt: skip
    assert {"name": "DILOCO_DEVICE", "value": "cuda"} in container["env"]


@pytest.mark.parametrize(("changes", "site"), [({}, "here"), ({"learners.gpus": 0}, "site-1")])
def test_a_learner_of_a_pool_without_gpus_or_that_wants_none_asks_for_none(
    changes: dict[str, object], site: str
) -> None:
    (container,) = one("Pod", site=site, fleet=started(rich_job(changes)))["spec"]["containers"]
    assert container["resources"] == {"requests": {"cpu": "2"}, "limits": {"memory": "8Gi"}}
    assert {"name": "DILOCO_DEVICE", "value": "cpu"} in container["env"]


def test_the_least_job_on_a_cluster_asks_for_one_gpu_at_the_hub() -> None:
    fleet = started(build_job())
    (container,) = one("Pod", site="hub", fleet=fleet)["spec"]["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "1"}}
    assert not any(name.endswith("-external") for _, name in fleet.hub.objects)


def test_a_template_is_merged_into_learners_and_names_what_is_there() -> None:
    there, here = one("Pod", "-0-1", "site-1"), one("Pod", "-1-1")
    for pod in (there, here):
        (container,) = pod["spec"]["containers"]
        assert container["image"] == "mine:2"
        assert container["command"] == list(names.LEARNER_COMMAND)
        assert pod["spec"]["priorityClassName"] == "high"
        assert pod["metadata"]["labels"]["team"] == "x"
        assert pod["metadata"]["labels"][names.LABEL_JOB_UID] == FLEET.job.metadata.uid
        assert pod["metadata"]["annotations"]["note"] == "y"
        assert {"name": "data", "mountPath": "/data"} in container["volumeMounts"]
        assert len(container["volumeMounts"]) == len(pod["spec"]["volumes"])
    copies = {"registry": "toy-0a1b2c3d-copy-registry", "hub": "toy-0a1b2c3d-copy-hub"}
    for pod, registry, hub, settings in (
        (there, copies["registry"], copies["hub"], "toy-0a1b2c3d-copy-settings"),
        (here, "registry", "hub", "settings"),
    ):
        (container,) = pod["spec"]["containers"]
        assert pod["spec"]["imagePullSecrets"] == [{"name": registry}]
        assert container["envFrom"] == [{"configMapRef": {"name": settings}}]
        assert container["env"][-1]["valueFrom"]["secretKeyRef"]["name"] == hub


def test_copies_are_what_the_originals_are_and_are_renewed_and_removed() -> None:
    fleet = started()
    registry, settings = one("Secret", "copy-registry", "site-1", fleet), one("ConfigMap", "copy", "site-1", fleet)
    assert registry["type"] == "kubernetes.io/dockerconfigjson"
    assert base64.b64decode(one("Secret", "copy-hub", "site-1", fleet)["data"]["token"]) == b"abc"
    assert (settings["data"], settings["binaryData"]) == ({"A": "1"}, {"raw": "/w=="})
    fleet.propagated["Secret", "hub"] = {"token": b"new"}
    fleet.beat()
    fleet.step()
    assert base64.b64decode(one("Secret", "copy-hub", "site-1", fleet)["data"]["token"]) == b"new"
    fleet.edit({"propagate": {"secrets": ["registry"], "configMaps": ["settings"]}})
    fleet.step()
    assert ("Secret", "toy-0a1b2c3d-copy-hub") not in fleet.clusters["site-1"].objects


def test_a_job_that_propagates_what_is_not_there_is_told_so() -> None:
    fleet = Fleet(job=rich_job())
    fleet.step()
    assert fleet.condition("Accepted").message == (
        "spec.propagate.secrets: registry: there is no such Secret to be propagated"
    )


def test_only_what_lies_beside_the_job_is_owned_by_it() -> None:
    assert all("ownerReferences" not in m["metadata"] for m in FLEET.clusters["site-1"].manifests.values())
    assert all(m["metadata"]["namespace"] == "there" for m in FLEET.clusters["site-1"].manifests.values())
    for manifest in FLEET.hub.manifests.values():
        (owner,) = manifest["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("DiLoCoJob", FLEET.job.metadata.uid, True)
        assert manifest["metadata"]["namespace"] == "default"


def test_every_object_says_whose_it_is_and_nothing_secret_is_in_any_but_secrets() -> None:
    for manifest in EVERYTHING:
        labels = manifest["metadata"]["labels"]
        assert labels[names.LABEL_ORIGIN] == "here"
        assert labels[names.LABEL_JOB_UID] == FLEET.job.metadata.uid
        if manifest["kind"] != "Secret":
            assert "v1.ey" not in json.dumps(manifest)
            assert "PRIVATE KEY" not in json.dumps(manifest)
        assert base64.b64encode(ROOT_KEY).decode() not in json.dumps(manifest)


def test_a_learners_secret_holds_token_and_certificate_of_its_incarnation() -> None:
    data = {k: base64.b64decode(v) for k, v in one("Secret", "-0-1", "site-1")["data"].items()}
    uid = FLEET.job.metadata.uid
    assert data.keys() == {"token", "tls.crt", "tls.key", "ca.crt"}
    assert read_token(pki.token_key(ROOT_KEY, uid), data["token"].decode()) == Identity(uid, 0, 1)
    synchronizer = one("Secret", "synchronizer")["data"]
    assert synchronizer.keys() == {"key", "tls.crt", "tls.key", "ca.crt"}
    assert base64.b64decode(synchronizer["key"]) == pki.token_key(ROOT_KEY, uid)
    assert base64.b64decode(synchronizer["ca.crt"]) == data["ca.crt"]


def test_certificates_are_renewed_in_place_and_nothing_else_is_touched() -> None:
    fleet = started()
    fleet.now += pki.RENEWAL_SECONDS
    fleet.beat()
    actions = fleet.step().actions
    assert {(type(action).__name__, action.key[0]) for action in actions} == {("Apply", "Secret")}  # type: ignore[union-attr]
    assert len(actions) == 5


def test_processes_are_told_to_speak_tls() -> None:
    assert RunConfig.model_validate_json(one("ConfigMap", "config")["data"]["run.json"]).tls is True


def test_the_synchronizers_services_lead_to_its_ports() -> None:
    inside, outside = one("Service", "synchronizer")["spec"], one("Service", "external")["spec"]
    assert {port["name"]: port["port"] for port in inside["ports"]} == {"grpc": 29400, "admin": 29401, "metrics": 29402}
    assert (inside["type"], outside["type"]) == ("ClusterIP", "NodePort")
    assert [port["name"] for port in outside["ports"]] == ["grpc"]
    labels = one("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert inside["selector"] == outside["selector"]
    assert inside["selector"].items() <= labels.items()


def test_the_synchronizer_has_the_volume_that_was_asked_for_and_leaves_lost_nodes() -> None:
    claim = one("PersistentVolumeClaim")["spec"]
    assert (claim["resources"]["requests"]["storage"], claim["storageClassName"]) == ("20Gi", "fast")
    spec = one("Deployment")["spec"]
    pod = spec["template"]["spec"]
    assert spec["strategy"] == {"type": "Recreate"}
    assert {t["tolerationSeconds"] for t in pod["tolerations"]} == {30}
    assert pod["priorityClassName"] == "low"
    assert pod["containers"][0]["resources"] == {"requests": {"memory": "2Gi"}}
    assert one("PodDisruptionBudget")["spec"]["maxUnavailable"] == 0


@pytest.mark.parametrize(
    ("exposure", "expected"),
    [
        ({"type": "NodePort"}, ["192.0.2.11:31400"]),
        ({"type": "NodePort", "addresses": ["a.example", "b.example:9"]}, ["a.example:31400", "b.example:9"]),
        ({"type": "Address", "addresses": ["gate.example:443"]}, ["gate.example:443"]),
    ],
)
def test_addresses_by_exposure(exposure: dict[str, object], expected: list[str]) -> None:
    fleet = started(fleet_job({"synchronizer.exposure": exposure}))
    assert one("ConfigMap", "address", "site-1", fleet)["data"]["addresses"].split() == expected


def test_a_load_balancers_address_is_waited_for_and_followed() -> None:
    fleet = started(fleet_job({"synchronizer.exposure": {"type": "LoadBalancer"}}))
    assert (
        fleet.condition("SynchronizerReady").message
        == "Learners of other sites wait for an address of the load balancer"
    )
    key = next(key for key in fleet.hub.objects if key[1].endswith("-external"))
    for host, shown in (("203.0.113.7", "203.0.113.7:29400"), ("2001:db8::7", "[2001:db8::7]:29400")):
        fleet.hub.objects[key] = replace(fleet.hub.objects[key], addresses=(host,))
        fleet.settle(3)
        assert one("ConfigMap", "address", "site-1", fleet)["data"]["addresses"] == f"{shown}\n"
    assert [fleet.row(index).incarnation for index in range(4)] == [1] * 4


# --- who may speak to whom ----------------------------------------------------------------------------------------

HERE = [m for m in FLEET.hub.manifests.values() if m["kind"] == "NetworkPolicy"]
THERE = [m for m in FLEET.clusters["site-1"].manifests.values() if m["kind"] == "NetworkPolicy"]
SYNCHRONIZER = End(one("Deployment")["spec"]["template"]["metadata"]["labels"])
LEARNER = End(one("Pod")["metadata"]["labels"])
LEARNER_THERE = End(one("Pod", site="site-1")["metadata"]["labels"], "there")
STRANGER = End({"app": "other"})
OPERATOR, MONITORING = End(namespace="operator"), End(namespace="monitoring")
INTERNET, METADATA, NODE = End(address="198.51.100.1"), End(address="169.254.169.254"), End(address="192.0.2.11")


@pytest.mark.parametrize(
    ("source", "port", "allowed"),
    [
        (LEARNER, 29400, True),
        (LEARNER, 29401, False),
        (INTERNET, 29400, True),  # it is exposed
        (INTERNET, 29401, False),
        (OPERATOR, 29401, True),
        (OPERATOR, 29402, False),
        (STRANGER, 29401, False),
        (MONITORING, 29402, True),
        (MONITORING, 29401, False),
    ],
)
def test_who_reaches_the_synchronizer(source: End, port: int, allowed: bool) -> None:
    assert flows.accepts(HERE, SYNCHRONIZER, source, port) is allowed


def test_a_synchronizer_that_is_not_exposed_is_reached_by_its_learners_alone() -> None:
    fleet = started(build_job())
    policies = [m for m in fleet.hub.manifests.values() if m["kind"] == "NetworkPolicy"]
    learner = End(one("Pod", site="hub", fleet=fleet)["metadata"]["labels"])
    synchronizer = End(one("Deployment", site="hub", fleet=fleet)["spec"]["template"]["metadata"]["labels"])
    assert flows.accepts(policies, synchronizer, learner, 29400)
    assert not flows.accepts(policies, synchronizer, STRANGER, 29400)
    assert not flows.accepts(policies, synchronizer, INTERNET, 29400)


@pytest.mark.parametrize("site", ["here", "there"])
def test_nobody_reaches_a_learner_but_for_its_metrics(site: str) -> None:
    policies, learner = (HERE, LEARNER) if site == "here" else (THERE, LEARNER_THERE)
    assert flows.accepts(policies, learner, MONITORING, 29402)
    for source in (STRANGER, LEARNER, INTERNET, OPERATOR):
        assert not flows.accepts(policies, learner, source, 29402)
    assert not flows.accepts(policies, learner, MONITORING, 22)


@pytest.mark.parametrize(
    ("policies", "learner", "target", "port", "allowed"),
    [
        (HERE, LEARNER, SYNCHRONIZER, 29400, True),
        (HERE, LEARNER, SYNCHRONIZER, 29401, False),
        (HERE, LEARNER, STRANGER, 80, False),
        (HERE, LEARNER, INTERNET, 443, True),
        (THERE, LEARNER_THERE, NODE, 31400, True),
        (THERE, LEARNER_THERE, METADATA, 80, False),
        (THERE, LEARNER_THERE, End(namespace="kube-system"), 53, True),
        (THERE, LEARNER_THERE, End(namespace="kube-system"), 443, False),
    ],
)
def test_what_a_learner_reaches(policies: list[Manifest], learner: End, target: End, port: int, allowed: bool) -> None:
    assert flows.reaches(policies, learner, target, port) is allowed

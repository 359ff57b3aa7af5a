"""The operator's chart: valid in every variant, restricted, least privilege, and plain about what is missing."""

import json
from typing import Any

import kubernetes_validate
import pytest
import yaml

from chart.rendering import IMAGES, OPERATOR, ROOT, Refused, notes, of_kind, render, rights, run_helm
from chart.restricted import breaches
from diloco_operator.lease import LEASE_NAME
from diloco_operator.origin import SECRET_NAME
from diloco_operator.settings import read_settings

CRD = ROOT / "crds/dilocojobs.diloco.dev.yaml"
DIGEST = "sha256:" + "0" * 64

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "minimal": {
        "crds": {"install": False},
        "metrics": {"service": {"enabled": False}},
        "rbac": {"create": False, "nodes": False},
        "serviceAccount": {"create": False, "name": "somebody"},
        "resources": {},
    },
    "namespaces": {"scope": "namespaces", "namespaces": ["team-a", "team-b"]},
    "two replicas": {"replicas": 2, "priorityClassName": "system-cluster-critical"},
    "full": {
        "image": {"tag": "v1", "digest": DIGEST, "pullPolicy": "Always"},
        "trainerImage": {"digest": DIGEST},
        "imagePullSecrets": ["registry"],
        "serviceAccount": {"annotations": {"example.com/role": "diloco"}},
        "metrics": {"port": 9000, "service": {"annotations": {"example.com/scrape": "true"}}},
        "health": {"port": 9001},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "control", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}}},
        "podAnnotations": {"example.com/note": "1"},
        "podLabels": {"team": "research"},
        "extraArgs": ["--verbose"],
        "extraEnv": [{"name": "TZ", "value": "UTC"}],
    },
    "long names": {"fullnameOverride": "a" * 63},
}  # fmt: skip


def merged(values: dict[str, Any]) -> dict[str, Any]:
    out = dict(values)
    for key, image in IMAGES.items():
        out[key] = {**image, **values.get(key, {})}
    return out


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS.keys())
@pytest.mark.parametrize("version", ["1.29", "1.34"])
def test_every_variant_is_made_of_real_kubernetes_objects(values: dict[str, Any], version: str) -> None:
    documents = render(OPERATOR, merged(values))
    for document in documents:
        if document["kind"] != "CustomResourceDefinition" or version == "1.34":
            kubernetes_validate.validate(document, version, strict=True)
    found = [
        (document["kind"], document["metadata"].get("namespace"), document["metadata"]["name"])
        for document in documents
    ]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS.keys())
def test_the_operators_pod_is_restricted_and_belongs_together(values: dict[str, Any]) -> None:
    documents = render(OPERATOR, merged(values))
    (deployment,) = of_kind(documents, "Deployment")
    spec, template = deployment["spec"], deployment["spec"]["template"]
    assert breaches(template["spec"]) == []
    assert spec["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert spec["strategy"] == {"type": "Recreate"}
    (container,) = template["spec"]["containers"]
    ports = {port["name"] for port in container["ports"]}
    assert {
        container[probe]["httpGet"]["port"] for probe in ("livenessProbe", "readinessProbe", "startupProbe")
    } <= ports
    for service in of_kind(documents, "Service"):
        assert service["spec"]["selector"] == spec["selector"]["matchLabels"]
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    account = template["spec"]["serviceAccountName"]
    assert [found["metadata"]["name"] for found in of_kind(documents, "ServiceAccount")] in ([account], [])
    bindings = of_kind(documents, "RoleBinding") + of_kind(documents, "ClusterRoleBinding")
    assert all(
        binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "ops"}] for binding in bindings
    )


ALL = ("get", "list", "watch", "create", "patch", "delete")
CHILDREN = (
    ("", "pods"), ("", "persistentvolumeclaims"), ("", "configmaps"), ("", "secrets"), ("", "services"),
    ("apps", "deployments"), ("policy", "poddisruptionbudgets"), ("networking.k8s.io", "networkpolicies"),
)  # fmt: skip
IN_A_NAMESPACE = {
    *(("diloco.dev", "dilocojobs", "", verb) for verb in ("get", "list", "watch", "patch")),
    ("diloco.dev", "dilocojobs/status", "", "patch"),
    ("diloco.dev", "dilocojobs/finalizers", "", "update"),
    *((group, resource, "", verb) for group, resource in CHILDREN for verb in ALL),
    ("", "events", "", "create"),
    ("", "events", "", "patch"),
}
FOR_THE_CLUSTER = {("apiextensions.k8s.io", "customresourcedefinitions", "", "list")}
INSTALLATION = {
    ("coordination.k8s.io", "leases", "", "create"),
    ("coordination.k8s.io", "leases", LEASE_NAME, "get"),
    ("coordination.k8s.io", "leases", LEASE_NAME, "update"),
    ("", "secrets", "", "create"),
    ("", "secrets", SECRET_NAME, "get"),
}
IDENTITY = {("", "namespaces", "kube-system", "get")}
NODES = {("", "nodes", "", "list"), ("", "nodes", "", "watch")}


def test_for_a_whole_cluster_the_operator_has_exactly_these_rights() -> None:
    documents = render(OPERATOR, IMAGES)
    granted = {role["metadata"]["name"]: rights(role) for role in of_kind(documents, "ClusterRole")}
    assert granted == {
        "diloco-diloco-operator": IN_A_NAMESPACE | FOR_THE_CLUSTER,
        "diloco-diloco-operator-ops-nodes": NODES,
    }
    in_namespaces = {role["metadata"]["namespace"]: rights(role) for role in of_kind(documents, "Role")}
    assert in_namespaces == {"ops": INSTALLATION, "kube-system": IDENTITY}


def test_for_single_namespaces_it_has_no_right_outside_of_them_but_reading_nodes() -> None:
    documents = render(OPERATOR, {**IMAGES, **VARIANTS["namespaces"]})
    assert [rights(role) for role in of_kind(documents, "ClusterRole")] == [NODES]
    granted = {role["metadata"]["namespace"]: rights(role) for role in of_kind(documents, "Role")}
    assert granted == {"team-a": IN_A_NAMESPACE, "team-b": IN_A_NAMESPACE, "ops": INSTALLATION, "kube-system": IDENTITY}
    (container,) = of_kind(documents, "Deployment")[0]["spec"]["template"]["spec"]["containers"]
    assert [arg for arg in container["args"] if arg.startswith("--namespace=")] == [
        "--namespace=team-a",
        "--namespace=team-b",
    ]


def test_nodes_are_not_read_where_that_is_switched_off() -> None:
    documents = render(OPERATOR, {**IMAGES, **VARIANTS["namespaces"], "rbac": {"nodes": False}})
    assert of_kind(documents, "ClusterRole") + of_kind(documents, "ClusterRoleBinding") == []


def test_every_binding_leads_to_a_role_of_the_release() -> None:
    for values in VARIANTS.values():
        documents = render(OPERATOR, merged(values))
        roles = {(role["kind"], role["metadata"].get("namespace"), role["metadata"]["name"])
                 for kind in ("Role", "ClusterRole") for role in of_kind(documents, kind)}  # fmt: skip
        bound = {(binding["roleRef"]["kind"], binding["metadata"].get("namespace"), binding["roleRef"]["name"])
                 for kind in ("RoleBinding", "ClusterRoleBinding") for binding in of_kind(documents, kind)}  # fmt: skip
        assert bound == roles


@pytest.mark.parametrize("missing", ["image", "trainerImage"])
def test_without_an_image_the_line_that_helps_is_told(missing: str) -> None:
    values = {key: value for key, value in IMAGES.items() if key != missing}
    with pytest.raises(
        Refused, match=rf"{missing}\.repository: no image is published; build and push both with `make images"
    ):
        render(OPERATOR, values)


def test_images_are_named_by_tag_or_by_digest() -> None:
    def images(values: dict[str, Any]) -> tuple[str, str]:
        (container,) = of_kind(render(OPERATOR, merged(values)), "Deployment")[0]["spec"]["template"]["spec"][
            "containers"
        ]
        (trainer,) = (arg.removeprefix("--image=") for arg in container["args"] if arg.startswith("--image="))
        return container["image"], trainer

    chart = yaml.safe_load((OPERATOR / "Chart.yaml").read_text())
    team = "registry.example.com/team"
    assert images({}) == (
        f"{team}/diloco-operator:{chart['appVersion']}",
        f"{team}/diloco-trainer:{chart['appVersion']}",
    )
    assert images({"image": {"tag": "v1"}})[0] == f"{team}/diloco-operator:v1"
    assert images(VARIANTS["full"]) == (f"{team}/diloco-operator@{DIGEST}", f"{team}/diloco-trainer@{DIGEST}")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"imagge": {}}, "additional properties 'imagge' not allowed"),
        ({"image": {"repo": "x"}}, "additional properties 'repo' not allowed"),
        ({"crds": {"instal": True}}, "additional properties 'instal' not allowed"),
        ({"replicas": "one"}, "/replicas"),
        ({"metrics": {"port": 80}}, "/metrics/port"),
        ({"scope": "namespaces"}, "/namespaces"),
        ({"scope": "cluster", "namespaces": ["a"]}, "/namespaces"),
        ({"scope": "Cluster"}, "/scope"),
        ({"image": {"digest": "abc"}}, "/image/digest"),
    ],
)
def test_values_that_mean_nothing_are_refused_by_name(values: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused) as refused:
        render(OPERATOR, {**IMAGES, **values})
    assert said in str(refused.value)


def test_every_value_has_a_schema_and_every_schema_a_value() -> None:
    def paths(schema: dict[str, Any], prefix: str = "") -> set[str]:
        found = set()
        for name, child in schema["properties"].items():
            found |= paths(child, f"{prefix}{name}.") if "properties" in child else {prefix + name}
        return found

    def leaves(values: dict[str, Any], known: set[str], prefix: str = "") -> set[str]:
        found = set()
        for name, value in values.items():
            inner = isinstance(value, dict) and prefix + name not in known
            found |= leaves(value, known, f"{prefix}{name}.") if inner else {prefix + name}
        return found

    schema = json.loads((OPERATOR / "values.schema.json").read_text())
    values = yaml.safe_load((OPERATOR / "values.yaml").read_text())
    assert leaves(values, paths(schema)) == paths(schema) - {"global"}


def test_the_definition_of_jobs_is_the_generated_one_and_stays_when_the_release_goes() -> None:
    (crd,) = of_kind(render(OPERATOR, IMAGES), "CustomResourceDefinition")
    assert crd["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert crd == yaml.safe_load(CRD.read_text())


def test_the_definition_of_jobs_can_be_left_to_helm_or_to_somebody_else() -> None:
    (crd,) = of_kind(render(OPERATOR, {**IMAGES, "crds": {"keep": False}}), "CustomResourceDefinition")
    assert "annotations" not in crd["metadata"]
    assert of_kind(render(OPERATOR, {**IMAGES, "crds": {"install": False}}), "CustomResourceDefinition") == []


def test_a_packaged_chart_holds_the_definition_itself_and_not_a_link(tmp_path: Any) -> None:
    run_helm("package", str(OPERATOR), "--destination", str(tmp_path))
    (archive,) = tmp_path.glob("*.tgz")
    (crd,) = of_kind(render(archive, IMAGES), "CustomResourceDefinition")
    assert crd["spec"] == yaml.safe_load(CRD.read_text())["spec"]


def test_lint_finds_nothing() -> None:
    assert "0 chart(s) failed" in run_helm("lint", "--strict", str(OPERATOR), values=IMAGES)


def test_the_notes_tell_how_to_add_a_site_and_in_which_order_to_uninstall() -> None:
    text = notes(OPERATOR, IMAGES)
    assert "label secret SITE diloco.dev/kubeconfig=true" in text
    assert text.index("delete all jobs") < text.index("uninstall diloco")
    assert "kubectl delete crd dilocojobs.diloco.dev" in text
    assert "kubectl delete crd" not in notes(OPERATOR, {**IMAGES, "crds": {"keep": False}})


@pytest.mark.parametrize("variant", ["default", "namespaces", "full"])
def test_the_operator_understands_the_arguments_it_is_given(variant: str) -> None:
    values = merged({**VARIANTS[variant], "extraArgs": ["--log-level=DEBUG"]})
    (container,) = of_kind(render(OPERATOR, values), "Deployment")[0]["spec"]["template"]["spec"]["containers"]
    settings = read_settings(container["args"], {})
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {"metrics": settings.metrics_port, "health": settings.health_port} == ports
    assert settings.namespaces == tuple(VARIANTS[variant].get("namespaces", ()))
    assert (settings.own_namespace, settings.monitoring_namespace, settings.log_level) == ("ops", "monitoring", "DEBUG")
    assert settings.image.startswith("registry.example.com/team/diloco-trainer")

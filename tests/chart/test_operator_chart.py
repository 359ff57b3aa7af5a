"""The operator's chart: least privilege, images, the definition of jobs, and plain about what is missing."""

from typing import Any

import pytest
import yaml

from chart.rendering import IMAGES, OPERATOR, ROOT, Refused, notes, of_kind, render, rights, run_helm, with_images
from chart.variants import DIGEST, NAMESPACES, OPERATOR_VARIANTS, Values
from diloco_operator.lease import LEASE_NAME
from diloco_operator.origin import SECRET_NAME
from diloco_operator.self_test import read_options
from diloco_operator.settings import read_settings

CRD = ROOT / "crds/dilocojobs.diloco.dev.yaml"
KEPT = ("get", "list", "create", "patch", "delete")
WATCHED = (("", "secrets"), ("", "services"), ("apps", "deployments"))
LISTED = (("", "configmaps"), ("policy", "poddisruptionbudgets"), ("networking.k8s.io", "networkpolicies"))
IN_A_NAMESPACE = {
    *(("diloco.dev", "dilocojobs", "", verb) for verb in ("get", "list", "watch", "patch")),
    ("diloco.dev", "dilocojobs/status", "", "patch"),
    *(("", "pods", "", verb) for verb in ("get", "list", "watch", "create", "delete")),
    ("", "pods/log", "", "get"),
    *((group, resource, "", verb) for group, resource in WATCHED + LISTED for verb in KEPT),
    *(("", "persistentvolumeclaims", "", verb) for verb in KEPT if verb != "delete"),
    *((group, resource, "", "watch") for group, resource in WATCHED),
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
NODES = {("", "nodes", "", "list")}


def operators_own(documents: list[dict[str, Any]]) -> dict[str, set[tuple[str, str, str, str]]]:
    """Rights of every ClusterRole but those that are for users."""
    return {role["metadata"]["name"]: rights(role) for role in of_kind(documents, "ClusterRole")
            if not any("aggregate-to" in label for label in role["metadata"]["labels"])}  # fmt: skip


def container_of(values: Values) -> dict[str, Any]:
    (deployment,) = of_kind(render(OPERATOR, with_images(values)), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(container)


def test_for_a_whole_cluster_the_operator_has_exactly_these_rights() -> None:
    documents = render(OPERATOR, IMAGES)
    assert operators_own(documents) == {
        "diloco-diloco-operator": IN_A_NAMESPACE | FOR_THE_CLUSTER,
        "diloco-diloco-operator-ops-nodes": NODES,
    }
    in_namespaces = {role["metadata"]["namespace"]: rights(role) for role in of_kind(documents, "Role")}
    assert in_namespaces == {"ops": INSTALLATION, "kube-system": IDENTITY}


def test_for_single_namespaces_it_has_no_right_outside_of_them_but_reading_nodes() -> None:
    documents = render(OPERATOR, {**IMAGES, **NAMESPACES})
    assert list(operators_own(documents).values()) == [NODES]
    granted = {role["metadata"]["namespace"]: rights(role) for role in of_kind(documents, "Role")}
    teams = {team: IN_A_NAMESPACE | {("", "namespaces", team, "get")} for team in ("team-a", "team-b")}
    assert granted == {**teams, "ops": INSTALLATION, "kube-system": IDENTITY}
    arguments = container_of(NAMESPACES)["args"]
    assert [arg for arg in arguments if arg.startswith("--namespace=")] == ["--namespace=team-a", "--namespace=team-b"]


def test_nodes_are_not_read_where_that_is_switched_off() -> None:
    documents = render(OPERATOR, {**IMAGES, **NAMESPACES, "rbac": {"nodes": False, "userRoles": False}})
    assert of_kind(documents, "ClusterRole") + of_kind(documents, "ClusterRoleBinding") == []


def test_users_get_jobs_with_the_roles_that_every_cluster_has() -> None:
    jobs = ("diloco.dev", "dilocojobs", "")
    reading = {(*jobs, verb) for verb in ("get", "list", "watch")} | {("diloco.dev", "dilocojobs/status", "", "get")}
    writing = {(*jobs, verb) for verb in ("create", "update", "patch", "delete")} | {
        ("diloco.dev", "dilocojobs/scale", "", verb) for verb in ("get", "update", "patch")
    }
    wanted = {"view": reading, "edit": reading | writing, "admin": reading | writing | {(*jobs, "deletecollection")}}
    roles = of_kind(render(OPERATOR, IMAGES), "ClusterRole")
    for name, granted in wanted.items():
        label = f"rbac.authorization.k8s.io/aggregate-to-{name}"
        (role,) = (role for role in roles if role["metadata"]["labels"].get(label) == "true")
        assert rights(role) == granted, name
        assert role["metadata"]["name"] == f"diloco-diloco-operator-ops-{name}"


def test_two_releases_in_namespaces_of_their_own_share_no_object() -> None:
    first, second = (
        {(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in render(
            OPERATOR, with_images({"scope": "namespaces", "namespaces": [f"jobs-{at}"], "crds": {"install": False}}),
            namespace=at, tests=True)}
        for at in ("ops-a", "ops-b")
    )  # fmt: skip
    assert first & second == set()


@pytest.mark.parametrize("missing", ["image", "trainerImage"])
def test_without_an_image_the_line_that_helps_is_told(missing: str) -> None:
    values = {key: value for key, value in IMAGES.items() if key != missing}
    with pytest.raises(
        Refused, match=rf"{missing}\.repository: no image is published; build and push both with `make images"
    ):
        render(OPERATOR, values)


def test_images_are_named_by_tag_or_by_digest() -> None:
    def images(values: Values) -> tuple[str, str]:
        container = container_of(values)
        (trainer,) = (arg.removeprefix("--image=") for arg in container["args"] if arg.startswith("--image="))
        return container["image"], trainer

    chart = yaml.safe_load((OPERATOR / "Chart.yaml").read_text())
    team = "registry.example.com/team"
    assert images({}) == (
        f"{team}/diloco-operator:{chart['appVersion']}",
        f"{team}/diloco-trainer:{chart['appVersion']}",
    )
    assert images({"image": {"tag": "v1"}})[0] == f"{team}/diloco-operator:v1"
    assert images(OPERATOR_VARIANTS["full"]) == (f"{team}/diloco-operator@{DIGEST}", f"{team}/diloco-trainer@{DIGEST}")


def test_every_knob_of_the_pod_reaches_it() -> None:
    values = OPERATOR_VARIANTS["full"]
    (deployment,) = of_kind(render(OPERATOR, with_images(values)), "Deployment")
    metadata, pod = deployment["spec"]["template"]["metadata"], deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    for knob in ("nodeSelector", "tolerations", "affinity", "topologySpreadConstraints"):
        assert pod[knob] == values[knob], knob
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert metadata["annotations"] == values["podAnnotations"]
    assert values["podLabels"].items() <= metadata["labels"].items()
    assert values["extraVolumes"][0] in pod["volumes"]
    assert values["extraVolumeMounts"][0] in container["volumeMounts"]
    assert values["extraEnv"][0] in container["env"]
    assert values["extraArgs"][0] in container["args"]
    assert container["imagePullPolicy"] == "Always"
    assert deployment["spec"]["replicas"] == 3


def test_pods_are_spread_by_their_own_labels_unless_others_are_named() -> None:
    (deployment,) = of_kind(
        render(OPERATOR, with_images(OPERATOR_VARIANTS["high availability"])), "Deployment"
    )  # fmt: skip
    (constraint,) = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert constraint["labelSelector"] == {"matchLabels": deployment["spec"]["selector"]["matchLabels"]}
    assert deployment["spec"]["strategy"] == {"type": "RollingUpdate"}


def test_a_single_replica_holds_no_drain_up() -> None:
    assert of_kind(render(OPERATOR, with_images({"replicas": 1})), "PodDisruptionBudget") == []
    (budget,) = of_kind(render(OPERATOR, with_images({"replicas": 2})), "PodDisruptionBudget")
    assert budget["spec"]["minAvailable"] == 1
    off = {"replicas": 2, "podDisruptionBudget": {"enabled": False}}
    assert of_kind(render(OPERATOR, with_images(off)), "PodDisruptionBudget") == []


def test_the_operator_is_restarted_when_it_hangs_and_has_time_to_start() -> None:
    container = container_of({})
    assert container["livenessProbe"]["httpGet"] == container["startupProbe"]["httpGet"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"] >= 60


def test_metrics_are_for_the_monitoring_and_the_test_alone() -> None:
    (policy,) = of_kind(render(OPERATOR, with_images({"monitoringNamespace": "watchers"})), "NetworkPolicy")
    by_port = {rule["ports"][0]["port"]: rule.get("from") for rule in policy["spec"]["ingress"]}
    assert by_port["health"] is None, "the kubelet's probes come from the node"
    namespace, test = by_port["metrics"]
    assert namespace == {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "watchers"}}}
    assert test["podSelector"]["matchLabels"]["app.kubernetes.io/name"] == "diloco-operator-test"
    assert policy["spec"]["policyTypes"] == ["Ingress"]


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


@pytest.mark.parametrize("chart", ["diloco-operator", "diloco-site"])
def test_lint_finds_nothing(chart: str) -> None:
    values = IMAGES if chart == "diloco-operator" else {}
    said = run_helm("lint", "--strict", str(ROOT / "helm" / chart), values=values)
    assert "0 chart(s) failed" in said
    assert "[" not in said, said


def test_the_chart_says_what_it_is_made_for() -> None:
    for chart in (OPERATOR, ROOT / "helm/diloco-site"):
        said = yaml.safe_load((chart / "Chart.yaml").read_text())
        assert said.keys() >= {"description", "kubeVersion", "appVersion", "icon", "keywords", "annotations"}
        assert yaml.safe_load(said["annotations"]["artifacthub.io/changes"])
    annotations = yaml.safe_load((OPERATOR / "Chart.yaml").read_text())["annotations"]
    (crd,) = yaml.safe_load(annotations["artifacthub.io/crds"])
    definition = yaml.safe_load(CRD.read_text())
    assert (crd["name"], crd["kind"]) == (definition["metadata"]["name"], definition["spec"]["names"]["kind"])
    assert crd["version"] == definition["spec"]["versions"][0]["name"]
    version = yaml.safe_load((OPERATOR / "Chart.yaml").read_text())["appVersion"]
    images = yaml.safe_load(annotations["artifacthub.io/images"])
    assert all(one["image"].endswith(f":{version}") for one in images)


def test_the_notes_tell_how_to_go_on_and_in_which_order_to_uninstall() -> None:
    text = notes(OPERATOR, IMAGES)
    assert "helm --namespace ops test diloco\n" in text
    assert "logs diloco-diloco-operator-test" in text
    assert "label secret SITE diloco.dev/kubeconfig=true" in text
    assert text.index("delete dlj --all --all-namespaces") < text.index("uninstall diloco")
    assert "kubectl delete crd dilocojobs.diloco.dev" in text
    assert "kubectl delete crd" not in notes(OPERATOR, {**IMAGES, "crds": {"keep": False}})
    assert "all jobs go with it" in notes(OPERATOR, {**IMAGES, "crds": {"keep": False}})


@pytest.mark.parametrize("variant", ["default", "namespaces", "full", "openshift"])
def test_the_operator_understands_the_arguments_it_is_given(variant: str) -> None:
    container = container_of({**OPERATOR_VARIANTS[variant], "extraArgs": ["--log-level=DEBUG"]})
    settings = read_settings(container["args"], {})
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {"metrics": settings.metrics_port, "health": settings.health_port} == ports
    assert settings.namespaces == tuple(OPERATOR_VARIANTS[variant].get("namespaces", ()))
    monitoring = "openshift-monitoring" if variant == "openshift" else "monitoring"
    assert (settings.own_namespace, settings.monitoring_namespace, settings.log_level) == ("ops", monitoring, "DEBUG")
    assert settings.fs_group == (None if variant == "openshift" else 65532)
    assert settings.image.startswith("registry.example.com/team/diloco-trainer")


@pytest.mark.parametrize("variant", ["default", "namespaces"])
def test_a_helm_test_may_try_a_job_and_nothing_else_and_only_while_it_runs(variant: str) -> None:
    documents = render(OPERATOR, with_images(OPERATOR_VARIANTS[variant]), tests=True)
    hooks = [one for one in documents if one["metadata"].get("annotations", {}).get("helm.sh/hook") == "test"]
    assert [one["kind"] for one in hooks] == ["ServiceAccount", "Role", "RoleBinding", "Pod"]
    account, role, binding, pod = hooks
    assert rights(role) == {("diloco.dev", "dilocojobs", "", "create")}
    for one in (account, role, binding):
        assert "hook-succeeded" in one["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
        assert int(one["metadata"]["annotations"]["helm.sh/hook-weight"]) < 0
    where = "ops" if variant == "default" else "team-a"
    assert {role["metadata"]["namespace"], binding["metadata"]["namespace"]} == {where}
    options = read_options(pod["spec"]["containers"][0]["args"])
    assert options.trial_namespace == where
    assert pod["spec"]["serviceAccountName"] == account["metadata"]["name"]


def test_without_rights_to_give_a_helm_test_asks_only_what_needs_none() -> None:
    documents = render(OPERATOR, with_images({"rbac": {"create": False}}), tests=True)
    (pod,) = of_kind(documents, "Pod")
    options = read_options(pod["spec"]["containers"][0]["args"])
    assert (options.trial_namespace, bool(options.health_url), bool(options.metrics_url)) == ("", True, True)
    assert "serviceAccountName" not in pod["spec"]
    assert pod["spec"]["automountServiceAccountToken"] is False

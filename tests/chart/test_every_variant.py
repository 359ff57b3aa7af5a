"""Both charts as real helm renders them, with all that somebody may want: valid, whole, restricted, well labelled."""

import functools
import json
from typing import Any

import kubernetes_validate
import pytest

from chart.belonging import dangling, repeated
from chart.rendering import OPERATOR, ROOT, SITE, Document, of_kind, pods_of, render, with_images
from chart.restricted import breaches
from chart.variants import BROUGHT, NAMESPACES, OPERATOR_VARIANTS, RELEASES, SITE_VARIANTS

IMMUTABLE = ROOT / "tests/golden/charts_immutable.json"
LABELS = {"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/version",
          "app.kubernetes.io/component", "app.kubernetes.io/part-of", "app.kubernetes.io/managed-by",
          "helm.sh/chart"}  # fmt: skip
CLUSTER_SCOPED = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
CHARTS = {"operator": (OPERATOR, OPERATOR_VARIANTS, with_images), "site": (SITE, SITE_VARIANTS, dict)}


def _cases() -> list[Any]:
    """Every variant, and the variant that has most in it under every name that a release may have."""
    found = [pytest.param(chart, variant, "diloco", id=f"{chart}: {variant}")
             for chart, (_, variants, _) in CHARTS.items() for variant in variants]  # fmt: skip
    return found + [
        pytest.param(chart, "full", name, id=f"{chart}: release {name}") for chart in CHARTS for name in RELEASES[1:]
    ]


every = pytest.mark.parametrize(("chart", "variant", "release"), _cases())


@functools.cache
def rendered(chart: str, variant: str, release: str) -> list[Document]:
    path, variants, complete = CHARTS[chart]
    return render(path, complete(variants[variant]), name=release, tests=True)


@every
@pytest.mark.parametrize("version", ["1.29", "1.34"])
def test_it_is_made_of_real_kubernetes_objects(chart: str, variant: str, release: str, version: str) -> None:
    for document in rendered(chart, variant, release):
        if document["apiVersion"] == "monitoring.coreos.com/v1":
            continue  # its kinds are no part of Kubernetes: test_monitors.py
        if document["kind"] != "CustomResourceDefinition" or version == "1.34":
            kubernetes_validate.validate(document, version, strict=True)


@every
def test_nothing_dangles_and_nothing_is_there_twice(chart: str, variant: str, release: str) -> None:
    documents = rendered(chart, variant, release)
    assert repeated(documents) == []
    assert dangling(documents, BROUGHT) == []


@every
def test_its_pods_are_restricted(chart: str, variant: str, release: str) -> None:
    pods = pods_of(rendered(chart, variant, release))
    with_test = variant != "minimal"
    assert len(pods) == (1 + with_test if chart == "operator" else 0)
    for pod in pods:
        assert breaches(pod["spec"]) == []
        assert "runAsUser" not in json.dumps(pod["spec"]), "the platform may choose one"
        (container,) = pod["spec"]["containers"]
        assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]
        assert any(volume["name"] == "tmp" and "emptyDir" in volume for volume in pod["spec"]["volumes"])


@every
def test_names_and_labels_are_such_as_kubernetes_takes(chart: str, variant: str, release: str) -> None:
    for document in rendered(chart, variant, release):
        metadata = document["metadata"]
        if document["kind"] != "CustomResourceDefinition":
            assert metadata["labels"].keys() >= LABELS, metadata["name"]
            assert metadata["labels"]["app.kubernetes.io/instance"] == release
        values = [*metadata.get("labels", {}).values(), *metadata.get("annotations", {}).values()]
        assert all(isinstance(value, str) for value in values), metadata
        assert all(len(value) <= 63 for value in metadata.get("labels", {}).values())
        if document["kind"] in ("Service", "Pod", "Deployment"):
            assert len(metadata["name"]) <= 63
            assert metadata["name"][0].isalpha()
            assert "." not in metadata["name"]


@every
def test_everything_is_where_the_release_is(chart: str, variant: str, release: str) -> None:
    _, variants, complete = CHARTS[chart]
    values = complete(variants[variant])
    elsewhere = {"kube-system", *values.get("namespaces", [])}
    for document in rendered(chart, variant, release):
        kind, namespace = document["kind"], document["metadata"].get("namespace")
        if kind in CLUSTER_SCOPED:
            assert namespace is None
        elif kind in ("Role", "RoleBinding"):
            assert namespace in {"ops", *elsewhere}
        else:
            assert namespace == "ops", f"{kind} {document['metadata']['name']}"


@every
def test_a_release_owns_no_secret_that_is_filled_when_it_runs(chart: str, variant: str, release: str) -> None:
    """An upgrade would put back what the chart says."""
    for secret in of_kind(rendered(chart, variant, release), "Secret"):
        assert secret["type"] == "kubernetes.io/service-account-token"
        assert secret.keys() & {"data", "stringData"} == set()
    names = {one["metadata"]["name"] for one in of_kind(rendered(chart, variant, release), "Secret")}
    assert "diloco-operator-origin" not in names


def test_what_an_upgrade_cannot_change_is_what_it_was() -> None:
    """Kubernetes refuses other selectors of a Deployment, and other roles of a binding, under the same name."""
    found = {"operator": {}, "operator in namespaces": {}, "site": {}}
    for name, documents in {
        "operator": render(OPERATOR, with_images({})),
        "operator in namespaces": render(OPERATOR, with_images(NAMESPACES)),
        "site": render(SITE, SITE_VARIANTS["full"]),
    }.items():
        for one in documents:
            key = "/".join((one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]))
            fixed = {"Deployment": lambda one: one["spec"]["selector"], "Service": lambda one: one["spec"]["selector"],
                     "RoleBinding": lambda one: one["roleRef"], "ClusterRoleBinding": lambda one: one["roleRef"],
                     "Secret": lambda one: one["type"]}.get(one["kind"])  # fmt: skip
            if fixed:
                found[name][key] = fixed(one)
    kept = json.loads(IMMUTABLE.read_text())
    for name, objects in kept.items():
        for key, value in objects.items():
            assert found[name].get(key, value) == value, key
    assert found == kept, f"what is new belongs into {IMMUTABLE.name}"

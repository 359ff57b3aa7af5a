"""Monitors of the Prometheus operator: made where they shall be, in its own API, and they select what is meant."""

from typing import Any

import pytest

from chart.belonging import selects
from chart.rendering import OPERATOR, Refused, of_kind, pods_of, render, run_helm, with_images
from chart.variants import MONITORING, NAMESPACES, OPERATOR_VARIANTS, Values
from diloco_api.names import LABEL_ROLE, Role
from fakes.fleet import POLICY, Fleet, fleet_job
from monitoring.definitions import breaches

KINDS = ("ServiceMonitor", "PodMonitor")
ENDPOINTS = {"ServiceMonitor": "endpoints", "PodMonitor": "podMetricsEndpoints"}


def enabled(kind: str, **more: Any) -> Values:
    key = f"{kind[0].lower()}{kind[1:]}"
    return with_images({"monitoring": {"renderMode": "alwaysRender", key: {"enabled": True}}, **more})


def monitors(kind: str, values: Values) -> dict[str, dict[str, Any]]:
    found = of_kind(render(OPERATOR, values), kind)
    return {one["metadata"]["name"].rpartition("-")[2]: one for one in found}


@pytest.mark.parametrize("variant", ["monitoring", "monitoring by pods", "openshift", "full"])
def test_they_are_such_as_the_prometheus_operator_has_them(variant: str) -> None:
    documents = render(OPERATOR, with_images(OPERATOR_VARIANTS[variant]))
    found = [one for kind in KINDS for one in of_kind(documents, kind)]
    assert len(found) == 2
    for one in found:
        assert breaches(one) == []
        assert one["metadata"]["labels"]["release"] == "prometheus"
        (endpoint,) = one["spec"][ENDPOINTS[one["kind"]]]
        assert (endpoint["interval"], endpoint["scrapeTimeout"], endpoint["honorLabels"]) == ("30s", "10s", True)
        assert endpoint["metricRelabelings"] == [{"action": "labeldrop", "regex": "pod"}]


@pytest.mark.parametrize("kind", KINDS)
def test_there_are_none_unless_they_are_wanted(kind: str) -> None:
    assert monitors(kind, with_images({"monitoring": {"renderMode": "alwaysRender"}})) == {}
    assert monitors(kind, enabled(kind)).keys() == {"operator", "synchronizers"}


def test_where_the_cluster_does_not_know_them_they_are_left_out_or_refused_or_made_all_the_same() -> None:
    def made(mode: str) -> list[Any]:
        values = with_images({"monitoring": {"renderMode": mode, "podMonitor": {"enabled": True}}})
        return of_kind(render(OPERATOR, values), "PodMonitor")

    assert made("skipIfMissing") == []
    assert len(made("alwaysRender")) == 2
    with pytest.raises(Refused, match=r"has no monitoring\.coreos\.com/v1/PodMonitor: install the Prometheus operator"):
        made("failIfMissing")


def test_where_the_cluster_knows_them_they_are_made() -> None:
    values = with_images({"monitoring": {"podMonitor": {"enabled": True}}})
    api = "monitoring.coreos.com/v1/PodMonitor"
    said = run_helm("template", "diloco", str(OPERATOR), "--api-versions", api, values=values)
    assert said.count("kind: PodMonitor") == 2


def test_of_all_services_of_a_release_one_is_scraped() -> None:
    documents = render(OPERATOR, enabled("ServiceMonitor"))
    (monitor,) = (one for one in of_kind(documents, "ServiceMonitor") if one["metadata"]["name"].endswith("operator"))
    selector = monitor["spec"]["selector"]["matchLabels"]
    (service,) = (one for one in of_kind(documents, "Service") if selects(selector, one["metadata"]["labels"]))
    (port,) = (port for port in service["spec"]["ports"] if port["name"] == monitor["spec"]["endpoints"][0]["port"])
    (deployment,) = of_kind(documents, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {"name": port["targetPort"], "containerPort": port["port"]} in container["ports"]


@pytest.fixture(scope="module")
def of_a_job() -> list[dict[str, Any]]:
    """What the operator's plan makes at the hub for a job with Learners at another site."""
    sites = [{"name": "site-1", "kubeconfigSecretRef": {"name": "k1"}}]
    fleet = Fleet(job=fleet_job({"sites": sites}), policy=POLICY)
    fleet.settle(3)
    return list(fleet.clusters["hub"].manifests.values())


def test_of_all_services_of_a_job_one_is_scraped(of_a_job: list[dict[str, Any]]) -> None:
    selector = monitors("ServiceMonitor", enabled("ServiceMonitor"))["synchronizers"]["spec"]["selector"]["matchLabels"]
    assert selector == {LABEL_ROLE: Role.SYNCHRONIZER.value}
    services = of_kind(of_a_job, "Service")
    assert len(services) == 2, "one for its own cluster, one for the others"
    selected = [one for one in services if selects(selector, one["metadata"]["labels"])]
    assert [port["name"] for one in selected for port in one["spec"]["ports"]].count("metrics") == 1


def test_of_all_pods_of_a_job_the_synchronizers_are_scraped(of_a_job: list[dict[str, Any]]) -> None:
    monitor = monitors("PodMonitor", enabled("PodMonitor"))["synchronizers"]
    (template,) = pods_of(of_a_job)
    assert selects(monitor["spec"]["selector"]["matchLabels"], template["metadata"]["labels"])
    (container,) = template["spec"]["containers"]
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] in {port["name"] for port in container["ports"]}


@pytest.mark.parametrize("kind", KINDS)
def test_synchronizers_are_looked_for_where_the_operator_makes_them(kind: str) -> None:
    everywhere = monitors(kind, enabled(kind))["synchronizers"]["spec"]
    assert everywhere["namespaceSelector"] == {"any": True}
    some = monitors(kind, enabled(kind, **NAMESPACES))
    assert some["synchronizers"]["spec"]["namespaceSelector"] == {"matchNames": NAMESPACES["namespaces"]}
    assert "namespaceSelector" not in some["operator"]["spec"], "the release's own"


@pytest.mark.parametrize("monitor", ["serviceMonitor", "podMonitor"])
def test_somebodys_own_labels_win_over_the_charts(monitor: str) -> None:
    own = {"app.kubernetes.io/part-of": "platform", "app.kubernetes.io/name": "diloco", "release": "prometheus"}
    settings = {monitor: {"enabled": True, "labels": own}, "rules": {"enabled": True, "labels": own}}
    board = {"enabled": True, "label": "app.kubernetes.io/part-of", "labelValue": "platform"}
    values = {"monitoring": {"renderMode": "alwaysRender", "dashboards": board, **settings}}
    documents = render(OPERATOR, with_images(values))
    made = [one for kind in (*KINDS, "PrometheusRule") for one in of_kind(documents, kind)]
    assert len(made) == 3
    for one in made:
        labels = one["metadata"]["labels"]
        assert own.items() <= labels.items()
        assert labels["app.kubernetes.io/instance"] == "diloco"
    boards = of_kind(documents, "ConfigMap")
    assert {one["metadata"]["labels"]["app.kubernetes.io/part-of"] for one in boards} == {"platform"}
    (operator,) = (one for one in made if one["metadata"]["name"].endswith("-operator-operator"))
    assert operator["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"] == "diloco-operator"


def test_what_is_scraped_does_not_depend_on_the_releases_name() -> None:
    found = of_kind(render(OPERATOR, with_images(MONITORING), name="1"), "ServiceMonitor")
    assert {one["metadata"]["name"] for one in found} == {
        "r1-diloco-operator-operator",
        "r1-diloco-operator-synchronizers",
    }

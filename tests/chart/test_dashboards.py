"""Dashboards: current, loadable, made of series that exist, and of no installation in particular.

Grafana itself does not run here. That the JSON has the form it expects is tried with Grafana's own SDK, which reads it
back and must lose nothing; that queries answer is tried on clusters, by a real Prometheus.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from chart.rendering import IMAGES, OPERATOR, ROOT, Refused, of_kind, render
from diloco_api.states import GoodputState
from monitoring.queries import declared, labels_of
from monitoring.rules import recorded, rendered

FOLDER = ROOT / "helm/diloco-operator/files/dashboards"
UIDS = ("diloco-fleet", "diloco-job", "diloco-site", "diloco-pods", "diloco-operator")
DASHBOARDS = {uid: json.loads((FOLDER / f"{uid}.json").read_text()) for uid in UIDS}
BUILT_IN = {"datasource", "__rate_interval", "__interval", "__url_time_range", "__data"}
KINDS = {"timeseries", "stat", "table", "state-timeline"}
UNITS = {"short", "s", "percentunit", "percent", "Bps", "ops", "reqps", "decmbytes", "watt", "bool_yes_no"}
register_default_plugins()


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """All but headings."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries(dashboard: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Where, PromQL, legend of everything that is asked."""
    for panel in panels(dashboard):
        for target in panel["targets"]:
            yield panel["title"], target["expr"], target.get("legendFormat", "")
    for marks in dashboard["annotations"].get("list", []):
        yield marks["name"], marks["expr"], marks["titleFormat"]


def every_query() -> list[tuple[str, str, str, str]]:
    return [(uid, *query) for uid, dashboard in DASHBOARDS.items() for query in queries(dashboard)]


def test_there_is_a_dashboard_for_each_of_these_and_no_other() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(UIDS)
    assert [dashboard["uid"] for dashboard in DASHBOARDS.values()] == list(UIDS)


@pytest.mark.parametrize("uid", UIDS)
def test_grafanas_own_sdk_reads_a_dashboard_back_and_loses_nothing(uid: str) -> None:
    dashboard = json.loads((FOLDER / f"{uid}.json").read_text())
    for marks in dashboard["annotations"].get("list", []):
        del marks["titleFormat"], marks["step"]  # of Prometheus' annotations the SDK knows the expression only
    again = json.loads(json.dumps(Dashboard.from_json(dashboard), cls=JSONEncoder))
    assert again == dashboard


@pytest.mark.parametrize("uid", UIDS)
def test_panels_are_of_known_kinds_explained_and_side_by_side(uid: str) -> None:
    taken: set[tuple[int, int]] = set()
    identities = [panel["id"] for panel in DASHBOARDS[uid]["panels"]]
    assert len(set(identities)) == len(identities)
    for panel in panels(DASHBOARDS[uid]):
        assert panel["type"] in KINDS
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"].get("unit", "short") in UNITS
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize("uid", UIDS)
def test_the_data_source_is_a_variable_everywhere(uid: str) -> None:
    def sources(node: Any) -> Iterator[Any]:
        if isinstance(node, dict):
            yield from ([node["datasource"]] if "datasource" in node else [])
            for child in node.values():
                yield from sources(child)
        elif isinstance(node, list):
            for child in node:
                yield from sources(child)

    found = list(sources(DASHBOARDS[uid]))
    assert found
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in found)
    first = DASHBOARDS[uid]["templating"]["list"][0]
    assert (first["name"], first["type"], first["query"]) == ("datasource", "datasource", "prometheus")


@pytest.mark.parametrize("uid", UIDS)
def test_every_variable_that_is_used_is_there_and_every_one_there_is_used(uid: str) -> None:
    variables = [variable["name"] for variable in DASHBOARDS[uid]["templating"]["list"]]
    asked = " ".join(expression for _, expression, _ in queries(DASHBOARDS[uid]))
    asked += json.dumps([variable.get("query") for variable in DASHBOARDS[uid]["templating"]["list"]])
    used = set(re.findall(r"\$\{?([a-z_]\w*)", asked))
    assert used - BUILT_IN == set(variables) - {"datasource"}


def test_every_query_parses_and_reads_series_and_labels_that_exist() -> None:
    known = declared(recorded(rendered()))
    assert len(every_query()) > 60
    for uid, where, expression, legend in every_query():
        labels = labels_of(expression, known)
        assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= labels, f"{uid}, {where}"


def test_every_column_of_a_table_is_a_label_of_its_queries() -> None:
    known = declared(recorded(rendered()))
    tables = [panel for dashboard in DASHBOARDS.values() for panel in panels(dashboard) if panel["type"] == "table"]
    assert len(tables) == 3
    for panel in tables:
        organize = panel["transformations"][1]["options"]
        columns = {name for name in organize["indexByName"] if not name.startswith("Value #")}
        for target in panel["targets"]:
            assert labels_of(target["expr"], known) == columns, panel["title"]
            # The name of a series would be a label, too, and keep rows apart.
            assert re.match(r"(max|sum) by ", target["expr"]), panel["title"]


def test_the_choices_come_from_series_and_labels_that_exist() -> None:
    known = declared()
    choices = [
        variable["query"]["query"]
        for dashboard in DASHBOARDS.values()
        for variable in dashboard["templating"]["list"]
        if variable["type"] == "query"
    ]
    assert choices
    for choice in choices:
        match = re.fullmatch(r"label_values\((.+), (\w+)\)", choice)
        assert match is not None, choice
        assert match[2] in labels_of(match[1], known)


def test_no_query_is_bound_to_one_namespace_job_or_site() -> None:
    for uid, where, expression, _ in every_query():
        values = re.findall(r'\b(?:job_namespace|diloco_job|site|namespace|job)\s*=~?\s*"([^"]*)"', expression)
        assert all(value.startswith("$") for value in values), f"{uid}, {where}"


def test_every_state_has_one_colour_and_a_number_in_the_timeline() -> None:
    (timeline,) = [panel for panel in panels(DASHBOARDS["diloco-job"]) if panel["title"] == "What each Learner does"]
    mapped = timeline["fieldConfig"]["defaults"]["mappings"][0]["options"]
    asked = timeline["targets"][0]["expr"]
    numbers = dict(re.findall(r'\((\d+) \+ 0 \* \(sum by \(learner\) \(rate\([^}]*state="(\w+)"', asked))
    assert {number: entry["text"] for number, entry in mapped.items()} == numbers
    assert set(numbers.values()) == {state.value for state in GoodputState}


def test_the_job_dashboard_marks_restarts_and_relocations() -> None:
    assert [marks["name"] for marks in DASHBOARDS["diloco-job"]["annotations"]["list"]] == ["Restarts", "Relocations"]


# --- as the chart brings them ----------------------------------------------------------------------------------------


def config_maps(**dashboards: Any) -> list[dict[str, Any]]:
    values = {**IMAGES, "monitoring": {"dashboards": {"enabled": True, **dashboards}}}
    documents = of_kind(render(OPERATOR, values), "ConfigMap")
    return [document for document in documents if "-dashboard-" in document["metadata"]["name"]]


def test_each_dashboard_is_a_config_map_with_the_file_as_it_is() -> None:
    found = config_maps()
    for document in found:
        kubernetes_validate.validate(document, "1.34", strict=True)
        assert document["metadata"]["namespace"] == "ops"
        assert document["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert "annotations" not in document["metadata"]
    texts = {name: text for document in found for name, text in document["data"].items()}
    assert {name: text.rstrip("\n") for name, text in texts.items()} == {
        path.name: path.read_text().rstrip("\n") for path in FOLDER.iterdir()
    }
    assert len({document["metadata"]["name"] for document in found}) == len(UIDS)


def test_label_folder_and_namespace_of_the_dashboards_can_be_chosen() -> None:
    for document in config_maps(label="dashboards", labelValue="yes", folder="Training", namespace="grafana"):
        assert document["metadata"]["labels"]["dashboards"] == "yes"
        assert "grafana_dashboard" not in document["metadata"]["labels"]
        assert document["metadata"]["annotations"] == {"grafana_folder": "Training"}
        assert document["metadata"]["namespace"] == "grafana"


def test_there_are_no_dashboards_unless_they_are_wanted() -> None:
    assert config_maps(enabled=False) == []


def test_a_label_without_a_name_is_refused() -> None:
    with pytest.raises(Refused, match="/monitoring/dashboards/label"):
        config_maps(label="")

"""Values of both charts: each is in the schema and documented; what means nothing is refused by name."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart.rendering import IMAGES, OPERATOR, SITE, Refused, render, run_helm, with_images
from chart.values_page import PAGE_PATH, build_page, comments_of, main, rows_of

CHARTS = pytest.mark.parametrize("chart", [OPERATOR, SITE], ids=["operator", "site"])


def schema_of(chart: Path) -> dict[str, Any]:
    return dict(json.loads((chart / "values.schema.json").read_text()))


def known(schema: dict[str, Any], prefix: str = "") -> set[str]:
    """Paths at which the schema stops naming members."""
    found = set()
    for name, child in schema["properties"].items():
        found |= known(child, f"{prefix}{name}.") if "properties" in child else {prefix + name}
    return found


def leaves(values: dict[str, Any], ends: set[str], prefix: str = "") -> set[str]:
    found = set()
    for name, value in values.items():
        inner = isinstance(value, dict) and prefix + name not in ends
        found |= leaves(value, ends, f"{prefix}{name}.") if inner else {prefix + name}
    return found


def closed_levels(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, bool]]:
    if "properties" in schema:
        yield path, schema.get("additionalProperties") is False
        for name, child in schema["properties"].items():
            yield from closed_levels(child, f"{path}/{name}")


@CHARTS
def test_every_value_has_a_schema_and_every_schema_a_value(chart: Path) -> None:
    ends = known(schema_of(chart))
    assert leaves(yaml.safe_load((chart / "values.yaml").read_text()), ends) == ends - {"global"}


@CHARTS
def test_no_level_of_the_schema_takes_keys_it_does_not_know(chart: Path) -> None:
    assert [path for path, closed in closed_levels(schema_of(chart)) if not closed] == []


@CHARTS
def test_every_value_is_documented(chart: Path) -> None:
    text = (chart / "values.yaml").read_text()
    told = {row.path for row in rows_of(text) if row.default}
    ends = known(schema_of(chart)) - {"global"}
    assert {end for end in ends if not any(end == path or end.startswith(f"{path}.") for path in told)} == set()
    assert all(row.text.endswith(".") for row in rows_of(text))


@CHARTS
def test_the_defaults_are_such_as_the_schema_takes(chart: Path) -> None:
    values = yaml.safe_load((chart / "values.yaml").read_text())
    render(chart, {**values, **IMAGES} if chart == OPERATOR else values)


def large_numbers(schema: dict[str, Any], values: dict[str, Any], given: list[int]) -> None:
    """Another one above a million for every value that may be so large."""
    for name, child in schema.get("properties", {}).items():
        kinds = [child, *child.get("oneOf", [])]
        if any(kind.get("type") in ("integer", "number") and "maximum" not in kind for kind in kinds):
            given.append(1_000_680_000 + len(given))
            values[name] = given[-1]
        elif "properties" in child:
            large_numbers(child, values.setdefault(name, {}), given)


def test_large_numbers_of_a_values_file_are_written_as_they_were_given() -> None:
    values = with_images({"monitoring": {"renderMode": "alwaysRender", "rules": {"enabled": True}}})
    given: list[int] = []
    large_numbers(schema_of(OPERATOR), values, given)
    text = run_helm("template", "diloco", str(OPERATOR), values=values)
    assert {"fsGroup", "terminationGracePeriodSeconds"} < values.keys()
    assert "replacementSlowSeconds" in values["monitoring"]["rules"]["thresholds"]
    assert re.findall(r"\d+e\+\d+", text) == []
    assert [number for number in given if str(number) not in text] == []


OPERATOR_MISTAKES = {
    "a key that does not exist": ({"imagge": {}}, "additional properties 'imagge' not allowed"),
    "an inner key that does not exist": ({"image": {"repo": "x"}}, "at '/image': additional properties 'repo'"),
    "a misspelt switch": ({"crds": {"instal": True}}, "at '/crds': additional properties 'instal' not allowed"),
    "a misspelt monitor": ({"monitoring": {"servicemonitor": {}}}, "additional properties 'servicemonitor'"),
    "a word for a number": ({"replicas": "one"}, "at '/replicas': got string, want integer"),
    "a word for a switch": ({"networkPolicy": {"enabled": "yes"}}, "'/networkPolicy/enabled': got string, want bool"),
    "a number for a word": ({"image": {"tag": 1.5}}, "at '/image/tag': got number, want string"),
    "a mapping for a list": ({"tolerations": {}}, "at '/tolerations': got object, want array"),
    "a list for a mapping": ({"nodeSelector": []}, "at '/nodeSelector': got array, want object"),
    "a privileged port": ({"metrics": {"port": 80}}, "at '/metrics/port': minimum: got 80, want 1,024"),
    "too many replicas": ({"replicas": 9}, "at '/replicas': maximum: got 9, want 5"),
    "a scope that does not exist": ({"scope": "Cluster"}, "at '/scope': value must be one of 'cluster', 'namespaces'"),
    "namespaces that are not listed": ({"scope": "namespaces"}, "at '/namespaces': minItems: got 0, want 1"),
    "namespaces beside the whole cluster": ({"namespaces": ["a"]}, "at '/namespaces': maxItems: got 1, want 0"),
    "a digest that is none": ({"image": {"digest": "abc"}}, "at '/image/digest'"),
    "a duration that is none": ({"monitoring": {"podMonitor": {"interval": "3"}}}, "'/monitoring/podMonitor/interval'"),
    "a group that is none": ({"fsGroup": "all"}, "at '/fsGroup'"),
    "a label that is the chart's": (
        {"podLabels": {"app.kubernetes.io/name": "x"}}, "podLabels: app.kubernetes.io/name is the chart's own"),
    "two monitors of one thing": (
        {"monitoring": {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}}},
        "monitoring.serviceMonitor.enabled and monitoring.podMonitor.enabled: choose one"),
    "a monitor of no Service": (
        {"monitoring": {"serviceMonitor": {"enabled": True}}, "metrics": {"service": {"enabled": False}}},
        "monitoring.serviceMonitor.enabled: needs metrics.service.enabled"),
    "one port for two": ({"metrics": {"port": 8081}}, "metrics.port and health.port: both are 8081"),
    "nobody's account": (
        {"serviceAccount": {"create": False}}, "serviceAccount.name: needed where serviceAccount.create is false"),
}  # fmt: skip
SITE_MISTAKES = {
    "a key that does not exist": ({"rbac": {"pods": True}}, "at '/rbac': additional properties 'pods' not allowed"),
    "a server without TLS": ({"server": "http://insecure"}, "at '/server'"),
    "a word for a switch": ({"token": {"create": "no"}}, "at '/token/create': got string, want boolean"),
}


@pytest.mark.parametrize(("values", "said"), OPERATOR_MISTAKES.values(), ids=OPERATOR_MISTAKES.keys())
def test_what_means_nothing_to_the_operators_chart_is_refused_by_name(values: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused) as refused:
        render(OPERATOR, {**IMAGES, **values})
    assert said in str(refused.value)


@pytest.mark.parametrize(("values", "said"), SITE_MISTAKES.values(), ids=SITE_MISTAKES.keys())
def test_what_means_nothing_to_the_sites_chart_is_refused_by_name(values: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused) as refused:
        render(SITE, values)
    assert said in str(refused.value)


def test_the_page_is_what_the_comments_say() -> None:
    assert PAGE_PATH.read_text() == build_page(), "run `make manifests`"


def test_a_page_that_is_not_current_is_told(tmp_path: Path, capsys: Any) -> None:
    page = tmp_path / "charts.md"
    assert main(["--check"], page) == 1
    assert "charts.md" in capsys.readouterr().err
    assert main([], page) == 0
    assert main(["--check"], page) == 0


def test_a_comment_belongs_to_the_key_below_it() -> None:
    text = "# Of a group,\n# in two lines.\ngroup:\n  # Of one.\n  one: 1\n  two: {}\n\n# Of nobody.\n\nthree: []\n"
    assert comments_of(text) == {("group",): "Of a group, in two lines.", ("group", "one"): "Of one."}
    assert [(row.path, row.default) for row in rows_of(text)] == [("group", ""), ("group.one", "1")]

"""The chart's rules as Prometheus reads them, and scenarios of them for the real promtool."""

import functools
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from chart.rendering import IMAGES, OPERATOR, of_kind, render
from monitoring.binaries import promtool
from monitoring.queries import names_in

JOB = 'diloco_job="llm",job_namespace="training"'
"""The job of the scenarios, as labels of a series."""


def rendered(**rules: Any) -> dict[str, Any]:
    """Spec of the PrometheusRule under these values of `monitoring.rules`."""
    return _rendered(json.dumps(rules, sort_keys=True))


@functools.cache
def _rendered(rules: str) -> dict[str, Any]:
    found: dict[str, Any] = prometheus_rule(**json.loads(rules))["spec"]
    return found


def prometheus_rule(**rules: Any) -> dict[str, Any]:
    values = {**IMAGES, "monitoring": {"renderMode": "alwaysRender", "rules": {"enabled": True, **rules}}}
    (document,) = of_kind(render(OPERATOR, values), "PrometheusRule")
    return document


def all_rules(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [rule for group in spec["groups"] for rule in group["rules"]]


def recorded(spec: Mapping[str, Any]) -> dict[str, str]:
    """Expression of each recording rule, in order."""
    return {rule["record"]: rule["expr"] for rule in all_rules(spec) if "record" in rule}


def alerts(spec: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in all_rules(spec) if "alert" in rule}


@dataclass(frozen=True)
class Value:
    """What a query must answer at a time: value by labels, rounded to four digits."""

    at: str
    query: str
    samples: Mapping[str, float]


@dataclass(frozen=True)
class Firing:
    """The label sets with which an alert must fire at a time; none: it must not."""

    at: str
    alert: str
    labels: Sequence[Mapping[str, str]]


def check(spec: Mapping[str, Any], folder: Path) -> str:
    """What `promtool check rules` says; fails when it finds anything."""
    path = folder / "rules.yaml"
    path.write_text(yaml.safe_dump(spec))
    answer = subprocess.run(
        [promtool(), "check", "rules", "--lint-fatal", str(path)], capture_output=True, text=True, check=False
    )  # fmt: skip
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def play(spec: Mapping[str, Any], series: Mapping[str, str], expected: Sequence[Value | Firing], folder: Path) -> None:
    """Feed series, a sample every 30 s, to the rules in `promtool test rules`, and compare all but alerts' texts."""
    test = {
        "promql_expr_test": [_value_test(item) for item in expected if isinstance(item, Value)],
        "alert_rule_test": [_alert_test(spec, item) for item in expected if isinstance(item, Firing)],
    }
    wanted = {item.alert if isinstance(item, Firing) else item.query.partition("{")[0] for item in expected}
    answer = _run(_without_texts(_needed(spec, wanted)), series, test, folder)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def texts(spec: Mapping[str, Any], series: Mapping[str, str], at: str, alert: str, folder: Path) -> str:
    """The annotations of an alert that fires, as promtool prints them because none was expected."""
    test = {"alert_rule_test": [{"eval_time": at, "alertname": alert, "exp_alerts": []}]}
    answer = _run(_needed(spec, {alert}), series, test, folder)
    assert answer.returncode != 0, f"{alert} does not fire"
    return (answer.stdout + answer.stderr).partition("Annotations:")[2]


def _run(
    spec: Mapping[str, Any], series: Mapping[str, str], test: Mapping[str, Any], folder: Path
) -> "subprocess.CompletedProcess[str]":
    values = [{"series": name, "values": values} for name, values in series.items()]
    document = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "30s",
        "tests": [{"interval": "30s", "input_series": values, **test}],
    }
    (folder / "rules.yaml").write_text(yaml.safe_dump(spec))
    (folder / "test.yaml").write_text(json.dumps(document))
    command = [promtool(), "test", "rules", str(folder / "test.yaml")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _needed(spec: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    """The rules of these names and those they read: every rule costs promtool time at every step."""
    by_name = {rule.get("record") or rule["alert"]: rule for rule in all_rules(spec)}
    wanted: set[str] = set()
    more = names
    while more:
        wanted |= more
        more = {read for name in more for read in names_in(by_name[name]["expr"]) if read in by_name} - wanted
    groups = [
        {**group, "rules": [rule for rule in group["rules"] if (rule.get("record") or rule["alert"]) in wanted]}
        for group in spec["groups"]
    ]
    return {"groups": [group for group in groups if group["rules"]]}


def _without_texts(spec: Mapping[str, Any]) -> dict[str, Any]:
    groups = [
        {**group, "rules": [{key: rule[key] for key in rule if key != "annotations"} for rule in group["rules"]]}
        for group in spec["groups"]
    ]
    return {"groups": groups}


def _value_test(item: Value) -> dict[str, Any]:
    samples = [{"labels": labels, "value": value} for labels, value in item.samples.items()]
    return {"eval_time": item.at, "expr": f"round({item.query}, 0.0001)", "exp_samples": samples}


def _alert_test(spec: Mapping[str, Any], item: Firing) -> dict[str, Any]:
    rule = alerts(spec)[item.alert]
    return {
        "eval_time": item.at,
        "alertname": item.alert,
        "exp_alerts": [{"exp_labels": {**rule["labels"], **labels}} for labels in item.labels],
    }

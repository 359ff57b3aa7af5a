"""A real Prometheus in the hub's network: asks what the chart's monitors select, under the chart's rules."""

import json
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chart.rendering import IMAGES, OPERATOR, ROOT, of_kind, render
from clusters import charts, workloads
from clusters.api import Api, ApiError
from clusters.installation import Installation
from monitoring.discovery import Target, of_endpoints, of_pods
from monitoring.monitors import Monitor, namespaces, scrape_configs
from monitoring.rules import alerts, rendered
from monitoring.server import Prometheus

SCRAPE = "2s"
DELAY = "4s"
"""How long what an alert looks for must hold here."""
DASHBOARDS = ROOT / "helm/diloco-operator/files/dashboards"


@contextmanager
def watching(run: Installation, folder: Path, kind: str = "ServiceMonitor") -> Iterator[Prometheus]:
    """`kind`: by which of the chart's monitors it finds what to ask."""
    found, over = monitors(run, kind), threading.Event()
    discovery = threading.Thread(target=_discover, args=(run, folder, found, over))
    discovery.start()
    try:
        with _prometheus(run, folder, found) as entered:
            yield entered
    finally:
        over.set()
        discovery.join(30)


def _discover(run: Installation, folder: Path, found: list[Monitor], over: threading.Event) -> None:
    """Tell again and again what there is in the namespaces of each monitor."""
    while not over.is_set():
        try:
            for monitor in found:
                _write(_file(folder, monitor), list(_targets(run.hub, monitor)))
        except (ApiError, OSError):
            pass  # asked again; what was told stays
        over.wait(2)


def _targets(hub: Api, monitor: Monitor) -> Iterator[Target]:
    for namespace in namespaces(monitor):
        pods = hub.all("v1", "Pod", namespace)
        if monitor["kind"] == "ServiceMonitor":
            yield from of_endpoints(hub.all("v1", "Service", namespace), hub.all("v1", "Endpoints", namespace), pods)
        else:
            yield from of_pods(pods)


def _write(path: Path, targets: list[Target]) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps(targets))
    new.rename(path)


def _file(folder: Path, monitor: Monitor) -> Path:
    return folder / f"{monitor['metadata']['name']}.json"


def _prometheus(run: Installation, folder: Path, found: list[Monitor]) -> Prometheus:
    charts.outside(sys.executable, ROOT / "tests/monitoring/binaries.py")  # fetched where registries are reached
    return Prometheus(
        folder,
        {
            "global": {"scrape_interval": SCRAPE, "scrape_timeout": SCRAPE, "evaluation_interval": SCRAPE},
            "scrape_configs": scrape_configs(found, lambda monitor: str(_file(folder, monitor))),
        },
        quick_rules(),
        port=workloads.inside(run.layout, "hub", _free_port),
        enter=("nsenter", f"--net={run.layout.namespace_path('hub')}", "--"),
        inside=lambda function: workloads.inside(run.layout, "hub", function),
    )


def monitors(run: Installation, kind: str) -> list[dict[str, Any]]:
    """As the chart renders them for this installation; the clusters do not know these kinds."""
    charts.helm_binary()
    key = kind[0].lower() + kind[1:]
    values = {
        **IMAGES,
        "scope": "namespaces",
        "namespaces": [run.namespace],
        "monitoring": {
            "renderMode": "alwaysRender",
            key: {"enabled": True, "interval": SCRAPE, "scrapeTimeout": SCRAPE},
        },
    }
    found = of_kind(render(OPERATOR, values, namespace=run.own_namespace), kind)
    assert found, f"the chart renders no {kind}"
    return found


def quick_rules() -> dict[str, Any]:
    """The chart's rules with values by which alerts need seconds."""
    return rendered(
        intervals=dict.fromkeys(("5m", "1h", "1d"), SCRAPE),
        thresholds={"outerStepStalledFactor": 1, "outerStepStalledSettle": "20s"},
        **{"for": dict.fromkeys(alerts(rendered()), DELAY)},
    )


def dashboard_queries(run: Installation, job: str, site: str) -> dict[str, str]:
    """PromQL of every panel by dashboard and title, filled in as Grafana would."""
    variables = {"namespace": run.namespace, "job": job, "site": site, "__rate_interval": "1m"}
    found: dict[str, str] = {}
    for path in sorted(DASHBOARDS.glob("*.json")):
        dashboard = json.loads(path.read_text())
        for panel in dashboard["panels"]:
            for target in panel.get("targets", []):
                expression = target["expr"]
                for name, value in variables.items():
                    expression = expression.replace(f"${name}", value)
                found[f"{path.stem}: {panel['title']} {target['refId']}"] = expression
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

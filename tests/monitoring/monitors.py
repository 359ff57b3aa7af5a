"""ServiceMonitors and PodMonitors as the scrape configuration that the Prometheus operator would make of them.

Only what the chart's monitors use is understood; anything else is an error, so that nothing is silently left out.
What there is to select from comes from files (`discovery`): Debian's Prometheus is built without Kubernetes.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Monitor = Mapping[str, Any]
_ENDPOINT_KEYS = {"port", "honorLabels", "interval", "scrapeTimeout", "relabelings", "metricRelabelings"}
_SPEC_KEYS = {"selector", "namespaceSelector", "endpoints", "podMetricsEndpoints"}


def scrape_configs(monitors: Iterable[Monitor], found: Callable[[Monitor], str]) -> list[dict[str, Any]]:
    """One for each endpoint of each monitor; `found` names the file with what there is for a monitor to select from."""
    return [
        _config(monitor, endpoint, number, found(monitor))
        for monitor in monitors
        for number, endpoint in enumerate(_endpoints(monitor))
    ]


def _endpoints(monitor: Monitor) -> list[Mapping[str, Any]]:
    spec = monitor["spec"]
    if unknown := set(spec) - _SPEC_KEYS:
        raise ValueError(f"{monitor['metadata']['name']}: cannot translate {sorted(unknown)}")
    found = spec["endpoints" if monitor["kind"] == "ServiceMonitor" else "podMetricsEndpoints"]
    for endpoint in found:
        if unknown := set(endpoint) - _ENDPOINT_KEYS:
            raise ValueError(f"{monitor['metadata']['name']}: cannot translate {sorted(unknown)}")
    return list(found)


def _config(monitor: Monitor, endpoint: Mapping[str, Any], number: int, path: str) -> dict[str, Any]:
    by_service = monitor["kind"] == "ServiceMonitor"
    kind = "serviceMonitor" if by_service else "podMonitor"
    metadata = monitor["metadata"]
    config: dict[str, Any] = {
        "job_name": f"{kind}/{metadata['namespace']}/{metadata['name']}/{number}",
        "honor_labels": endpoint.get("honorLabels", False),
        "file_sd_configs": [{"files": [path], "refresh_interval": "5s"}],
        "relabel_configs": [
            *(_of_service(monitor, endpoint) if by_service else _of_pod(monitor, endpoint)),
            *(_snake(entry) for entry in endpoint.get("relabelings", [])),
        ],
        "metric_relabel_configs": [_snake(entry) for entry in endpoint.get("metricRelabelings", [])],
    }
    for ours, theirs in (("interval", "scrape_interval"), ("scrapeTimeout", "scrape_timeout")):
        if ours in endpoint:
            config[theirs] = endpoint[ours]
    return config


def namespaces(monitor: Monitor) -> list[str]:
    """Empty: all of them."""
    selector = monitor["spec"].get("namespaceSelector", {})
    if selector.get("any"):
        return []
    return list(selector.get("matchNames") or [monitor["metadata"]["namespace"]])


def _selected(monitor: Monitor, what: str) -> list[dict[str, Any]]:
    selector = monitor["spec"]["selector"]
    if set(selector) != {"matchLabels"}:
        raise ValueError(f"{monitor['metadata']['name']}: cannot translate selector {selector}")
    return [
        _keep([f"__meta_kubernetes_{what}_label_{_label(name)}"], re.escape(value))
        for name, value in sorted(selector["matchLabels"].items())
    ]


def _of_service(monitor: Monitor, endpoint: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        *_selected(monitor, "service"),
        _keep(["__meta_kubernetes_endpoint_port_name"], endpoint["port"]),
        _copy("__meta_kubernetes_namespace", "namespace"),
        _copy("__meta_kubernetes_service_name", "service"),
        _copy("__meta_kubernetes_pod_name", "pod"),
        _copy("__meta_kubernetes_pod_container_name", "container"),
        {"action": "drop", "source_labels": ["__meta_kubernetes_pod_phase"], "regex": "(Failed|Succeeded)"},
        _copy("__meta_kubernetes_service_name", "job"),
        {"target_label": "endpoint", "replacement": endpoint["port"]},
    ]


def _of_pod(monitor: Monitor, endpoint: Mapping[str, Any]) -> list[dict[str, Any]]:
    metadata = monitor["metadata"]
    return [
        {"action": "drop", "source_labels": ["__meta_kubernetes_pod_phase"], "regex": "(Failed|Succeeded)"},
        *_selected(monitor, "pod"),
        _keep(["__meta_kubernetes_pod_container_port_name"], endpoint["port"]),
        _copy("__meta_kubernetes_namespace", "namespace"),
        _copy("__meta_kubernetes_pod_container_name", "container"),
        _copy("__meta_kubernetes_pod_name", "pod"),
        {"target_label": "job", "replacement": f"{metadata['namespace']}/{metadata['name']}"},
        {"target_label": "endpoint", "replacement": endpoint["port"]},
    ]


def _keep(labels: list[str], regex: str) -> dict[str, Any]:
    return {"action": "keep", "source_labels": labels, "regex": regex}


def _copy(source: str, target: str) -> dict[str, Any]:
    return {"source_labels": [source], "target_label": target}


def _label(name: str) -> str:
    """As Prometheus writes the name of a Kubernetes label."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)


def _snake(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {re.sub(r"[A-Z]", lambda found: f"_{found[0].lower()}", key): value for key, value in entry.items()}

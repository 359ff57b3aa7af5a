"""What is in a cluster as Prometheus' own discovery would tell it: targets with `__meta_kubernetes_` labels.

Debian's Prometheus is built without that discovery; selecting among the targets is left to it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Object = Mapping[str, Any]
Target = dict[str, Any]


def of_endpoints(services: Iterable[Object], endpoints: Iterable[Object], pods: Iterable[Object]) -> Iterator[Target]:
    """Role `endpoints`."""
    by_place = {(one["metadata"]["namespace"], one["metadata"]["name"]): one for one in services}
    by_pod = {(one["metadata"]["namespace"], one["metadata"]["name"]): one for one in pods}
    for one in endpoints:
        place = (one["metadata"]["namespace"], one["metadata"]["name"])
        for subset in one.get("subsets") or []:
            for address in subset.get("addresses") or []:
                for port in subset.get("ports") or []:
                    labels = {
                        "__meta_kubernetes_namespace": place[0],
                        "__meta_kubernetes_service_name": place[1],
                        "__meta_kubernetes_endpoint_port_name": port.get("name", ""),
                        **_labels("service", by_place.get(place, {})),
                    }
                    reference = address.get("targetRef", {})
                    pod = by_pod.get((place[0], reference.get("name", "")))
                    if pod is not None:
                        labels |= _of_pod(pod) | _container(pod, port["port"])
                    yield {"targets": [f"{address['ip']}:{port['port']}"], "labels": labels}


def of_pods(pods: Iterable[Object]) -> Iterator[Target]:
    """Role `pod`."""
    for pod in pods:
        ip = pod.get("status", {}).get("podIP")
        for container in pod["spec"]["containers"] if ip else []:
            for port in container.get("ports") or []:
                labels = {
                    "__meta_kubernetes_namespace": pod["metadata"]["namespace"],
                    **_of_pod(pod),
                    **_labels("pod", pod),
                    "__meta_kubernetes_pod_container_name": container["name"],
                    "__meta_kubernetes_pod_container_port_name": port.get("name", ""),
                }
                yield {"targets": [f"{ip}:{port['containerPort']}"], "labels": labels}


def _of_pod(pod: Object) -> dict[str, str]:
    return {
        "__meta_kubernetes_pod_name": pod["metadata"]["name"],
        "__meta_kubernetes_pod_phase": pod.get("status", {}).get("phase", ""),
    }


def _container(pod: Object, number: int) -> dict[str, str]:
    for container in pod["spec"]["containers"]:
        if any(port["containerPort"] == number for port in container.get("ports") or []):
            return {"__meta_kubernetes_pod_container_name": container["name"]}
    return {}


def _labels(what: str, found: Object) -> dict[str, str]:
    labels = found.get("metadata", {}).get("labels") or {}
    return {
        f"__meta_kubernetes_{what}_label_{re.sub(r'[^a-zA-Z0-9_]', '_', name)}": value for name, value in labels.items()
    }

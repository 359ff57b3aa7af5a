"""The Pod Security Standard `restricted`, as far as a pod's manifest decides it, and a read-only root."""

from collections.abc import Iterator
from typing import Any

_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def breaches(pod: dict[str, Any]) -> list[str]:
    """What a namespace that enforces the profile would refuse of a pod's spec."""
    return list(_breaches(pod))


def _breaches(pod: dict[str, Any]) -> Iterator[str]:
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(field):
            yield field
    for volume in pod.get("volumes", []):
        if unknown := set(volume) - {"name"} - _VOLUMES:
            yield f"volume {volume['name']}: {', '.join(unknown)}"
    shared = pod.get("securityContext", {})
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        for problem in _of_container(container.get("securityContext", {}), shared):
            yield f"container {container['name']}: {problem}"
        if any("hostPort" in port for port in container.get("ports", [])):
            yield f"container {container['name']}: hostPort"


def _of_container(own: dict[str, Any], shared: dict[str, Any]) -> Iterator[str]:
    both = {**shared, **own}
    if both.get("runAsNonRoot") is not True:
        yield "runAsNonRoot"
    if both.get("runAsUser") == 0:
        yield "runAsUser"
    if both.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
        yield "seccompProfile"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation"
    if own.get("privileged"):
        yield "privileged"
    if own.get("capabilities", {}).get("drop") != ["ALL"] or set(own["capabilities"].get("add", [])) - {
        "NET_BIND_SERVICE"
    }:
        yield "capabilities"
    if own.get("readOnlyRootFilesystem") is not True:
        yield "readOnlyRootFilesystem"

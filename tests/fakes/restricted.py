"""What Pod Security's profile `restricted` (v1.34) says of a pod's spec, written from its documentation."""

from typing import Any

Spec = dict[str, Any]
_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip


def breaches(spec: Spec) -> list[str]:
    """Every control that is not kept, by its field."""
    found = [name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    for volume in spec.get("volumes", []):
        found += [f"volumes.{source}" for source in volume.keys() - {"name"} - _VOLUMES]
    pod = spec.get("securityContext", {})
    if pod.get("sysctls") or pod.get("windowsOptions", {}).get("hostProcess") or pod.get("runAsUser") == 0:
        found.append("securityContext")
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        own = container.get("securityContext", {})
        capabilities = own.get("capabilities", {})
        checks = {
            "privileged": not own.get("privileged"),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "runAsNonRoot": own.get("runAsNonRoot", pod.get("runAsNonRoot")) is True,
            "runAsUser": own.get("runAsUser") != 0,
            "seccompProfile": own.get("seccompProfile", pod.get("seccompProfile", {})).get("type")
            in ("RuntimeDefault", "Localhost"),
            "drop": "ALL" in capabilities.get("drop", []),
            "add": set(capabilities.get("add", [])) <= {"NET_BIND_SERVICE"},
            "procMount": own.get("procMount", "Default") == "Default",
            "seLinuxOptions": not own.get("seLinuxOptions") and not pod.get("seLinuxOptions"),
            "appArmorProfile": own.get("appArmorProfile", {}).get("type", "RuntimeDefault") != "Unconfined",
            "hostPort": not any(port.get("hostPort") for port in container.get("ports", [])),
        }
        probes = [container.get(name, {}) for name in ("livenessProbe", "readinessProbe", "startupProbe")]
        checks["probe host"] = not any(
            how.get("host") for probe in probes for how in probe.values() if type(how) is dict
        )
        found += [f"{container['name']}.{name}" for name, kept in checks.items() if not kept]
    return found

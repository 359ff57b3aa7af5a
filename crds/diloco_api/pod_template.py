"""What a pod template of a manifest may change, and what is refused by its field path.

A template is an open object in the CRD's schema, so nothing here can be checked by an API server before pods are made.
Applied to a pod it changes nothing that the restricted profile or the operator's own parts depend on; how it is applied
is the business of the operator's planning.
"""

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Any

from diloco_api import names, rules
from diloco_api.errors import Problem

_Kinds = Mapping[str, type[dict[str, Any]] | type[list[Any]] | type[str]]

POD_FIELDS: _Kinds = {
    "nodeSelector": dict,
    "tolerations": list,
    "affinity": dict,
    "topologySpreadConstraints": list,
    "priorityClassName": str,
    "schedulerName": str,
    "imagePullSecrets": list,
    "serviceAccountName": str,
    "runtimeClassName": str,
    "dnsConfig": dict,
    "dnsPolicy": str,
    "hostAliases": list,
    "containers": list,
    "volumes": list,
}
"""Of `spec`, with the kind of value each has."""
CONTAINER_FIELDS: _Kinds = {
    "name": str,
    "image": str,
    "imagePullPolicy": str,
    "env": list,
    "envFrom": list,
    "resources": dict,
    "volumeMounts": list,
}
"""Of the one container."""
VOLUME_SOURCES = frozenset(
    {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
)
"""Those of the restricted profile."""
_UNRESTRICTED = frozenset({"hostNetwork", "hostPID", "hostIPC", "hostUsers", "securityContext"})
OUR_VOLUMES = frozenset({"scratch", "shm", "config", "address", "credentials", "state"})
_OUR_PATHS = frozenset(
    {
        names.MOUNT_CONFIG,
        names.MOUNT_ADDRESS,
        names.MOUNT_CREDENTIALS,
        names.MOUNT_STATE,
        names.MOUNT_SCRATCH,
        "/dev/shm",
    }
)
_OUR_PREFIXES = (
    *(f"{names.GROUP}/", "app.kubernetes.io/", "kopf.", "kubectl.kubernetes.io/"),
    *("container.apparmor.", "container.seccomp.", "seccomp.security."),
)
"""Of labels and annotations; the last three would weaken a pod's profile."""

_Found = Iterator[Problem]


def problems(template: Mapping[str, Any] | None, path: str) -> _Found:
    """Every part of a template that is refused; `path` is where the template stands."""
    if template is None:
        return
    for key, value in template.items():
        at = f"{path}.{key}"
        if key not in ("metadata", "spec"):
            yield Problem(at, "", f"{rules.TEMPLATE_FIELD}; metadata and spec are")
        elif not isinstance(value, dict):
            yield Problem(at, "", f"{rules.TEMPLATE_TYPE}: a mapping")
        elif key == "metadata":
            yield from _metadata(value, at)
        else:
            yield from _spec(value, at)


def _metadata(metadata: Mapping[str, Any], path: str) -> _Found:
    for key, values in metadata.items():
        at = f"{path}.{key}"
        if key not in ("labels", "annotations"):
            yield Problem(at, "", f"{rules.TEMPLATE_FIELD}; labels and annotations are")
            continue
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            yield Problem(at, "", f"{rules.TEMPLATE_TYPE}: a mapping of texts")
            continue
        for name, value in values.items():
            if name.startswith(_OUR_PREFIXES):
                yield Problem(at, name, rules.TEMPLATE_OURS)
            elif key == "labels" and names.label_value(value) != value:
                yield Problem(at, f"{name}={value}"[:80], "is not a legal label value")


def _spec(spec: Mapping[str, Any], path: str) -> _Found:
    good = True
    for problem in _fields(spec, POD_FIELDS, path):
        good = False
        yield problem
    if not good:
        return
    for number, volume in enumerate(spec.get("volumes", [])):
        yield from _volume(volume, f"{path}.volumes.{number}")
    containers = spec.get("containers", [])
    if len(containers) > 1:
        yield Problem(f"{path}.containers", f"{len(containers)}", rules.TEMPLATE_CONTAINERS)
    for number, container in enumerate(containers[:1]):
        yield from _container(container, f"{path}.containers.{number}")


def _fields(given: Mapping[str, Any], allowed: _Kinds, path: str) -> _Found:
    for key, value in given.items():
        at = f"{path}.{key}"
        if key in _UNRESTRICTED:
            yield Problem(at, "", rules.TEMPLATE_RESTRICTED)
        elif key not in allowed:
            yield Problem(at, "", f"{rules.TEMPLATE_FIELD}; {', '.join(allowed)} are")
        elif not isinstance(value, allowed[key]):
            yield Problem(at, "", f"{rules.TEMPLATE_TYPE}: {_WORDS[allowed[key].__name__]}")
        elif isinstance(value, list) and not all(isinstance(item, dict) for item in value):
            yield Problem(at, "", f"{rules.TEMPLATE_TYPE}: a list of mappings")


_WORDS = {"dict": "a mapping", "list": "a list", "str": "a text"}


def _volume(volume: Mapping[str, Any], path: str) -> _Found:
    name = volume.get("name")
    if not isinstance(name, str):
        yield Problem(f"{path}.name", "", "is required")
    elif name in OUR_VOLUMES:
        yield Problem(f"{path}.name", name, rules.TEMPLATE_OURS)
    for source, value in volume.items():
        if source == "name":
            continue
        if source not in VOLUME_SOURCES:
            yield Problem(f"{path}.{source}", "", rules.TEMPLATE_RESTRICTED)
        elif not isinstance(value, dict):
            yield Problem(f"{path}.{source}", "", f"{rules.TEMPLATE_TYPE}: a mapping")


def _container(container: Mapping[str, Any], path: str) -> _Found:
    good = True
    for problem in _fields(container, CONTAINER_FIELDS, path):
        good = False
        yield problem
    if not good:
        return
    for number, variable in enumerate(container.get("env", [])):
        name = variable.get("name")
        if not isinstance(name, str):
            yield Problem(f"{path}.env.{number}.name", "", "is required")
        elif name.startswith("DILOCO_") or name == "TMPDIR":
            yield Problem(f"{path}.env.{number}.name", name, rules.TEMPLATE_OURS)
    for number, mount in enumerate(container.get("volumeMounts", [])):
        at = f"{path}.volumeMounts.{number}"
        if not isinstance(mount.get("name"), str) or not isinstance(mount.get("mountPath"), str):
            yield Problem(at, "", "needs name and mountPath")
        elif mount["name"] in OUR_VOLUMES:
            yield Problem(f"{at}.name", mount["name"], rules.TEMPLATE_OURS)
        elif _is_ours(mount["mountPath"]):
            yield Problem(f"{at}.mountPath", mount["mountPath"], rules.TEMPLATE_OURS)


def _is_ours(path: str) -> bool:
    """Also by another spelling, and anywhere inside."""
    plain = PurePosixPath("/" + normpath(path).strip("/"))
    return any(plain.is_relative_to(ours) for ours in _OUR_PATHS)

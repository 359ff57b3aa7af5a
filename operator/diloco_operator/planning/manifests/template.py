"""A user's pod template applied to a pod we built: a strategic merge of the fields that may be there.

Lists are added to (variables by name), mappings are merged, everything else is replaced; labels of ours stay. What a
template may hold is checked before a job is accepted (`diloco_api.pod_template`).
"""

from collections.abc import Mapping
from typing import Any

from diloco_operator.planning.types import Manifest, ObjectKey

_SECRETS = frozenset({"secret", "secretRef", "secretKeyRef", "nodePublishSecretRef"})
_CONFIG_MAPS = frozenset({"configMap", "configMapRef", "configMapKeyRef"})


def patched(pod: Manifest, template: Mapping[str, Any] | None) -> Manifest:
    """`pod` (metadata and spec with one container) changed by the template."""
    if not template:
        return pod
    metadata, spec = template.get("metadata", {}), template.get("spec", {})
    merged = _merged(pod["spec"], {key: value for key, value in spec.items() if key != "containers"})
    for container in spec.get("containers", []):
        merged["containers"] = [_container(merged["containers"][0], container)]
    own = pod["metadata"]
    labels = metadata.get("labels", {}) | own["labels"]
    annotations = metadata.get("annotations", {}) | own.get("annotations", {})
    return {
        **pod,
        "metadata": {**own, "labels": labels, **({"annotations": annotations} if annotations else {})},
        "spec": merged,
    }


def renamed(template: Mapping[str, Any] | None, new_names: Mapping[ObjectKey, str]) -> Mapping[str, Any] | None:
    """The template with Secrets and ConfigMaps called what they are called at another site."""
    if template is None or not new_names:
        return template
    found = _renamed(template, "", new_names)
    assert isinstance(found, dict), "a mapping stays one"
    return found


def _container(own: Manifest, change: Mapping[str, Any]) -> Manifest:
    given = {key: value for key, value in change.items() if key not in ("name", "env")}
    variables = {variable["name"]: variable for variable in [*own["env"], *change.get("env", [])]}
    return {**_merged(own, given), "env": list(variables.values())}


def _merged(own: Mapping[str, Any], change: Mapping[str, Any]) -> Manifest:
    found = dict(own)
    for key, value in change.items():
        before = found.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            found[key] = _merged(before, value)
        elif isinstance(before, list) and isinstance(value, list):
            found[key] = [*before, *value]
        else:
            found[key] = value
    return found


def _renamed(node: object, key: str, new_names: Mapping[ObjectKey, str]) -> object:
    if isinstance(node, list):
        inner = "secret" if key == "imagePullSecrets" else ""
        return [_renamed(item, inner, new_names) for item in node]
    if not isinstance(node, dict):
        return node
    kind = "Secret" if key in _SECRETS else "ConfigMap" if key in _CONFIG_MAPS else ""
    found = {name: _renamed(value, name, new_names) for name, value in node.items()}
    for field in ("name", "secretName"):
        new = new_names.get((kind, str(found.get(field, ""))))
        if new is not None:
            found[field] = new
    return found

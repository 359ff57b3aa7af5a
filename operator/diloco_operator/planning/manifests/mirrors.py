"""Copies of the Secrets and ConfigMaps of `spec.propagate` at a site that is not the hub."""

from collections.abc import Iterable, Mapping

from diloco_api import names
from diloco_operator.planning.manifests.common import Home, encoded, finished_object, labels
from diloco_operator.planning.propagation import propagated_keys
from diloco_operator.planning.types import Manifest, ObjectKey

_TYPES = {".dockerconfigjson": "kubernetes.io/dockerconfigjson", ".dockercfg": "kubernetes.io/dockercfg"}
"""Types of Secrets that are of use only with their type, by the key they have."""


def mirror_names(home: Home) -> dict[ObjectKey, str]:
    """What copies are called at a site; nothing at the hub, where the originals are."""
    if home.hub:
        return {}
    return {key: names.mirror_name(home.name, home.uid, key[1]) for key in propagated_keys(home.job)}


def mirrors(home: Home, content: Mapping[ObjectKey, Mapping[str, bytes]]) -> Iterable[Manifest]:
    """The copies of what there is."""
    for key, name in mirror_names(home).items():
        if key not in content:
            continue
        kind, data = key[0], content[key]
        body = _secret(data) if kind == "Secret" else _config_map(data)
        yield finished_object("v1", kind, name, home, labels(home), body)


def _secret(data: Mapping[str, bytes]) -> Manifest:
    kind = next((type_ for key, type_ in _TYPES.items() if key in data), "Opaque")
    return {"type": kind, "data": encoded(data)}


def _config_map(data: Mapping[str, bytes]) -> Manifest:
    texts, binaries = {}, {}
    for key, value in data.items():
        try:
            texts[key] = value.decode()
        except UnicodeDecodeError:
            binaries[key] = value
    return {"data": texts, **({"binaryData": encoded(binaries)} if binaries else {})}

"""Volumes of a pod as local folders: ConfigMaps, Secrets, claims and scratch space, and paths mapped onto them.

A ConfigMap or Secret is one folder per object, rewritten in place when it changes, as the kubelet does for mounted
ones. Scratch folders (emptyDir) start empty and, unlike in a cluster, are kept after the pod for people and tests to
read.
"""

import base64
import shutil
from collections.abc import Mapping
from pathlib import Path

from diloco_operator.files import write_atomically
from diloco_operator.sites.site import Manifest, SiteInvalid

_FOLDERS = {"ConfigMap": "configmaps", "Secret": "secrets", "PersistentVolumeClaim": "claims"}
_SOURCES = {"configMap": ("ConfigMap", "name"), "secret": ("Secret", "secretName")}
_CLAIM = "persistentVolumeClaim"


class MissingObject(Exception):
    """A volume names an object that does not exist (yet)."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f'{kind.lower()} "{name}" not found')


def secret_values(manifest: Manifest) -> dict[str, bytes]:
    """The decoded entries of a Secret manifest."""
    encoded = {key: base64.b64decode(value) for key, value in manifest.get("data", {}).items()}
    return encoded | {key: value.encode() for key, value in manifest.get("stringData", {}).items()}


def localise(value: str, mounts: Mapping[str, Path]) -> str:
    """`value` with a leading mount path (also after `--flag=`) replaced by the local folder; the longest mount wins."""
    prefix, separator, path = value.rpartition("=") if value.startswith("-") else ("", "", value)
    for mount in sorted(mounts, key=len, reverse=True):
        if path == mount or path.startswith(mount + "/"):
            return f"{prefix}{separator}{mounts[mount]}{path[len(mount) :]}"
    return value


def check_volumes(pod_spec: Manifest) -> None:
    """Raise SiteInvalid naming the first volume or mount a local process cannot be given."""
    names = set()
    for volume in pod_spec.get("volumes", []):
        names.add(volume["name"])
        if not {*_SOURCES, "emptyDir", _CLAIM} & volume.keys():
            raise SiteInvalid(f"volume {volume['name']}: a local process cannot be given {sorted(volume)}")
    for mount in pod_spec["containers"][0].get("volumeMounts", []):
        if mount["name"] not in names:
            raise SiteInvalid(f"volumeMount {mount['mountPath']}: no volume named {mount['name']}")


class Volumes:
    """The folders below one site's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._present: set[tuple[str, str]] = set()

    def object_folder(self, kind: str, name: str) -> Path:
        """Where the content of a ConfigMap, Secret or PersistentVolumeClaim lies."""
        return self._folder / _FOLDERS[kind] / name

    def materialise(self, manifest: Manifest) -> None:
        """Write the content of a ConfigMap or Secret; make the folder of a claim (content is kept)."""
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        folder = self.object_folder(kind, name)
        secret = kind == "Secret"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700 if secret else 0o755)
        if kind != "PersistentVolumeClaim":
            plain = {key: value.encode() for key, value in manifest.get("data", {}).items()}
            values = secret_values(manifest) if secret else plain
            for key, value in values.items():
                write_atomically(folder / key, value, mode=0o600 if secret else 0o644)
            for path in folder.iterdir():
                if path.name not in values:
                    path.unlink()
        self._present.add((kind, name))

    def discard(self, kind: str, name: str) -> None:
        """Remove an object's folder with its content."""
        self._present.discard((kind, name))
        shutil.rmtree(self.object_folder(kind, name), ignore_errors=True)

    def forget_content(self) -> None:
        """Remove what an earlier run left of ConfigMaps and Secrets; claims are kept."""
        for kind in ("ConfigMap", "Secret"):
            shutil.rmtree(self._folder / _FOLDERS[kind], ignore_errors=True)

    def prepare(self, pod: Manifest, *, fresh: bool) -> dict[str, Path]:
        """Mount path -> local folder of a pod's first container. `fresh` empties its scratch folders.

        Raises MissingObject when a named object is absent.
        """
        sources: dict[str, Path] = {v["name"]: self._source(pod, v, fresh) for v in pod["spec"].get("volumes", [])}
        mounts = pod["spec"]["containers"][0].get("volumeMounts", [])
        return {m["mountPath"].rstrip("/"): sources[m["name"]] / m.get("subPath", "") for m in mounts}

    def _source(self, pod: Manifest, volume: Manifest, fresh: bool) -> Path:
        for source, (kind, key) in _SOURCES.items():
            if source in volume:
                return self._existing(kind, volume[source][key])
        if _CLAIM in volume:
            return self._existing("PersistentVolumeClaim", volume[_CLAIM]["claimName"])
        folder = self._folder.joinpath("pods", pod["metadata"]["name"], volume["name"])
        if fresh:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _existing(self, kind: str, name: str) -> Path:
        if (kind, name) not in self._present:
            raise MissingObject(kind, name)
        return self.object_folder(kind, name)

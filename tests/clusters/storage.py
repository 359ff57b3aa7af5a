"""Persistent volumes: `local` folders of the nodes, for claims of pods.

StorageClass `local` binds when a pod uses the claim (WaitForFirstConsumer), like the usual cloud classes. Volumes are
folders of root, as a provisioner makes them: a pod that runs as somebody else needs `fsGroup`.
"""

import itertools
import shutil

from clusters.api import Api, Object
from clusters.layout import NodeLayout, SiteLayout

STORAGE_CLASS = "local"


def class_objects() -> list[Object]:
    return [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {
                "name": STORAGE_CLASS,
                "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
            },
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
            "reclaimPolicy": "Retain",
        }
    ]


def provide(site: SiteLayout, node: NodeLayout, count: int, size: str = "20Gi") -> None:
    """See to it that the node has so many free volumes; released ones are emptied and offered again."""
    api, free = Api(site), 0
    for index in itertools.count():
        if free == count:
            return
        name = f"{node.name}-{index}"
        found = api.get("v1", "PersistentVolume", None, name)
        phase = found.get("status", {}).get("phase") if found else None
        if phase in ("Released", "Failed"):
            api.delete("v1", "PersistentVolume", None, name)
            shutil.rmtree(site.volumes / name)
            found = None
        if found is None:
            (site.volumes / name).mkdir(parents=True, exist_ok=True)
            api.apply(_volume(name, str(site.volumes / name), size, "kubernetes.io/hostname", node.name))
        free += phase != "Bound"


def read_only_volume(site: SiteLayout, namespace: str, claim: str, path: str) -> list[Object]:
    """A folder that every node of the site has, and a claim bound to it beforehand."""
    volume = _volume(f"{namespace}-{claim}", path, "1Gi", "topology.kubernetes.io/region", site.name)
    volume["spec"] |= {
        "accessModes": ["ReadOnlyMany"],
        "storageClassName": "",
        "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": claim},
    }
    claim_object = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": claim, "namespace": namespace},
        "spec": {
            "accessModes": ["ReadOnlyMany"],
            "storageClassName": "",
            "volumeName": volume["metadata"]["name"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    return [volume, claim_object]


def _volume(name: str, path: str, size: str, label: str, value: str) -> Object:
    term = {"matchExpressions": [{"key": label, "operator": "In", "values": [value]}]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": STORAGE_CLASS,
            "local": {"path": path},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        },
    }

"""What all our objects share: labels, names, the hash by which drift is noticed, the restricted security profile."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass

from diloco_api import names
from diloco_api.names import Role
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.planning.types import Manifest

FIELD_MANAGER = "diloco-operator"
SCRATCH_VOLUME, SHM_VOLUME, CONFIG_VOLUME = "scratch", "shm", "config"
ADDRESS_VOLUME, CREDENTIALS_VOLUME, STATE_VOLUME = "address", "credentials", "state"


@dataclass(frozen=True)
class Home:
    """Where objects of a job are put, and how they are marked there."""

    job: DiLoCoJob
    namespace: str
    origin: str = ""
    cluster: bool = False
    """Else one machine."""
    hub: bool = True
    """The cluster the job itself is in."""
    fs_group: int | None = None

    @property
    def name(self) -> str:
        return self.job.metadata.name

    @property
    def uid(self) -> str:
        return self.job.metadata.uid


def labels(home: Home, role: Role | None = None) -> dict[str, str]:
    """The labels of every object of a job."""
    metadata = home.job.metadata
    found = {
        "app.kubernetes.io/name": "diloco",
        "app.kubernetes.io/instance": names.label_value(metadata.name),
        "app.kubernetes.io/part-of": "diloco",
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        names.LABEL_JOB_NAME: names.label_value(metadata.name),
        names.LABEL_JOB_NAMESPACE: names.label_value(metadata.namespace),
        names.LABEL_JOB_UID: metadata.uid,
    }
    if home.origin:
        found[names.LABEL_ORIGIN] = names.label_value(home.origin)
    if role is not None:
        found |= {"app.kubernetes.io/component": role.value, names.LABEL_ROLE: role.value}
    return found


def selector(job: DiLoCoJob) -> str:
    """Of the job's Learner pods, for the scale subresource."""
    return f"{names.LABEL_JOB_UID}={job.metadata.uid},{names.LABEL_ROLE}={Role.LEARNER.value}"


def matching(home: Home, role: Role) -> dict[str, str]:
    """Labels by which the pods of a role are found."""
    return {names.LABEL_JOB_UID: home.uid, names.LABEL_ROLE: role.value}


def finished_object(
    api_version: str,
    kind: str,
    name: str,
    home: Home,
    own_labels: Mapping[str, str],
    body: Manifest,
    annotations: Mapping[str, str] | None = None,
    decided: Mapping[str, object] | None = None,
) -> Manifest:
    """An object with its spec-hash. The hash covers everything given here, also a Secret's content.

    `decided`: what it covers instead, where a change of the object does harm: what the user and acceptance decided,
    not how this operator writes it down. What is not set is left out, so that an operator that knows more to decide
    finds the hashes of its predecessor.

    Only what lies beside the job is owned by it: a cluster would delete what belongs to an owner it does not know.
    """
    metadata: Manifest = {"name": name, "namespace": home.namespace, "labels": dict(own_labels)}
    if annotations:
        metadata["annotations"] = dict(annotations)
    if home.cluster and home.hub:
        metadata["ownerReferences"] = [owner(home)]
    manifest: Manifest = {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}
    hashed = manifest if decided is None else {key: value for key, value in decided.items() if value}
    own = {names.ANNOTATION_SPEC_HASH: names.spec_hash(hashed)}
    metadata["annotations"] = metadata.get("annotations", {}) | own
    return manifest


def owner(home: Home) -> Manifest:
    """The job as the controller of an object."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": home.name,
        "uid": home.uid,
        "controller": True,
    }


def encoded(files: Mapping[str, bytes]) -> dict[str, str]:
    """Content of a Secret."""
    return {name: base64.b64encode(content).decode() for name, content in files.items()}


def environment(values: Mapping[str, str]) -> list[Manifest]:
    return [{"name": name, "value": value} for name, value in values.items()]


def pod_security(home: Home) -> Manifest:
    """Pod level of the restricted profile; no fixed user, so that platforms may choose one.

    Without a group of the pod's own a volume belongs to root, and nobody else can write it.
    """
    found: Manifest = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if home.cluster and home.fs_group is not None:
        found |= {"fsGroup": home.fs_group, "fsGroupChangePolicy": "OnRootMismatch"}
    return found


def leaves_lost_nodes(seconds: int) -> list[Manifest]:
    """Tolerations with which a pod leaves a node this long after it was last heard; Kubernetes' own default is 300."""
    return [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    ]


def container_security() -> Manifest:
    """Container level of the restricted profile, and a read-only root."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def scratch_volumes() -> list[Manifest]:
    """Room for temporary files, and shared memory, as the root file system is read-only."""
    return [
        {"name": SCRATCH_VOLUME, "emptyDir": {}},
        {"name": SHM_VOLUME, "emptyDir": {"medium": "Memory"}},
    ]


def scratch_mounts() -> list[Manifest]:
    return [
        {"name": SCRATCH_VOLUME, "mountPath": names.MOUNT_SCRATCH},
        {"name": SHM_VOLUME, "mountPath": "/dev/shm"},
    ]


def config_volume(name: str, config_map: str) -> Manifest:
    return {"name": name, "configMap": {"name": config_map}}


def secret_volume(secret: str) -> Manifest:
    """Readable by the pod's own group alone: with an arbitrary user, the files belong to root and the pod's group."""
    return {"name": CREDENTIALS_VOLUME, "secret": {"secretName": secret, "defaultMode": 0o440}}


def read_only(volume: str, path: str) -> Manifest:
    return {"name": volume, "mountPath": path, "readOnly": True}

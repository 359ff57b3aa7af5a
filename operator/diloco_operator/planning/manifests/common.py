"""What all our objects share: labels, names, the hash by which drift is noticed, the restricted security profile."""

from collections.abc import Mapping

from diloco_api import names
from diloco_api.names import Role
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.planning.types import Manifest

TEMPLATE_VERSION = 1
"""Of the pod templates; a job keeps the one it was accepted with."""
FIELD_MANAGER = "diloco-operator"
SCRATCH_VOLUME, SHM_VOLUME, CONFIG_VOLUME = "scratch", "shm", "config"
ADDRESS_VOLUME, CREDENTIALS_VOLUME, STATE_VOLUME = "address", "credentials", "state"


def labels(job: DiLoCoJob, role: Role | None = None) -> dict[str, str]:
    """The labels of every object of a job."""
    metadata = job.metadata
    found = {
        "app.kubernetes.io/name": "diloco",
        "app.kubernetes.io/instance": names.label_value(metadata.name),
        "app.kubernetes.io/part-of": "diloco",
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        names.LABEL_JOB_NAME: names.label_value(metadata.name),
        names.LABEL_JOB_NAMESPACE: names.label_value(metadata.namespace),
        names.LABEL_JOB_UID: metadata.uid,
    }
    if role is not None:
        found |= {"app.kubernetes.io/component": role.value, names.LABEL_ROLE: role.value}
    return found


def selector(job: DiLoCoJob) -> str:
    """Of the job's Learner pods, for the scale subresource."""
    return f"{names.LABEL_JOB_UID}={job.metadata.uid},{names.LABEL_ROLE}={Role.LEARNER.value}"


def finished_object(
    api_version: str, kind: str, name: str, job: DiLoCoJob, own_labels: Mapping[str, str], body: Manifest
) -> Manifest:
    """An object with its spec-hash. The hash covers everything given here, also a Secret's content."""
    manifest: Manifest = {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": name, "namespace": job.metadata.namespace, "labels": dict(own_labels)},
        **body,
    }
    manifest["metadata"]["annotations"] = {names.ANNOTATION_SPEC_HASH: names.spec_hash(manifest)}
    return manifest


def environment(values: Mapping[str, str]) -> list[Manifest]:
    return [{"name": name, "value": value} for name, value in values.items()]


def pod_security() -> Manifest:
    """Pod level of the restricted profile; no fixed user, so that platforms may choose one."""
    return {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


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

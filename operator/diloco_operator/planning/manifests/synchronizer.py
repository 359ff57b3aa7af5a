"""Deployment, Secret and volume claim of the Synchronizer."""

import base64

from diloco_api import names
from diloco_api.names import Role
from diloco_api.status import PortsStatus
from diloco_api.timeouts import Timeouts
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.planning.manifests import common
from diloco_operator.planning.types import Manifest

STORAGE_REQUEST = "10Gi"


def synchronizer_secret(job: DiLoCoJob, key: bytes) -> Manifest:
    """The key of the job's tokens, mounted by the Synchronizer only."""
    name = names.synchronizer_name(job.metadata.name, job.metadata.uid)
    body = {"type": "Opaque", "data": {names.FILE_KEY: base64.b64encode(key).decode()}}
    return common.finished_object("v1", "Secret", name, job, common.labels(job, Role.SYNCHRONIZER), body)


def state_claim(job: DiLoCoJob) -> Manifest:
    """Log, index and snapshots; kept when the job has ended."""
    name = names.synchronizer_name(job.metadata.name, job.metadata.uid)
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": STORAGE_REQUEST}}}
    own_labels = common.labels(job, Role.SYNCHRONIZER)
    return common.finished_object("v1", "PersistentVolumeClaim", name, job, own_labels, {"spec": spec})


def synchronizer_deployment(job: DiLoCoJob, ports: PortsStatus, site: str, image: str, timeouts: Timeouts) -> Manifest:
    """One replica, Recreate: there is never a second writer. Its restart restarts no Learner."""
    own_labels = common.labels(job, Role.SYNCHRONIZER)
    match = {key: own_labels[key] for key in (names.LABEL_JOB_UID, names.LABEL_ROLE)}
    spec = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": match},
        "template": {"metadata": {"labels": own_labels}, "spec": _pod_spec(job, ports, site, image, timeouts)},
    }
    name = names.synchronizer_name(job.metadata.name, job.metadata.uid)
    return common.finished_object("apps/v1", "Deployment", name, job, own_labels, {"spec": spec})


def _pod_spec(job: DiLoCoJob, ports: PortsStatus, site: str, image: str, timeouts: Timeouts) -> Manifest:
    name = names.synchronizer_name(job.metadata.name, job.metadata.uid)
    return {
        "terminationGracePeriodSeconds": int(timeouts.grace_period_seconds),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": common.pod_security(),
        "containers": [_container(ports, site, image)],
        "volumes": [
            common.config_volume(common.CONFIG_VOLUME, names.config_name(job.metadata.name, job.metadata.uid)),
            common.secret_volume(name),
            {"name": common.STATE_VOLUME, "persistentVolumeClaim": {"claimName": name}},
            *common.scratch_volumes(),
        ],
    }


def _container(ports: PortsStatus, site: str, image: str) -> Manifest:
    variables = {
        names.ENV_ROLE: Role.SYNCHRONIZER.value,
        names.ENV_SITE: site,
        names.ENV_CONFIG_DIR: names.MOUNT_CONFIG,
        names.ENV_CREDENTIALS_DIR: names.MOUNT_CREDENTIALS,
        names.ENV_STATE_DIR: names.MOUNT_STATE,
        names.ENV_SCRATCH_DIR: names.MOUNT_SCRATCH,
        "TMPDIR": names.MOUNT_SCRATCH,
    }
    return {
        "name": Role.SYNCHRONIZER.value,
        "image": image,
        "command": list(names.SYNCHRONIZER_COMMAND),
        "env": common.environment(variables),
        "ports": [
            {"name": "grpc", "containerPort": ports.synchronizer},
            {"name": "admin", "containerPort": ports.admin},
            {"name": "metrics", "containerPort": ports.metrics},
        ],
        "readinessProbe": {"tcpSocket": {"port": "grpc"}, "periodSeconds": 5},
        "securityContext": common.container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            common.read_only(common.CONFIG_VOLUME, names.MOUNT_CONFIG),
            common.read_only(common.CREDENTIALS_VOLUME, names.MOUNT_CREDENTIALS),
            {"name": common.STATE_VOLUME, "mountPath": names.MOUNT_STATE},
            *common.scratch_mounts(),
        ],
    }

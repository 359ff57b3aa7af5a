"""Deployment, Secret, volume claim and Services of the Synchronizer."""

from collections.abc import Mapping

from diloco_api import names
from diloco_api.names import Role
from diloco_api.status import PortsStatus, ResolvedStatus
from diloco_api.timeouts import Timeouts
from diloco_operator.planning.manifests import common
from diloco_operator.planning.manifests.common import Home
from diloco_operator.planning.manifests.template import patched
from diloco_operator.planning.types import Manifest

TOLERATION_SECONDS = 30
GRPC, ADMIN, METRICS = "grpc", "admin", "metrics"
"""Names of ports."""


def synchronizer_secret(home: Home, files: Mapping[str, bytes]) -> Manifest:
    """The key of the job's tokens and the server's certificate, mounted by the Synchronizer only."""
    body = {"type": "Opaque", "data": common.encoded(files)}
    return _object("v1", "Secret", home, body)


def state_claim(home: Home) -> Manifest:
    """Log, index and snapshots; kept when the job has ended, gone with the job."""
    storage = home.job.spec.synchronizer.storage
    spec: Manifest = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage.size}}}
    if storage.storage_class_name is not None:
        spec["storageClassName"] = storage.storage_class_name
    return _object("v1", "PersistentVolumeClaim", home, {"spec": spec})


def internal_service(home: Home, ports: PortsStatus) -> Manifest:
    """By which the hub's Learners, the operator and the monitoring reach it, also before it is ready."""
    numbers = {GRPC: ports.synchronizer, ADMIN: ports.admin, METRICS: ports.metrics}
    spec = {
        "type": "ClusterIP",
        "selector": common.matching(home, Role.SYNCHRONIZER),
        "publishNotReadyAddresses": True,
        "ports": [_service_port(name, port) for name, port in numbers.items()],
    }
    return _object("v1", "Service", home, {"spec": spec})


def external_service(home: Home, ports: PortsStatus) -> Manifest:
    """By which Learners of other clusters reach it: nothing but the wire."""
    spec = {
        "type": home.job.spec.synchronizer.exposure.type,
        "selector": common.matching(home, Role.SYNCHRONIZER),
        "ports": [_service_port(GRPC, ports.synchronizer)],
    }
    name = names.external_name(home.name, home.uid)
    return common.finished_object("v1", "Service", name, home, common.labels(home, Role.SYNCHRONIZER), {"spec": spec})


def synchronizer_deployment(
    home: Home, resolved: ResolvedStatus, site: str, image: str, timeouts: Timeouts
) -> Manifest:
    """One replica, Recreate: there is never a second writer. Its restart restarts no Learner.

    It stays as it was built until something is decided otherwise: an operator that would write it in another way, or
    was configured otherwise, restarts no Synchronizer.
    """
    job, ports = home.job.spec, resolved.ports
    priority, template = (job.priority_class_name, job.synchronizer.template) if home.cluster else (None, None)
    body = _pod_spec(home, ports, site, image, timeouts)
    pod: Manifest = {"metadata": {"labels": common.labels(home, Role.SYNCHRONIZER)}, "spec": body}
    if priority is not None:
        body["priorityClassName"] = priority
    pod = patched(pod, template)
    decided = {
        "templateVersion": resolved.template_version,
        "image": resolved.images.trainer,
        "ports": [ports.synchronizer, ports.admin, ports.metrics],
        "priorityClassName": priority,
        "template": template,
    }
    spec = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": common.matching(home, Role.SYNCHRONIZER)},
        "template": pod,
    }
    return _object("apps/v1", "Deployment", home, {"spec": spec}, decided)


def _object(
    api_version: str, kind: str, home: Home, body: Manifest, decided: Mapping[str, object] | None = None
) -> Manifest:
    name, own = names.synchronizer_name(home.name, home.uid), common.labels(home, Role.SYNCHRONIZER)
    return common.finished_object(api_version, kind, name, home, own, body, decided=decided)


def _service_port(name: str, port: int) -> Manifest:
    return {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}


def _pod_spec(home: Home, ports: PortsStatus, site: str, image: str, timeouts: Timeouts) -> Manifest:
    name = names.synchronizer_name(home.name, home.uid)
    return {
        "terminationGracePeriodSeconds": int(timeouts.grace_period_seconds),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": common.pod_security(home),
        "tolerations": common.leaves_lost_nodes(TOLERATION_SECONDS),
        "containers": [_container(ports, site, image)],
        "volumes": [
            common.config_volume(common.CONFIG_VOLUME, names.config_name(home.name, home.uid)),
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
            {"name": GRPC, "containerPort": ports.synchronizer},
            {"name": ADMIN, "containerPort": ports.admin},
            {"name": METRICS, "containerPort": ports.metrics},
        ],
        "readinessProbe": {"tcpSocket": {"port": GRPC}, "periodSeconds": 5},
        "securityContext": common.container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            common.read_only(common.CONFIG_VOLUME, names.MOUNT_CONFIG),
            common.read_only(common.CREDENTIALS_VOLUME, names.MOUNT_CREDENTIALS),
            {"name": common.STATE_VOLUME, "mountPath": names.MOUNT_STATE},
            *common.scratch_mounts(),
        ],
    }

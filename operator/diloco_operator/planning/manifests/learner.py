"""Pod and Secret of one incarnation of a Learner."""

from collections.abc import Mapping
from dataclasses import dataclass

from diloco_api import names
from diloco_api.names import Role
from diloco_api.sites import NodePoolSpec
from diloco_api.status import LearnerStatus
from diloco_api.timeouts import Timeouts
from diloco_operator.planning.manifests import common
from diloco_operator.planning.manifests.common import Home
from diloco_operator.planning.manifests.template import patched, renamed
from diloco_operator.planning.types import Manifest, ObjectKey

TOLERATION_SECONDS = 300
"""That a Learner is dead is told by its heartbeats long before; one that is heard is left where its kubelet is away."""


@dataclass(frozen=True)
class LearnerKit:
    """What all Learner pods of a site have in common."""

    home: Home
    attempt: int
    image: str
    timeouts: Timeouts
    metrics_port: int
    mirrors: Mapping[ObjectKey, str]
    """What propagated Secrets and ConfigMaps are called there, where that is something else."""


def learner_labels(home: Home, row: LearnerStatus, attempt: int) -> dict[str, str]:
    """Labels of what belongs to one incarnation."""
    return common.labels(home, Role.LEARNER) | {
        names.LABEL_LEARNER_INDEX: str(row.index),
        names.LABEL_INCARNATION: str(row.incarnation),
        names.LABEL_SITE: names.label_value(row.site),
        names.LABEL_EXECUTION_ATTEMPT: str(attempt),
    }


def learner_secret(home: Home, row: LearnerStatus, attempt: int, files: Mapping[str, bytes]) -> Manifest:
    """The credentials of one incarnation, mounted by its pod only."""
    body = {"type": "Opaque", "data": common.encoded(files)}
    return common.finished_object("v1", "Secret", row.pod_name, home, learner_labels(home, row, attempt), body)


def learner_pod(kit: LearnerKit, row: LearnerStatus, pool: NodePoolSpec | None) -> Manifest:
    """The pod of one incarnation. restartPolicy Never: a new life is a new incarnation.

    `pool`: on which nodes; None on one machine, where templates mean nothing either.
    """
    home, spec = kit.home, kit.home.job.spec
    body: Manifest = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": int(kit.timeouts.grace_period_seconds),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": common.pod_security(home),
        "tolerations": common.leaves_lost_nodes(TOLERATION_SECONDS),
        "containers": [_container(kit, row)],
        "volumes": [
            common.config_volume(common.CONFIG_VOLUME, names.config_name(home.name, home.uid)),
            common.config_volume(common.ADDRESS_VOLUME, names.address_name(home.name, home.uid)),
            common.secret_volume(row.pod_name),
            *common.scratch_volumes(),
        ],
    }
    pod: Manifest = {"metadata": {"labels": learner_labels(home, row, kit.attempt)}, "spec": body}
    if pool is not None:
        if spec.priority_class_name is not None:
            body["priorityClassName"] = spec.priority_class_name
        _place_on(body, pool, spec.learners.gpus)
        pod = patched(pod, renamed(spec.learners.template, kit.mirrors))
    labels, annotations = pod["metadata"]["labels"], pod["metadata"].get("annotations")
    return common.finished_object("v1", "Pod", row.pod_name, home, labels, {"spec": pod["spec"]}, annotations)


def _place_on(body: Manifest, pool: NodePoolSpec, gpus: int) -> None:
    """Nodes of the pool, and their GPUs; a Learner that asks for none must not try to use one."""
    device = "cpu" if gpus == 0 else pool.device
    (container,) = body["containers"]
    container["env"] += common.environment({names.ENV_DEVICE: device})
    if device == "cuda":
        container["resources"] = {"limits": {pool.gpu_resource: str(gpus)}}
    if pool.node_selector:
        body["nodeSelector"] = dict(pool.node_selector)
    body["tolerations"] = [*body["tolerations"], *pool.tolerations]


def _container(kit: LearnerKit, row: LearnerStatus) -> Manifest:
    variables = {
        names.ENV_ROLE: Role.LEARNER.value,
        names.ENV_LEARNER_INDEX: str(row.index),
        names.ENV_INCARNATION: str(row.incarnation),
        names.ENV_SITE: row.site,
        names.ENV_CONFIG_DIR: names.MOUNT_CONFIG,
        names.ENV_ADDRESS_DIR: names.MOUNT_ADDRESS,
        names.ENV_CREDENTIALS_DIR: names.MOUNT_CREDENTIALS,
        names.ENV_SCRATCH_DIR: names.MOUNT_SCRATCH,
        "TMPDIR": names.MOUNT_SCRATCH,
    }
    found: Manifest = {
        "name": Role.LEARNER.value,
        "image": kit.image,
        "command": list(names.LEARNER_COMMAND),
        "env": common.environment(variables),
        "securityContext": common.container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            common.read_only(common.CONFIG_VOLUME, names.MOUNT_CONFIG),
            common.read_only(common.ADDRESS_VOLUME, names.MOUNT_ADDRESS),
            common.read_only(common.CREDENTIALS_VOLUME, names.MOUNT_CREDENTIALS),
            *common.scratch_mounts(),
        ],
    }
    if kit.metrics_port:
        found["ports"] = [{"name": "metrics", "containerPort": kit.metrics_port}]
    return found

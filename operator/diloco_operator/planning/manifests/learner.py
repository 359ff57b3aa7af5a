"""Pod and Secret of one incarnation of a Learner."""

from diloco_api import names
from diloco_api.names import Role
from diloco_api.status import LearnerStatus
from diloco_api.timeouts import Timeouts
from diloco_api.tokens import make_token
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.planning.manifests import common
from diloco_operator.planning.types import Manifest

TOLERATION_SECONDS = 30
"""A Learner leaves a node this long after the node was last heard; Kubernetes' own default is 300."""


def learner_labels(job: DiLoCoJob, row: LearnerStatus, attempt: int) -> dict[str, str]:
    """Labels of what belongs to one incarnation."""
    return common.labels(job, Role.LEARNER) | {
        names.LABEL_LEARNER_INDEX: str(row.index),
        names.LABEL_INCARNATION: str(row.incarnation),
        names.LABEL_SITE: names.label_value(row.site),
        names.LABEL_EXECUTION_ATTEMPT: str(attempt),
    }


def learner_secret(job: DiLoCoJob, row: LearnerStatus, attempt: int, key: bytes) -> Manifest:
    """The bearer token of one incarnation, mounted by its pod only."""
    token = make_token(key, job.metadata.uid, row.index, row.incarnation)
    body = {"type": "Opaque", "stringData": {names.FILE_TOKEN: token}}
    return common.finished_object("v1", "Secret", row.pod_name, job, learner_labels(job, row, attempt), body)


def learner_pod(job: DiLoCoJob, row: LearnerStatus, attempt: int, image: str, timeouts: Timeouts) -> Manifest:
    """The pod of one incarnation. restartPolicy Never: a new life is a new incarnation."""
    config_map = names.config_name(job.metadata.name, job.metadata.uid)
    addresses = names.address_name(job.metadata.name, job.metadata.uid)
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": int(timeouts.grace_period_seconds),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": common.pod_security(),
        "tolerations": [
            {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATION_SECONDS}
            for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
        ],
        "containers": [_container(row, image)],
        "volumes": [
            common.config_volume(common.CONFIG_VOLUME, config_map),
            common.config_volume(common.ADDRESS_VOLUME, addresses),
            common.secret_volume(row.pod_name),
            *common.scratch_volumes(),
        ],
    }
    return common.finished_object("v1", "Pod", row.pod_name, job, learner_labels(job, row, attempt), {"spec": spec})


def _container(row: LearnerStatus, image: str) -> Manifest:
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
    return {
        "name": Role.LEARNER.value,
        "image": image,
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

"""Every name two parts of the system must agree on: labels, objects, variables, folders, ports.

Strings only; what is done with them is decided elsewhere. Words of the status: `states`; metric names
live with the metrics.
"""

import json
import re
from collections.abc import Mapping
from enum import StrEnum
from hashlib import sha256

GROUP = "diloco.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "DiLoCoJob"
PLURAL = "dilocojobs"
SINGULAR = "dilocojob"
SHORT_NAME = "dlj"

LABEL_JOB_NAME = f"{GROUP}/job-name"
LABEL_JOB_NAMESPACE = f"{GROUP}/job-namespace"
LABEL_JOB_UID = f"{GROUP}/job-uid"
LABEL_ROLE = f"{GROUP}/role"
LABEL_SITE = f"{GROUP}/site"
LABEL_LEARNER_INDEX = f"{GROUP}/learner-index"
LABEL_INCARNATION = f"{GROUP}/incarnation"
LABEL_EXECUTION_ATTEMPT = f"{GROUP}/execution-attempt"
LABEL_ORIGIN = f"{GROUP}/origin"
"""Which installation of the operator made an object: two of them never touch each other's."""
LABEL_DEPLOYMENT = f"{GROUP}/deployment"
"""Set by a site of local processes: which Deployment a pod is of."""
ANNOTATION_SPEC_HASH = f"{GROUP}/spec-hash"
FINALIZER = f"{GROUP}/teardown"
"""On a job from before its first object is created until its last one is gone."""


PROTOCOL_VERSION = 1
"""Of the wire between Learners and Synchronizer; changes when an old peer would misunderstand a new one."""


class Role(StrEnum):
    """Value of the label `role` and of DILOCO_ROLE."""

    LEARNER = "learner"
    SYNCHRONIZER = "synchronizer"


LOCAL_SITE = "local"
"""Name of the one site of a local run."""
HUB_SITE = "hub"
"""Name of the cluster the job is in, unless `spec.sites` gives it another one."""
DEFAULT_POOL = "default"
"""Name of the one node pool of a site that lists none."""

# --- what a process is given --------------------------------------------------------------------------------------

ENV_ROLE = "DILOCO_ROLE"
ENV_LEARNER_INDEX = "DILOCO_LEARNER_INDEX"
ENV_INCARNATION = "DILOCO_INCARNATION"
ENV_SITE = "DILOCO_SITE"
ENV_CONFIG_DIR = "DILOCO_CONFIG_DIR"
ENV_ADDRESS_DIR = "DILOCO_ADDRESS_DIR"
ENV_CREDENTIALS_DIR = "DILOCO_CREDENTIALS_DIR"
ENV_STATE_DIR = "DILOCO_STATE_DIR"
ENV_SCRATCH_DIR = "DILOCO_SCRATCH_DIR"
ENV_DEVICE = "DILOCO_DEVICE"
ENV_THREADS = "DILOCO_THREADS"

MOUNT_CONFIG = "/etc/diloco/config"
MOUNT_ADDRESS = "/etc/diloco/address"
MOUNT_CREDENTIALS = "/etc/diloco/credentials"
MOUNT_STATE = "/var/lib/diloco"
MOUNT_SCRATCH = "/var/tmp/diloco"

FILE_RUN_CONFIG = "run.json"
FILE_ADDRESSES = "addresses"
"""In the address folder: one host:port a line."""
FILE_TOKEN = "token"
"""In a Learner's credentials folder: its bearer token."""
FILE_KEY = "key"
"""In the Synchronizer's credentials folder: the key of the job's tokens."""
FILE_TLS_CERTIFICATE = "tls.crt"
"""In both credentials folders: the process's own certificate, PEM."""
FILE_TLS_KEY = "tls.key"
"""In both credentials folders: the key of that certificate, PEM."""
FILE_CA = "ca.crt"
"""In both credentials folders: the certificates of all CA generations that may have signed the other end's, PEM."""
FILE_TAPE = "tape.jsonl"
"""In a Learner's scratch folder."""
FILE_OUTER = "outer.safetensors"
"""In the Synchronizer's state folder: the final outer parameters."""

SYNCHRONIZER_PORT = 29400
ADMIN_PORT = 29401
METRICS_PORT = 29402

LEARNER_COMMAND = ("python", "-m", "diloco_trainer.learner")
SYNCHRONIZER_COMMAND = ("python", "-m", "diloco_trainer.synchronizer")

# --- names of objects ---------------------------------------------------------------------------------------------

JOB_NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
JOB_NAME_MAX_LENGTH = 63
_CUT = 38  # with 8 hex, an index below 256 and an incarnation of 11 digits a name has at most 63 characters
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


def object_name(job_name: str, job_uid: str, suffix: str) -> str:
    """`<job, cut to 38>-<8 hex of its uid>-<suffix>`: two jobs of one name, now or later, never share an object."""
    return f"{job_name[:_CUT].rstrip('-')}-{job_uid.replace('-', '')[:8].lower()}-{suffix}"


def learner_name(job_name: str, job_uid: str, index: int, incarnation: int) -> str:
    """Pod and Secret of one incarnation of one Learner."""
    return object_name(job_name, job_uid, f"{index}-{incarnation}")


def synchronizer_name(job_name: str, job_uid: str) -> str:
    """Deployment, Service, Secret, PersistentVolumeClaim and policies of the Synchronizer."""
    return object_name(job_name, job_uid, "synchronizer")


def external_name(job_name: str, job_uid: str) -> str:
    """Service by which Learners of other clusters reach the Synchronizer."""
    return object_name(job_name, job_uid, "external")


def learners_name(job_name: str, job_uid: str) -> str:
    """NetworkPolicy of a site's Learners."""
    return object_name(job_name, job_uid, "learners")


def mirror_name(job_name: str, job_uid: str, name: str) -> str:
    """Copy of a propagated Secret or ConfigMap at another site: several jobs may share its namespace."""
    return object_name(job_name, job_uid, f"copy-{name}")


def config_name(job_name: str, job_uid: str) -> str:
    """ConfigMap with the run config."""
    return object_name(job_name, job_uid, "config")


def address_name(job_name: str, job_uid: str) -> str:
    """ConfigMap with the Synchronizer's addresses."""
    return object_name(job_name, job_uid, "address")


def server_name(job_uid: str) -> str:
    """The name in the Synchronizer's certificate, which every client verifies whatever the address it connects to."""
    return f"diloco-{job_uid.lower()}.synchronizer.internal"


def learner_identity(index: int, incarnation: int) -> str:
    """Common name of the certificate of one incarnation of one Learner."""
    return f"learner-{index}-{incarnation}"


def label_value(text: str) -> str:
    """`text` where it is a legal label value, else a readable part of it and a hash; at most 63 characters."""
    if len(text) <= 63 and (not text or _LABEL_VALUE.fullmatch(text)):
        return text
    readable = re.sub(r"[^-A-Za-z0-9_.]", "-", text[:46]).strip("-_.")
    return f"{readable}-{sha256(text.encode()).hexdigest()[:16]}".lstrip("-")


def spec_hash(manifest: Mapping[str, object]) -> str:
    """16 hex digits of a JSON-able manifest: the annotation by which drift is noticed without comparing live specs."""
    return sha256(json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]

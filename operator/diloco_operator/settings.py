"""What the operator is told at its start, flags over environment over defaults; and all of kopf's settings."""

import argparse
import os
import socket
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import kopf

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

_PREFIX = "DILOCO_OPERATOR_"


@dataclass(frozen=True)
class OperatorSettings:
    """One operator process."""

    image: str
    """Of Learners and Synchronizer, where their templates name none."""
    namespaces: tuple[str, ...] = ()
    """Whose jobs are looked after; empty: all."""
    kubeconfig: Path | None = None
    """For a process outside the cluster; None: the pod's own service account."""
    own_namespace: str = "default"
    """Where the Lease and the installation's own Secret are."""
    in_cluster_namespace: str = ""
    """Namespace of the operator's pod, for NetworkPolicies; empty: it does not run in one."""
    monitoring_namespace: str = ""
    """From where metrics are scraped; empty: from nowhere."""
    identity: str = ""
    """Who holds the Lease: this process and no other."""
    predecessors: str = ""
    """How identities begin of earlier processes of this container; empty: it is not known that they are dead."""
    metrics_port: int = 8080
    health_port: int = 8081
    fs_group: int | None = 65532
    """Group of mounted volumes; None where the platform chooses one (OpenShift)."""
    log_level: str = "INFO"


def read_settings(
    arguments: Sequence[str] | None = None,
    environment: Mapping[str, str] = os.environ,
    process_id: int | None = None,
) -> OperatorSettings:
    """Ends the process with a usage message when something is wrong or missing."""
    process_id = os.getpid() if process_id is None else process_id
    parser = _parser(environment)
    given = parser.parse_args(arguments)
    namespaces = given.namespace or environment.get(f"{_PREFIX}NAMESPACE", "").split(",")
    if not given.image:
        parser.error("--image is required: build one with `make images`, and name it here; nothing is published")
    level = given.log_level.upper()
    if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        parser.error(f"--log-level: {given.log_level} is none")
    pod_namespace = _pod_namespace() if not given.kubeconfig else ""
    container = _container(environment)
    try:
        return OperatorSettings(
            image=given.image,
            namespaces=tuple(sorted({name.strip() for name in namespaces if name.strip()})),
            kubeconfig=Path(given.kubeconfig) if given.kubeconfig else None,
            own_namespace=given.lease_namespace or pod_namespace or "default",
            in_cluster_namespace=pod_namespace,
            monitoring_namespace=given.monitoring_namespace,
            identity=f"{container or environment.get('POD_NAME') or socket.gethostname()}-{uuid.uuid4().hex[:8]}",
            predecessors=f"{container}-" if container and process_id == 1 else "",
            health_port=int(given.health_port),
            metrics_port=int(given.metrics_port),
            fs_group=None if given.fs_group.lower() == "none" else int(given.fs_group),
            log_level=level,
        )
    except ValueError as error:
        parser.error(f"ports and groups are numbers: {error}")


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m diloco_operator",
        description=f"The operator of DiLoCoJobs. Every flag may be given as {_PREFIX}<FLAG> in the environment.",
    )

    def add(flag: str, default: str, text: str) -> None:
        variable = f"{_PREFIX}{flag.upper().replace('-', '_')}"
        parser.add_argument(f"--{flag}", default=environment.get(variable, default), help=text)

    add("image", "", "image of Learners and Synchronizer (required)")
    parser.add_argument(
        "--namespace",
        action="append",
        default=None,
        help="look after jobs of this namespace only; may be repeated (in the environment: separated by commas)",
    )
    add("kubeconfig", "", "reach the hub with this file; default: the service account of this pod")
    add("lease-namespace", "", "namespace of the Lease and of this installation's Secret; default: this pod's")
    add("monitoring-namespace", "", "namespace from where metrics are scraped")
    add("metrics-port", "8080", "port of /metrics")
    add("health-port", "8081", "port of /healthz and /readyz")
    add("fs-group", "65532", "group that owns mounted volumes; 'none' where the platform chooses one")
    add("log-level", "INFO", "DEBUG, INFO, WARNING or ERROR")
    return parser


def _container(environment: Mapping[str, str]) -> str:
    """What all processes have in common that run in this container of this pod, one after the other.

    A kubelet starts a container only when it has ended, and all of it ends with its process number 1. Others may be
    started beside that one by hand.
    """
    name, uid = environment.get("POD_NAME"), environment.get("POD_UID")
    return f"{name}_{uid}" if name and uid else ""


def _pod_namespace() -> str:
    return NAMESPACE_FILE.read_text(encoding="utf-8").strip() if NAMESPACE_FILE.exists() else ""


def kopf_settings() -> kopf.OperatorSettings:
    """kopf carries one watch and writes nothing: every setting that could make it do more is decided here."""
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True  # our own Lease decides who acts
    settings.posting.enabled = False  # Events are ours, without repetition
    settings.scanning.disabled = True  # neither CRDs nor namespaces are watched: the API is there or the process ends
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 600
    settings.watching.connect_timeout = 10
    settings.watching.inactivity_timeout = 70
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.networking.error_backoffs = (1, 1, 2, 3, 5, 8, 13, 21)
    settings.networking.enforce_retry_after = True
    settings.networking.trust_env = False
    settings.queueing.worker_limit = None
    settings.execution.max_workers = 1  # handlers are async
    settings.persistence.finalizer = "diloco.dev/never-used-by-kopf"
    settings.process.ultimate_exiting_timeout = 30
    return settings

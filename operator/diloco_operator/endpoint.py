"""Where the Synchronizer of one job is asked for progress, whom its certificate must be of, and with which key.

On one machine: loopback, in the clear, by the job's key itself. On clusters: its Service on the hub, by HTTPS, with
what is derived from the job's root key. Asks nobody.
"""

from diloco_api import names
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.planning import pki
from diloco_operator.planning.clock import to_seconds
from diloco_operator.planning.types import OperatorPolicy
from diloco_operator.ports import LOOPBACK
from diloco_operator.synchronizer_client import AdminEndpoint


def admin_endpoint(
    job: DiLoCoJob, policy: OperatorPolicy, key: bytes, now: float, host: str = ""
) -> tuple[AdminEndpoint, bytes]:
    """Endpoint and token key of an accepted job. `host` in place of the name of its Service, from outside the hub."""
    assert job.status.resolved is not None, "only an accepted job has a Synchronizer"
    port, uid = job.status.resolved.ports.admin, job.metadata.uid
    if not policy.tls:
        return AdminEndpoint(host or LOOPBACK, port), key
    service = f"{names.synchronizer_name(job.metadata.name, uid)}.{job.metadata.namespace}.svc"
    assert job.status.start_time is not None, "it was set when the job was accepted"
    started = to_seconds(job.status.start_time)
    bundle = pki.ca_bundle(key, uid, started, now)
    return AdminEndpoint(host or service, port, bundle, names.server_name(uid)), pki.token_key(key, uid)

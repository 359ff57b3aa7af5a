"""kopf's part: `on.event` of DiLoCoJobs, and its own end. kopf neither writes to jobs nor keeps any state.

An event only wakes the job's own task. Credentials come from the same strict model as those of sites.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import kopf

from diloco_api import names
from diloco_operator.api import JobRef
from diloco_operator.sites.kubeconfig import ClusterCredentials


def make_registry(
    credentials: Callable[[], ClusterCredentials],
    on_event: Callable[[JobRef, str], None],
    on_end: Callable[[], Awaitable[None]],
) -> kopf.OperatorRegistry:
    """`on_event` is given the job and its resource version ("" when it is gone).

    `on_end` ends the tasks events have begun: kopf takes what is left then for hung, and waits for it.
    """
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**_: Any) -> kopf.ConnectionInfo:
        """Called again whenever the API server refuses the token."""
        return connection_info(credentials())

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=registry)
    async def job_event(body: kopf.Body, type: str | None, **_: Any) -> None:
        metadata = body.metadata
        ref = JobRef(str(metadata.namespace), str(metadata.name), str(metadata.uid))
        on_event(ref, "" if type == "DELETED" else str(metadata.get("resourceVersion", "")))

    @kopf.on.cleanup(registry=registry)
    async def cleanup(**_: Any) -> None:
        await on_end()

    return registry


def connection_info(credentials: ClusterCredentials) -> kopf.ConnectionInfo:
    """kopf's form of credentials."""
    token = Path(credentials.token_file).read_text().strip() if credentials.token_file else credentials.token
    return kopf.ConnectionInfo(
        server=credentials.server,
        ca_data=_as_kopf_reads(credentials.ca_pem),
        scheme="Bearer" if token else None,
        token=token or None,
        certificate_data=_as_kopf_reads(credentials.client_cert_pem),
        private_key_data=_as_kopf_reads(credentials.client_key_pem),
    )


def _as_kopf_reads(pem: str) -> bytes | None:
    return pem.encode() if pem else None

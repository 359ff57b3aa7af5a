"""`Api` on the official client: the hub's API server with the operator's own rights. Decides nothing."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Mapping

from diloco_operator.api import JSON, ApiError, Document
from diloco_operator.sites.kube_client import KubeClient
from diloco_operator.sites.kube_errors import AlreadyThere, SiteExpired, SiteNotFound
from diloco_operator.sites.kubeconfig import ClusterCredentials
from diloco_operator.sites.site import (
    SiteBusy,
    SiteConflict,
    SiteError,
    SiteForbidden,
    SiteInvalid,
    SiteUnauthorized,
    SiteUnreachable,
)

log = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 30.0
_STATUSES: tuple[tuple[type[SiteError], int], ...] = (
    (SiteNotFound, 404),
    (AlreadyThere, 409),
    (SiteConflict, 409),
    (SiteExpired, 410),
    (SiteInvalid, 422),
    (SiteBusy, 429),
    (SiteUnauthorized, 401),
    (SiteForbidden, 403),
    (SiteUnreachable, 0),
)


class KubeApi:
    """One connection pool. Made inside a running event loop."""

    def __init__(self, credentials: ClusterCredentials) -> None:
        self._client = KubeClient(credentials)

    async def close(self) -> None:
        await self._client.close()

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> Document:
        pairs = tuple((query or {}).items())
        try:
            return await self._client.request(method, path, pairs, body, content_type=content_type, accept=accept)
        except SiteError as error:
            raise _api_error(error) from error

    async def changes(self, path: str, selector: str) -> AsyncIterator[tuple[str, str]]:
        """(namespace, name) of every object that changes, without end; ("", "") when any may have changed.

        Only metadata is asked for. A watch that ended or broke is begun anew, with a list between.
        """
        retry = FIRST_RETRY_SECONDS
        while True:
            try:
                _, version = await self._client.list_all(path, selector, metadata_only=True)
                yield "", ""
                retry = FIRST_RETRY_SECONDS
                while True:
                    async for event in self._client.watch(path, selector, version):
                        metadata = event["object"].get("metadata", {})
                        version = metadata.get("resourceVersion", version)
                        if event.get("type") != "BOOKMARK":
                            yield metadata.get("namespace", ""), metadata.get("name", "")
                    await asyncio.sleep(FIRST_RETRY_SECONDS * random.uniform(0.8, 1.2))  # some end watches at once
            except SiteError as error:
                log.info("watch of %s: %s: %s", path, error.reason, error)
                await asyncio.sleep(retry * random.uniform(0.8, 1.2))
                retry = min(LONGEST_RETRY_SECONDS, 2 * retry)


def _api_error(error: SiteError) -> ApiError:
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
    return ApiError(status, error.reason, str(error))

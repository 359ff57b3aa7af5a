"""The official client, set up for one cluster and cut off from its surroundings.

Nothing but the given credentials is used: no proxies or passwords of the environment, no system authorities, no
redirects, no files but our own pod's token.
"""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import aiohttp
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject

from diloco_operator.sites.kube_errors import from_status
from diloco_operator.sites.kube_resolver import OwnThreadResolver
from diloco_operator.sites.kubeconfig import ClusterCredentials
from diloco_operator.sites.pem_file import load_identity
from diloco_operator.sites.site import SiteUnauthorized

USER_AGENT = "diloco-operator"
BEARER_TOKEN = "BearerToken"
"""The client's own name for this way of authentication; older ones call it `authorization`."""
READ_BUFFER_BYTES = 2**21
"""A line of a watch may be this long."""


def api_client(credentials: ClusterCredentials) -> ApiClient:
    """Calls of it carry the credentials. Connections are made when they are needed."""
    configuration = Configuration(host=credentials.server, ca_cert_data=credentials.ca_pem)
    # Extensions that RFC 5280 wants and many clusters' certificates lack; chain and name are verified all the same.
    configuration.disable_strict_ssl_verification = True
    if credentials.token or credentials.token_file:
        configuration.api_key[BEARER_TOKEN] = credentials.token
        configuration.api_key_prefix[BEARER_TOKEN] = "Bearer"
    if credentials.token_file:
        configuration.refresh_api_key_hook = _reader_of(Path(credentials.token_file))  # type: ignore[assignment]
    api = ApiClient(configuration)
    api.rest_client = _Rest(configuration)
    api.user_agent = USER_AGENT
    if credentials.client_cert_pem:
        load_identity(api.rest_client.ssl_context, credentials.client_cert_pem, credentials.client_key_pem)
    return api


def _reader_of(token_file: Path) -> Callable[[Configuration], None]:
    """Projected tokens are replaced every hour or so."""

    def refresh(configuration: Configuration) -> None:
        try:
            configuration.api_key[BEARER_TOKEN] = token_file.read_text().strip()
        except (OSError, ValueError) as error:
            raise SiteUnauthorized(f"our own token cannot be read: {type(error).__name__}") from error

    return refresh


class _Rest(RESTClientObject):
    """The official client's transport, without what it takes from its surroundings."""

    def _create_connector(self) -> aiohttp.TCPConnector:
        # Without a limit: every watch holds a connection, and a call must never wait for one.
        return aiohttp.TCPConnector(limit=0, ssl=self.ssl_context, resolver=OwnThreadResolver())

    def _create_pool_manager(self) -> aiohttp.ClientSession:
        trace = aiohttp.TraceConfig()
        trace.on_request_redirect.append(_refuse_redirect)
        # trust_env stays off: proxies and ~/.netrc of the operator's surroundings are not for sites.
        return aiohttp.ClientSession(
            connector=self._create_connector(), trace_configs=[trace], read_bufsize=READ_BUFFER_BYTES, trust_env=False
        )


async def _refuse_redirect(
    _session: aiohttp.ClientSession, _context: SimpleNamespace, told: aiohttp.TraceRequestRedirectParams
) -> None:
    raise from_status(told.response.status, {}, {})

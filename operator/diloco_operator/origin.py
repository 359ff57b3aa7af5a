"""The id of this installation: random, made once, kept in a Secret of its namespace, a label of every object it makes.

Two hubs that use one site never touch each other's objects.
"""

import base64
import logging
import secrets

from diloco_operator.api import Api, ApiError, Document, core_path, find
from diloco_operator.hub import HubError

log = logging.getLogger(__name__)

SECRET_NAME = "diloco-operator-origin"
KEY_ORIGIN = "origin"
_ID_BYTES = 10


async def read_origin(api: Api, namespace: str) -> str:
    """The id, made when there is none."""
    path = core_path(namespace, "secrets", SECRET_NAME)
    found = await find(api, path) or await _create(api, namespace, path)
    origin = base64.b64decode((found.get("data") or {}).get(KEY_ORIGIN, "")).decode("ascii", "replace").strip()
    if not (origin.isalnum() and origin.isascii() and len(origin) >= _ID_BYTES):
        # Never made anew: objects at sites carry the id, and would be nobody's.
        raise HubError(f"Secret {namespace}/{SECRET_NAME}: holds no id; remove it only when no job exists any more")
    return origin


async def _create(api: Api, namespace: str, path: str) -> Document:
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET_NAME, "labels": {"app.kubernetes.io/managed-by": "diloco-operator"}},
        "immutable": True,
        "data": {KEY_ORIGIN: base64.b64encode(secrets.token_hex(_ID_BYTES).encode()).decode()},
    }
    try:
        return await api.request("POST", core_path(namespace, "secrets"), secret)
    except ApiError as error:
        if error.status != 409:
            raise
    found = await find(api, path)
    if found is None:
        raise HubError(f"Secret {namespace}/{SECRET_NAME}: was made and removed at this moment")
    return found

"""Kubeconfig Secrets of the hub, as credentials: parsed, told apart by their content, looked at again when they change.

A Secret is used only when it carries our label, so that a job cannot make the operator read any Secret it likes.
"""

import base64
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256

from diloco_operator.api import Api, ApiError, core_path, find
from diloco_operator.planning.types import Refusal
from diloco_operator.sites.kubeconfig import ClusterCredentials, KubeconfigRefused, parse_kubeconfig

LABEL_KUBECONFIG = "diloco.dev/kubeconfig"
KEY_KUBECONFIG = "kubeconfig"
SELECTOR = f"{LABEL_KUBECONFIG}=true"
KEEP_SECONDS = 30.0
"""How long an answer is believed when nobody tells of a change."""


@dataclass(frozen=True)
class Kubeconfig:
    """What a Secret is worth now."""

    problem: Refusal | None = None
    credentials: ClusterCredentials | None = None
    identity: tuple[str, str] = field(default=("", ""))
    """(UID of the Secret, digest of its kubeconfig): connections are shared by it."""


@dataclass
class _Known:
    found: Kubeconfig
    read_at: float
    asked_at: float


class Kubeconfigs:
    """All kubeconfig Secrets of the hub."""

    def __init__(self, api: Api, *, now: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._now = now
        self._known: dict[tuple[str, str], _Known] = {}
        """By namespace and name, those that somebody still asks for."""

    def forget(self, namespace: str = "", name: str = "") -> None:
        """It may have changed; all may have, when none is named."""
        for key, known in self._known.items():
            if not name or key == (namespace, name):
                known.read_at = -math.inf

    async def read(self, namespace: str, name: str) -> Kubeconfig:
        """ApiError when the hub cannot be asked."""
        now, key = self._now(), (namespace, name)
        for unused in [each for each, known in self._known.items() if now - known.asked_at >= KEEP_SECONDS]:
            del self._known[unused]
        known = self._known.get(key)
        if known is not None and now - known.read_at < KEEP_SECONDS:
            known.asked_at = now
            return known.found
        found = await self._load(namespace, name, known.found if known is not None else Kubeconfig())
        self._known[key] = _Known(found, self._now(), self._now())
        return found

    async def _load(self, namespace: str, name: str, before: Kubeconfig) -> Kubeconfig:
        """`before` itself where the content is the same: parsing costs more than asking."""
        try:
            secret = await find(self._api, core_path(namespace, "secrets", name))
        except ApiError as error:
            if error.status in (403, 422):
                return _invalid(f"Secret {name}: {error}")
            raise
        if secret is None:
            return Kubeconfig(Refusal("SecretMissing", f"Secret {name}: there is none in namespace {namespace}"))
        if (secret["metadata"].get("labels") or {}).get(LABEL_KUBECONFIG) != "true":
            return _invalid(f'Secret {name}: lacks the label {LABEL_KUBECONFIG}: "true"')
        encoded = (secret.get("data") or {}).get(KEY_KUBECONFIG)
        if encoded is None:
            return _invalid(f"Secret {name}: has no key {KEY_KUBECONFIG}")
        text = base64.b64decode(encoded)
        identity = (secret["metadata"]["uid"], sha256(text).hexdigest())
        if identity == before.identity:
            return before
        try:
            credentials = parse_kubeconfig(text)
        except KubeconfigRefused as error:
            return _invalid(f"Secret {name}: {error}")
        return Kubeconfig(credentials=credentials, identity=identity)


def _invalid(message: str) -> Kubeconfig:
    return Kubeconfig(Refusal("SecretInvalid", message))

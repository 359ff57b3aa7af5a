"""Events of one job: the first of a kind is created, repetitions raise its count, at most once a minute each."""

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from diloco_api import names
from diloco_operator.api import MERGE_PATCH, Api, JobRef, core_path

log = logging.getLogger(__name__)

COMPONENT = "diloco-operator"
QUIET_SECONDS = 60.0
REMEMBERED = 256
MAX_MESSAGE = 1024
"""Of an Event's message; API servers refuse longer ones."""


@dataclass
class _Told:
    name: str
    count: int
    written_at: float


class EventLog:
    """What was told of one job by this process."""

    def __init__(self, api: Api, ref: JobRef, *, now: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._ref = ref
        self._now = now
        self._told: dict[tuple[str, str, str], _Told] = {}

    async def tell(self, kind: str, reason: str, message: str) -> None:
        """`kind` is Normal or Warning."""
        key = (kind, reason, message)
        told = self._told.pop(key, None)
        if told is None:
            name = f"{self._ref.name[:200]}.{secrets.token_hex(8)}"
            told = _Told(name, 1, self._now())
            await self._create(told.name, kind, reason, message[:MAX_MESSAGE])
        else:
            told.count += 1
            if self._now() - told.written_at >= QUIET_SECONDS:
                told.written_at = self._now()
                change = {"count": told.count, "lastTimestamp": _time()}
                path = core_path(self._ref.namespace, "events", told.name)
                await self._api.request("PATCH", path, change, content_type=MERGE_PATCH)
        self._told[key] = told
        while len(self._told) > REMEMBERED:
            self._told.pop(next(iter(self._told)))

    async def _create(self, name: str, kind: str, reason: str, message: str) -> None:
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": self._ref.namespace},
            "involvedObject": {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "namespace": self._ref.namespace,
                "name": self._ref.name,
                "uid": self._ref.uid,
            },
            "type": kind,
            "reason": reason,
            "message": message,
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": "",
            "firstTimestamp": _time(),
            "lastTimestamp": _time(),
            "count": 1,
        }
        await self._api.request("POST", core_path(self._ref.namespace, "events"), event)


def _time() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

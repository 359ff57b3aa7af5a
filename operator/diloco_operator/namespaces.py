"""Which of the operator's namespaces are being deleted, where its rights come from Roles in these namespaces.

Such a Role goes with its namespace, and with it the right to let jobs go. Kubernetes deletes pods first, and the rest
when it looks again after half of their grace period: until then jobs can be torn down. Knows nothing of jobs.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from diloco_operator.api import Api, ApiError, find

log = logging.getLogger(__name__)

LOOK_SECONDS = 3.0
"""A small part of half a grace period."""


class Namespaces:
    """Those the operator was told to look after; none where it looks after all."""

    def __init__(self, api: Api, names: Sequence[str], on_end: Callable[[str], None]) -> None:
        self._api = api
        self._names = names
        self._on_end = on_end
        self._ending: set[str] = set()
        self._told: dict[str, str] = {}

    def ends(self, name: str) -> bool:
        """It is being deleted, which cannot be undone."""
        return name in self._ending

    async def follow(self) -> None:
        """Look, and look again, for ever."""
        while True:
            await asyncio.gather(*map(self.look, self._names))
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self, name: str) -> None:
        """What cannot be seen is as it was; what is gone may come back as another."""
        problem = ""
        try:
            found = await find(self._api, f"/api/v1/namespaces/{name}")
        except ApiError as error:
            problem = f"{error.reason}: {error}"
        else:
            ends = found is not None and "deletionTimestamp" in found["metadata"]
            if ends and name not in self._ending:
                log.info("namespace %s is being deleted: its jobs are torn down", name)
                self._ending.add(name)
                self._on_end(name)
            elif not ends:
                self._ending.discard(name)
        if problem and self._told.get(name) != problem and name not in self._ending:  # then the right went with it
            log.warning("namespace %s: %s", name, problem)
        self._told[name] = problem

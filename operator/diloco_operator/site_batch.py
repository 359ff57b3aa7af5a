"""Some actions at one site of one job, carried out side by side; order only where it matters.

Configuration comes before pods, a Learner's Secret before its pod. What is refused is kept for the next pass. Decides
nothing.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence

from diloco_api import names
from diloco_operator.planning.learners import NAME_CONFLICT
from diloco_operator.planning.types import Apply, CreatePod, Delete, ObjectKey, Refusal
from diloco_operator.sites.following import report
from diloco_operator.sites.site import AlreadyExists, Site, SiteError

log = logging.getLogger(__name__)

PARALLEL = 8
"""Calls under way at one site for one job."""
_FULL = frozenset({"QuotaExceeded", "TooManyRequests"})
"""Where one creation failed for this, the next one would, too."""

ObjectAction = CreatePod | Apply | Delete


class Batch:
    """Some actions at one site, each chain in its order."""

    def __init__(self, name: str, site: Site, job_uid: str) -> None:
        self._name = name
        self._site = site
        self._job_uid = job_uid
        self._slots = asyncio.Semaphore(PARALLEL)
        self._full: Refusal | None = None
        self.refusals: dict[str, Refusal] = {}
        self.object_refusals: dict[ObjectKey, Refusal] = {}
        self.failed = False

    async def run(self, chains: Sequence[Sequence[ObjectAction]]) -> None:
        for error in await asyncio.gather(*map(self._chain, chains), return_exceptions=True):
            if error is not None:
                self.failed = True
                report(f"site {self._name}: apply", error)

    async def _chain(self, chain: Sequence[ObjectAction]) -> None:
        async with self._slots:
            for action in chain:
                refusal = await self._one(action)
                if refusal is not None and isinstance(action, CreatePod):
                    self.refusals[action.name] = refusal
                elif refusal is not None and isinstance(action, Apply):
                    self.object_refusals[action.key] = refusal

    async def _one(self, action: ObjectAction) -> Refusal | None:
        if self._full is not None and isinstance(action, CreatePod):
            return self._full
        try:
            return await self._do(action)
        except SiteError as error:
            log.warning("site %s: %s: %s", self._name, error.reason, error)
            self.failed = True
            refusal = Refusal(error.reason, str(error))
            if isinstance(action, CreatePod) and error.reason in _FULL:
                self._full = refusal
            return refusal

    async def _do(self, action: ObjectAction) -> Refusal | None:
        """Carry one action out; a Refusal when a pod of that name is somebody else's."""
        if isinstance(action, Apply):
            await self._site.apply(action.manifest)
        elif isinstance(action, Delete):
            await self._site.delete(action.kind, action.name, action.uid)
        else:
            answer = await self._site.create_pod(action.manifest)
            if isinstance(answer, AlreadyExists) and not _is_ours(answer.labels, action, self._job_uid):
                return Refusal(NAME_CONFLICT, f"a pod named {action.name} belongs to somebody else")
        return None


def stages(actions: Sequence[ObjectAction]) -> list[list[list[ObjectAction]]]:
    """Chains that may run side by side, in stages: what others read first.

    A Deployment begins at once and would back off without its configuration; a Learner's own Secret goes with its pod.
    """
    pods = {action.name for action in actions if isinstance(action, CreatePod)}
    shared: list[list[ObjectAction]] = []
    chains: dict[str, list[ObjectAction]] = {}
    for number, action in enumerate(actions):
        if isinstance(action, CreatePod):
            chains.setdefault(action.name, []).append(action)
        elif isinstance(action, Apply) and action.key[1] in pods:
            chains.setdefault(action.key[1], []).append(action)
        elif isinstance(action, Apply) and action.key[0] != "Deployment":
            shared.append([action])
        else:
            chains[f"#{number}"] = [action]
    return [stage for stage in (shared, list(chains.values())) if stage]


def _is_ours(labels: Mapping[str, str], action: CreatePod, job_uid: str) -> bool:
    wanted = action.manifest["metadata"]["labels"]
    return labels.get(names.LABEL_JOB_UID) == job_uid and all(
        labels.get(label) == wanted.get(label)
        for label in (names.LABEL_LEARNER_INDEX, names.LABEL_INCARNATION, names.LABEL_ORIGIN)
    )

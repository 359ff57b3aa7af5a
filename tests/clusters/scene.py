"""What happens to a running job while a test does something to it: pods of all clusters, steps of all Learners.

Looks with the administrator's eyes, from outside: pods by watches of each API server (when they come and end, and
whether their containers were restarted) and by the servers' audit logs (which were created or deleted at all), steps by
the Synchronizer's `/progress`. A cluster or Synchronizer that cannot be asked is asked again; what was seen before
stays.
"""

import asyncio
import base64
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from clusters import network
from clusters.api import Api, ApiError, Object, path_of, wait_until
from clusters.audit import AuditTrail
from clusters.installation import Installation
from clusters.layout import HUB, SiteLayout
from clusters.workloads import condition
from diloco_api import names
from diloco_api.progress import LearnerProgress, Progress
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.endpoint import admin_endpoint
from diloco_operator.planning.types import OperatorPolicy
from diloco_operator.synchronizer_client import SynchronizerClient, SynchronizerSilent

LOOK_SECONDS = 0.5


@dataclass
class PodStory:
    """One pod from its first sight on; times are of the monotonic clock."""

    name: str
    site: str
    uid: str
    index: int
    incarnation: int
    appeared: float
    lost: float | None = None
    """When it was first seen gone, being deleted, or over."""
    not_ready: float | None = None
    """When it was first seen not to be ready, after it had been."""
    was_ready: bool = False
    restarts: int = 0


@dataclass
class Scene:
    """The pods and steps of one job from entering on. Everything seen before is `known`."""

    installation: Installation
    name: str
    tell: Callable[[str], None] = print
    """For what is measured."""
    pods: dict[str, PodStory] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    advances: dict[tuple[int, int], list[tuple[float, int]]] = field(default_factory=dict)
    """(index, incarnation) -> (when, step) of every change."""
    unheard: dict[tuple[int, int], float] = field(default_factory=dict)
    """(index, incarnation) -> when it was first told to be dead."""
    progress: Progress | None = None
    """As last heard."""

    def __post_init__(self) -> None:
        self.audit = AuditTrail(self.installation.sites, self.installation.namespace)
        job = self.installation.job(self.name)
        self.uid = job["metadata"]["uid"]
        self._job = DiLoCoJob.model_validate(job)
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._follow, args=(site,)) for site in self.installation.sites]
        self._threads.append(threading.Thread(target=self._listen))

    def __enter__(self) -> Self:
        self.known = {pod["metadata"]["uid"] for site in self.installation.sites for pod in self._listed(site)}
        for thread in self._threads:
            thread.start()
        wait_until("steps are told", lambda: self.progress, 60)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(15)

    def pod_of(self, index: int) -> Object:
        """The pod of the newest incarnation."""
        site, name = self.place_of(index)
        found = Api(self.installation.layout.site(site)).get("v1", "Pod", self.installation.namespace, name)
        assert found is not None, f"there is no pod {name} at {site}"
        return found

    def place_of(self, index: int) -> tuple[str, str]:
        """(site, pod) of the newest incarnation, by the job's status."""
        row = self.installation.job(self.name)["status"]["learnerStatuses"][index]
        return row["site"], row["podName"]

    def replacement(self, index: int, timeout_seconds: float = 60) -> float:
        """Seconds from when the loss could be seen until the next incarnation's pod was there; waits for it."""
        lost, new = wait_until(
            f"a replacement of Learner {index}", lambda: self._replacement(index), timeout_seconds, every_seconds=0.05
        )
        return new - lost

    def disturbed(self) -> set[str]:
        """Names of pods that were there at first and have ended, are being deleted or were restarted."""
        return {pod.name for pod in list(self.pods.values()) if pod.uid in self.known and (pod.lost or pod.restarts)}

    def restarted(self) -> set[str]:
        """Names of pods a container of which was ever restarted."""
        return {pod.name for pod in list(self.pods.values()) if pod.restarts}

    def new(self) -> set[str]:
        """Names of pods that were not there at first."""
        return {pod.name for pod in list(self.pods.values()) if pod.uid not in self.known}

    def learner(self, index: int, incarnation: int | None = None) -> LearnerProgress:
        """As last heard; its newest incarnation unless one is named."""
        assert self.progress is not None, "it was waited for"
        rows = [row for row in self.progress.learners if row.index == index]
        return next(row for row in reversed(rows) if incarnation in (None, row.incarnation))

    def standstill(self, index: int) -> float:
        """The longest time without news of a further step of this Learner, so far."""
        newest = max(incarnation for at, incarnation in self.advances if at == index)
        times = [at for at, _ in self.advances[(index, newest)]] + [time.monotonic()]
        return max(after - before for before, after in itertools.pairwise(times))

    def node_and_learner_lost(self, index: int, incarnation: int) -> float:
        """When both were known: that the Learner is dead, and that its node is not heard. The operator may be a moment
        earlier.
        """
        told: float = wait_until("it is told to be dead", lambda: self.unheard.get((index, incarnation)), 30)
        pod = next(pod for pod in self.pods.values() if (pod.index, pod.incarnation) == (index, incarnation))
        silent: float = wait_until("its pod is not ready", lambda: pod.not_ready, 60)
        return max(told, silent)

    def wait_for_steps(self, indices: set[int], timeout_seconds: float = 60) -> None:
        """Until each of these Learners is known to have gone further than now."""
        before = {index: self.learner(index).step for index in indices}

        def all_further() -> bool:
            return all(self.learner(index).step > step for index, step in before.items())

        wait_until(f"further steps of Learners {sorted(indices)}", all_further, timeout_seconds)

    def _replacement(self, index: int) -> tuple[float, float] | None:
        of_index = sorted((p for p in list(self.pods.values()) if p.index == index), key=lambda p: p.incarnation)
        lost = next((pod.lost for pod in of_index if pod.uid in self.known and pod.lost), None)
        new = next((pod.appeared for pod in of_index if pod.uid not in self.known), None)
        return None if lost is None or new is None else (lost, new)

    def _listed(self, site: SiteLayout) -> list[Object]:
        selector = f"{names.LABEL_JOB_UID}={self.uid}"
        return Api(site).all("v1", "Pod", self.installation.namespace, selector)

    def _follow(self, site: SiteLayout) -> None:
        """Watches; after a break everything is looked at again."""
        path = path_of("v1", "Pod", self.installation.namespace)
        selector = f"{names.LABEL_JOB_UID}={self.uid}"
        while not self._over.is_set():
            try:
                there = {pod["metadata"]["uid"] for pod in self._listed(site)}
                for story in list(self.pods.values()):
                    if story.site == site.name and story.uid not in there:
                        story.lost = story.lost or time.monotonic()
                for event in Api(site, timeout_seconds=5).watch(path, 5, labelSelector=selector):
                    if event["type"] in ("ADDED", "MODIFIED", "DELETED"):
                        self._see(site, event)
            except (ApiError, OSError):
                self._over.wait(LOOK_SECONDS)

    def _see(self, site: SiteLayout, event: Object) -> None:
        pod, now = event["object"], time.monotonic()
        metadata, labels, status = pod["metadata"], pod["metadata"]["labels"], pod.get("status", {})
        index, incarnation = labels.get(names.LABEL_LEARNER_INDEX, -1), labels.get(names.LABEL_INCARNATION, 0)
        story = PodStory(metadata["name"], site.name, metadata["uid"], int(index), int(incarnation), now)
        story = self.pods.setdefault(story.uid, story)
        story.restarts = sum(container["restartCount"] for container in status.get("containerStatuses", []))
        ready = condition(pod, "Ready") == "True"
        if story.was_ready and not ready and story.not_ready is None:
            story.not_ready = now
        story.was_ready = story.was_ready or ready
        over = "deletionTimestamp" in metadata or status.get("phase") in ("Failed", "Succeeded")
        if (over or event["type"] == "DELETED") and story.lost is None:
            story.lost = now

    def _listen(self) -> None:
        network.enter(self.installation.layout, HUB)
        asyncio.run(self._poll())

    async def _poll(self) -> None:
        namespace, uid = self.installation.namespace, self.uid
        secret = self.installation.hub.get("v1", "Secret", namespace, names.object_name(self.name, uid, "root"))
        service = self.installation.hub.get("v1", "Service", namespace, names.synchronizer_name(self.name, uid))
        assert secret is not None, "a running job has its root key"
        assert service is not None, "a running job has its Service"
        root = base64.b64decode(next(iter(secret["data"].values())))
        policy = OperatorPolicy(image="", tls=True)
        async with SynchronizerClient(timeout_seconds=5, rest_seconds=0) as client:
            while not self._over.is_set():
                endpoint, key = admin_endpoint(self._job, policy, root, time.time(), service["spec"]["clusterIP"])
                try:
                    self._hear(await client.progress(endpoint, key, uid))
                except SynchronizerSilent:
                    pass
                await asyncio.sleep(LOOK_SECONDS)

    def _hear(self, progress: Progress) -> None:
        for row in progress.learners:
            advances = self.advances.setdefault((row.index, row.incarnation), [])
            if not advances or row.step > advances[-1][1]:
                advances.append((time.monotonic(), row.step))
            if not row.live:
                self.unheard.setdefault((row.index, row.incarnation), time.monotonic())
        self.progress = progress

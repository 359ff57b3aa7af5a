"""One supervised task per job UID: begun by the first word of a job, begun anew when it breaks, ended with its job.

A task whose job has ended and is cleaned up sleeps until something wakes it: such a job costs no writes and no
requests but a look now and then. Knows nothing of what a task does.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from diloco_operator.api import JobRef
from diloco_operator.reconciler import RESYNC_SECONDS, RunEnd
from diloco_operator.wake_ups import WakeUps

log = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 60.0


class Runner(Protocol):
    """What a task runs; `JobRunner` is the real one."""

    @property
    def wake_ups(self) -> WakeUps: ...

    @property
    def resource_version(self) -> str:
        """Of the job as it was last read or written here."""

    def job_changed(self) -> None:
        """The job is another than that, or gone."""

    async def run(self) -> RunEnd:
        """Until the job has ended and is cleaned up, or is gone. May be called again."""

    async def close(self) -> None:
        """Nothing of it is used any more."""


class Supervisor:
    """All tasks of this process."""

    def __init__(self, make: Callable[[JobRef], Runner]) -> None:
        self._make = make
        self._runners: dict[JobRef, Runner] = {}
        self._tasks: dict[JobRef, asyncio.Task[None]] = {}
        self._closed = False
        self.breaks = 0
        """How many times a task broke."""

    @property
    def jobs(self) -> list[JobRef]:
        """Those that have a task."""
        return list(self._tasks)

    def wake(self, ref: JobRef, resource_version: str = "") -> None:
        """Something happened to this job. What its own task wrote is no news to it."""
        if self._closed:
            return
        if ref not in self._tasks:
            runner = self._make(ref)
            self._runners[ref] = runner
            self._tasks[ref] = asyncio.create_task(self._supervise(ref, runner), name=f"job {ref}")
            return
        runner = self._runners[ref]
        if not resource_version or resource_version != runner.resource_version:
            runner.job_changed()
            runner.wake_ups.wake()

    def wake_all(self, namespace: str = "") -> None:
        """Something happened that may concern all jobs, of a namespace where one is named."""
        for ref, runner in self._runners.items():
            if not namespace or ref.namespace == namespace:
                runner.wake_ups.wake()

    def unserved(self) -> Iterator[float]:
        """For every job the age of its oldest unserved wake-up, in seconds."""
        for runner in self._runners.values():
            yield runner.wake_ups.unserved_seconds

    async def close(self) -> None:
        """Stop acting: all tasks end now; jobs and their objects stay as they are."""
        self._closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _supervise(self, ref: JobRef, runner: Runner) -> None:
        retry = FIRST_RETRY_SECONDS
        try:
            while True:
                begun = time.monotonic()
                try:
                    end = await runner.run()
                except Exception:
                    self.breaks += 1
                    retry = FIRST_RETRY_SECONDS if time.monotonic() - begun > LONGEST_RETRY_SECONDS else retry
                    log.exception("job %s: its task broke and begins anew in %g s", ref, retry)
                    await asyncio.sleep(retry * random.uniform(0.8, 1.2))
                    retry = min(LONGEST_RETRY_SECONDS, 2 * retry)
                    continue
                retry = FIRST_RETRY_SECONDS
                if end.gone:
                    log.info("job %s: gone", ref)
                    return
                await runner.wake_ups.sleep(RESYNC_SECONDS * random.uniform(0.8, 1.2))
        finally:
            del self._tasks[ref], self._runners[ref]
            await asyncio.shield(runner.close())

"""One task per job: begun by its first word, begun anew when it breaks, ended with its job."""

import asyncio
from collections.abc import Callable

import pytest

from diloco_operator import supervisor as supervisor_module
from diloco_operator.api import JobRef
from diloco_operator.reconciler import RunEnd
from diloco_operator.supervisor import Supervisor
from diloco_operator.wake_ups import WakeUps

A, B = JobRef("ns", "a", "uid-a"), JobRef("other", "b", "uid-b")
OVER, GONE = RunEnd(None), RunEnd(None, gone=True)


class ScriptedRunner:
    """`ends` are what its runs come to, the last one again and again; an error breaks the run."""

    def __init__(self, ends: list[RunEnd | Exception]) -> None:
        self.wake_ups = WakeUps()
        self.resource_version = "7"
        self.ends = ends
        self.runs = 0
        self.closed = False
        self.changes = 0

    def job_changed(self) -> None:
        self.changes += 1

    async def run(self) -> RunEnd:
        self.runs += 1
        end = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        self.wake_ups.begin()
        await asyncio.sleep(0)
        self.wake_ups.end()
        if isinstance(end, Exception):
            raise end
        return end

    async def close(self) -> None:
        self.closed = True


class Scene:
    def __init__(self) -> None:
        self.runners: dict[JobRef, ScriptedRunner] = {}
        self.made: list[JobRef] = []
        self.supervisor = Supervisor(self._make)

    def _make(self, ref: JobRef) -> ScriptedRunner:
        self.made.append(ref)
        return self.runners.setdefault(ref, ScriptedRunner([OVER]))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(3):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(supervisor_module, "FIRST_RETRY_SECONDS", 0.02)
    return Scene()


async def test_many_words_of_one_job_make_one_task(scene: Scene) -> None:
    for _ in range(5):
        scene.supervisor.wake(A)
    await until(lambda: scene.runners[A].runs == 1)
    assert scene.made == [A]
    await scene.supervisor.close()


async def test_a_task_that_broke_begins_anew_and_the_others_go_on(scene: Scene) -> None:
    scene.runners[A] = ScriptedRunner([RuntimeError("bug"), RuntimeError("bug"), OVER])
    scene.supervisor.wake(A)
    scene.supervisor.wake(B)
    await until(lambda: scene.runners[A].runs == 3)
    assert scene.runners[B].runs == 1
    assert scene.supervisor.breaks == 2
    await scene.supervisor.close()


async def test_an_ended_job_sleeps_until_something_happens_to_it(scene: Scene) -> None:
    scene.supervisor.wake(A)
    await until(lambda: scene.runners[A].runs == 1)
    await asyncio.sleep(0.1)
    assert scene.runners[A].runs == 1
    scene.supervisor.wake(A, "8")
    await until(lambda: scene.runners[A].runs == 2)
    await scene.supervisor.close()


async def test_what_the_task_wrote_itself_does_not_wake_it(scene: Scene) -> None:
    scene.supervisor.wake(A)
    await until(lambda: scene.runners[A].runs == 1)
    scene.supervisor.wake(A, "7")
    await asyncio.sleep(0.1)
    assert scene.runners[A].runs == 1
    await scene.supervisor.close()


async def test_nothing_is_kept_of_a_job_that_is_gone(scene: Scene) -> None:
    scene.runners[A] = ScriptedRunner([GONE])
    scene.supervisor.wake(A)
    await until(lambda: scene.supervisor.jobs == [])
    assert scene.runners[A].closed
    assert list(scene.supervisor.unserved()) == []


async def test_a_change_in_one_namespace_wakes_its_jobs_only(scene: Scene) -> None:
    scene.supervisor.wake(A)
    scene.supervisor.wake(B)
    await until(lambda: scene.runners[A].runs == scene.runners[B].runs == 1)
    scene.supervisor.wake_all("ns")
    await until(lambda: scene.runners[A].runs == 2)
    assert scene.runners[B].runs == 1
    await scene.supervisor.close()


async def test_after_the_end_nothing_is_begun(scene: Scene) -> None:
    scene.supervisor.wake(A)
    await until(lambda: scene.runners[A].runs == 1)
    await scene.supervisor.close()
    assert scene.runners[A].closed
    scene.supervisor.wake(B)
    assert scene.made == [A]


async def test_a_wake_up_is_unserved_until_the_look_it_asked_for_is_over() -> None:
    clock = [100.0]
    wake_ups = WakeUps(now=lambda: clock[0])
    assert wake_ups.unserved_seconds == 0
    wake_ups.wake()
    clock[0] += 3
    wake_ups.wake()
    wake_ups.begin()
    clock[0] += 2
    assert wake_ups.unserved_seconds == 5
    wake_ups.wake()
    wake_ups.end()
    clock[0] += 1
    assert wake_ups.unserved_seconds == 1, "one that came during the look is not served by it"

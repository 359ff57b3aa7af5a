"""Whole local runs with stand-ins for the trainer's programs: what is created, replaced, resumed and left behind."""

import asyncio
import json
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from builders import job
from diloco_api.errors import SpecError
from diloco_api.names import Role
from diloco_api.states import JobPhase
from diloco_api.timeouts import Timeouts
from diloco_operator.local import LocalOutcome, LocalRun, Snapshot
from diloco_operator.sites.process_table import start_time
from fakes.stub_trainer import write_stub_trainer

FAST = Timeouts(heartbeat_seconds=0.2, grace_period_seconds=5.0)


@pytest.fixture(autouse=True)
def stubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", write_stub_trainer(tmp_path / "stubs"))


def small_job(budget: int = 100, **changes: Any) -> Any:
    return job({"budget.tokens": budget, "learners.replicas": 2, **changes})


async def until(run: LocalRun, condition: Callable[[Snapshot], bool], seconds: float = 20.0) -> Snapshot:
    async with asyncio.timeout(seconds):
        while run.observed is None or not condition(run.observed):
            await asyncio.sleep(0.02)
    return run.observed


def at_work(replicas: int) -> Callable[[Snapshot], bool]:
    return lambda seen: seen.status.learners.ready == replicas


async def with_drill(
    run: LocalRun, drill: Callable[[LocalRun], Awaitable[None]], seconds: float = 40.0
) -> LocalOutcome:
    """The run's outcome, while a drill goes on beside it."""
    async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
        task = group.create_task(run.run())
        group.create_task(drill(run))
    return task.result()


def nothing_left(folder: Path) -> bool:
    recorded = json.loads((folder / "processes.json").read_text())
    return recorded == [] and not any((folder / "secrets").glob("*/*"))


async def test_a_run_completes_and_leaves_the_parameters_but_no_process_and_no_secret(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    run = LocalRun.open_folder(small_job(), folder, FAST)
    outcome = await asyncio.wait_for(run.run(), 30)

    assert (outcome.phase, outcome.reason) == (JobPhase.COMPLETE, "TokenBudgetReached")
    assert outcome.snapshot.progress is not None
    assert outcome.snapshot.progress.loss_final == 1.0
    assert [row.state for row in outcome.snapshot.status.learner_statuses] == ["Succeeded", "Succeeded"]
    assert [row.restarts for row in outcome.snapshot.status.learner_statuses] == [0, 0]
    assert run.outer_file.read_bytes() == b"final"
    assert nothing_left(folder)
    key = (folder / "key").read_text()
    assert (folder / "key").stat().st_mode & 0o777 == 0o600
    for path in ("job.json", "events.jsonl", "progress.json"):
        assert key not in (folder / path).read_text()


async def test_a_killed_learner_is_replaced_once_and_the_others_keep_their_process(tmp_path: Path) -> None:
    async def kill(run: LocalRun) -> None:
        await until(run, at_work(2))
        victim, other = run.pids(Role.LEARNER, 1), run.pids(Role.LEARNER, 0)
        os.kill(victim[0], signal.SIGKILL)
        await until(
            run, lambda seen: seen.status.learner_statuses[1].incarnation == 2 and seen.status.learners.ready == 2
        )
        assert run.pids(Role.LEARNER, 0) == other
        assert run.pids(Role.LEARNER, 1) not in ([], victim)
        run.stop_now()

    outcome = await with_drill(LocalRun.open_folder(small_job(10_000), tmp_path / "work", FAST), kill)
    rows = outcome.snapshot.status.learner_statuses
    assert outcome.phase is JobPhase.STOPPED
    assert [(row.incarnation, row.restarts, row.restarts_counted) for row in rows] == [(1, 0, 0), (2, 1, 1)]


async def test_a_killed_synchronizer_is_restarted_and_no_learner_is(tmp_path: Path) -> None:
    async def kill(run: LocalRun) -> None:
        await until(run, at_work(2))
        learners, victim = run.pids(Role.LEARNER), run.pids(Role.SYNCHRONIZER)
        os.kill(victim[0], signal.SIGKILL)
        await until(run, lambda seen: not seen.fresh)
        await until(run, lambda seen: seen.fresh and run.pids(Role.SYNCHRONIZER) not in ([], victim))
        assert run.pids(Role.LEARNER) == learners
        run.stop_now()

    outcome = await with_drill(LocalRun.open_folder(small_job(10_000), tmp_path / "work", FAST), kill)
    assert outcome.phase is JobPhase.STOPPED
    assert [row.incarnation for row in outcome.snapshot.status.learner_statuses] == [1, 1]


async def test_a_drained_run_is_resumed_with_the_same_uid_and_new_incarnations(tmp_path: Path) -> None:
    folder = tmp_path / "work"

    async def drain(run: LocalRun) -> None:
        await until(run, at_work(2))
        run.drain()

    first = await with_drill(LocalRun.open_folder(small_job(200), folder, FAST), drain)
    uid, key = json.loads((folder / "job.json").read_text())["metadata"]["uid"], (folder / "key").read_bytes()
    assert first.phase is JobPhase.STOPPED
    assert nothing_left(folder)
    assert {row.state for row in first.snapshot.status.learner_statuses} == {"Stopped"}

    second = await asyncio.wait_for(LocalRun.open_folder(small_job(200), folder, FAST).run(), 30)
    assert second.phase is JobPhase.COMPLETE
    assert [row.incarnation for row in second.snapshot.status.learner_statuses] == [2, 2]
    assert [row.restarts_counted for row in second.snapshot.status.learner_statuses] == [0, 0]
    assert second.snapshot.status.execution_attempt == 2
    assert json.loads((folder / "job.json").read_text())["metadata"]["uid"] == uid
    assert (folder / "key").read_bytes() == key


async def test_a_third_run_of_a_complete_job_starts_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    await asyncio.wait_for(LocalRun.open_folder(small_job(20), folder, FAST).run(), 30)
    before = (folder / "job.json").read_text()
    again = await asyncio.wait_for(LocalRun.open_folder(small_job(20), folder, FAST).run(), 5)
    assert again.phase is JobPhase.COMPLETE
    assert again.snapshot.progress is not None
    assert again.snapshot.progress.percent == 100.0
    assert (folder / "job.json").read_text() == before


async def test_a_users_mistake_fails_the_job_with_the_synchronizers_words_before_any_learner_starts(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "work"
    bad = small_job(**{"train.data.uri": "stub:synchronizer-exit=65"})
    outcome = await asyncio.wait_for(LocalRun.open_folder(bad, folder, FAST).run(), 20)
    assert (outcome.phase, outcome.reason) == (JobPhase.FAILED, "FatalExitCode")
    assert outcome.message == "Synchronizer: spec.train.data.uri: no such text"
    assert outcome.snapshot.status.learner_statuses == []
    assert list(folder.iterdir()) == []

    mended = await asyncio.wait_for(LocalRun.open_folder(small_job(20), folder, FAST).run(), 30)
    assert mended.phase is JobPhase.COMPLETE


async def test_learners_that_fail_for_ever_fail_the_job_once_too_few_are_left(tmp_path: Path) -> None:
    bad = small_job(**{"train.data.uri": "stub:learner-exit=1", "failurePolicy.maxRestarts": 1, "learners.replicas": 1})
    run = LocalRun.open_folder(bad, tmp_path / "work", FAST)
    outcome = await asyncio.wait_for(run.run(), 40)
    row = outcome.snapshot.status.learner_statuses[0]
    assert (outcome.phase, outcome.reason) == (JobPhase.FAILED, "RestartBudgetExhausted")
    assert (row.state, row.restarts_counted, row.message) == ("Parked", 2, "the reason of the end")


@pytest.fixture
def taken() -> Iterator[int]:
    """A port somebody else listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


async def test_a_port_in_use_is_named_and_nothing_is_written(tmp_path: Path, taken: int) -> None:
    (tmp_path / "work").mkdir()
    with pytest.raises(SpecError, match=rf"^spec\.synchronizer\.port: {taken}: is in use on this machine$"):
        LocalRun.open_folder(small_job(**{"synchronizer.port": taken}), tmp_path / "work", FAST)
    assert list((tmp_path / "work").iterdir()) == []


async def stopped_early(folder: Path, **changes: Any) -> dict[str, Any]:
    """A job that was at work and was stopped; returns its file."""

    async def stop(run: LocalRun) -> None:
        await until(run, at_work(2))
        run.stop_now()

    await with_drill(LocalRun.open_folder(small_job(200, **changes), folder, FAST), stop)
    found: dict[str, Any] = json.loads((folder / "job.json").read_text())
    return found


async def test_a_resumed_job_takes_other_ports_where_somebody_else_has_taken_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    before = (await stopped_early(folder))["status"]["resolved"]["ports"]
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", before["admin"]))
        listener.listen()
        outcome = await asyncio.wait_for(LocalRun.open_folder(small_job(200), folder, FAST).run(), 30)
    assert outcome.phase is JobPhase.COMPLETE
    after = json.loads((folder / "job.json").read_text())["status"]["resolved"]["ports"]
    assert (after["synchronizer"], after["metrics"]) == (before["synchronizer"], before["metrics"])
    assert after["admin"] not in before.values()


async def test_a_resumed_job_insists_on_a_port_that_was_asked_for(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    await stopped_early(tmp_path / "work", **{"synchronizer.port": port})
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()
        run = LocalRun.open_folder(small_job(200, **{"synchronizer.port": port}), tmp_path / "work", FAST)
        with pytest.raises(SpecError, match=rf"^spec\.synchronizer\.port: {port}: is in use on this machine$"):
            await run.run()
    assert (tmp_path / "work" / "job.json").exists()


async def test_a_run_that_is_stopped_before_anything_was_heard_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    run = LocalRun.open_folder(small_job(), tmp_path / "work", FAST)
    run.stop_now()
    outcome = await asyncio.wait_for(run.run(), 20)
    assert outcome.phase is JobPhase.STOPPED
    assert list((tmp_path / "work").iterdir()) == []


async def test_stop_now_ends_a_run_whose_synchronizer_hangs(tmp_path: Path) -> None:
    async def freeze(run: LocalRun) -> None:
        await until(run, at_work(2))
        os.kill(run.pids(Role.SYNCHRONIZER)[0], signal.SIGSTOP)
        run.drain()
        await until(run, lambda seen: not seen.fresh)
        run.stop_now()

    outcome = await with_drill(LocalRun.open_folder(small_job(400), tmp_path / "work", FAST), freeze)
    assert outcome.phase is JobPhase.STOPPED
    assert nothing_left(tmp_path / "work")


async def test_two_requests_end_a_run_whose_folder_was_removed_and_it_says_what_is_wrong(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    pids: list[int] = []

    async def remove(run: LocalRun) -> None:
        await until(run, at_work(2))
        pids.extend(run.pids(Role.LEARNER))
        (folder / "job.json").rename(folder / "away")
        (folder / "job.json").mkdir()
        seen = await until(run, lambda seen: seen.problem != "")
        assert seen.problem == f"{folder}/job.json: cannot be read: Is a directory"
        assert seen.status.learners.ready == 2
        run.drain()
        run.stop_now()

    outcome = await with_drill(LocalRun.open_folder(small_job(10_000), folder, FAST), remove)
    assert (outcome.phase, outcome.reason) == (JobPhase.STOPPED, "HubError")
    assert outcome.message == f"{folder}/job.json: cannot be read: Is a directory"
    assert nothing_left(folder)
    assert [start_time(pid) for pid in pids] == [None, None]


async def test_a_run_whose_folder_was_removed_ends_by_itself_as_failed(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    pids: list[int] = []

    async def remove(run: LocalRun) -> None:
        await until(run, at_work(2))
        pids.extend(run.pids(Role.LEARNER))
        folder.rename(tmp_path / "away")

    outcome = await with_drill(LocalRun.open_folder(small_job(10_000), folder, FAST), remove)
    assert (outcome.phase, outcome.reason) == (JobPhase.FAILED, "JobGone")
    assert [start_time(pid) for pid in pids] == [None, None]

"""A session on real processes and real signals, with a run that only tells a story."""

import asyncio
import io
import os
import signal
from pathlib import Path

import pytest
from rich.console import Console

from diloco_api.names import Role
from diloco_cli.display import PlainDisplay
from diloco_cli.drills import parse_drill
from diloco_cli.session import Session
from fakes.cli_sample import HEADLINE
from fakes.scripted_run import ScriptedRun


def started(run: ScriptedRun, *drills: str) -> tuple[Session, PlainDisplay, io.StringIO]:
    text = io.StringIO()
    session = Session(run, HEADLINE, 512, [parse_drill(drill) for drill in drills], resumed=False)
    return session, PlainDisplay(Console(file=text), HEADLINE), text


async def test_a_killed_learner_is_struck_and_its_replacement_timed(tmp_path: Path) -> None:
    session, display, text = started(ScriptedRun(tmp_path, length_seconds=4.0), "kill-learner=1@0.5s")
    await session.watch(display)
    state = session.drills.states[0]
    assert state.struck_seconds == pytest.approx(0.5, abs=0.4)
    assert state.replaced_after_seconds is not None
    assert 0.3 <= state.replaced_after_seconds <= 3.0
    lines = text.getvalue().splitlines()
    assert any("drill: Learner 1 killed (SIGKILL" in line for line in lines)
    assert any("Learner 1: incarnation 2 started" in line for line in lines)
    assert any("drill: Learner 1 replaced and at work" in line for line in lines)


async def test_a_frozen_learner_stands_still_and_goes_on(tmp_path: Path) -> None:
    run = ScriptedRun(tmp_path, length_seconds=2.5)
    session, display, text = started(run, "freeze-learner=2@0s+1s")
    states: set[str] = set()

    async def spy() -> None:
        while True:
            for pid in run.pids(Role.LEARNER, 2):
                states.add(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0])
            await asyncio.sleep(0.05)

    watching = asyncio.create_task(spy())
    await session.watch(display)
    watching.cancel()
    assert "T" in states, "it was stopped"
    assert session.drills.states[0].replaced_after_seconds is None
    assert "runs freely again" in text.getvalue()


async def test_the_first_ctrl_c_drains_and_leaves_nothing_frozen(tmp_path: Path) -> None:
    run = ScriptedRun(tmp_path, length_seconds=30.0)
    session, display, text = started(run, "freeze-learner=0@0s+60s")
    asyncio.get_running_loop().call_later(1.5, os.kill, os.getpid(), signal.SIGINT)
    await session.watch(display)
    assert run.stops == ["drain"]
    assert "stopping: merging what is trained" in text.getvalue()


async def test_a_second_ctrl_c_ends_the_run_at_once(tmp_path: Path) -> None:
    run = ScriptedRun(tmp_path, length_seconds=60.0, drain_seconds=60.0)
    session, display, text = started(run)
    loop = asyncio.get_running_loop()
    loop.call_later(0.5, os.kill, os.getpid(), signal.SIGINT)
    loop.call_later(1.0, os.kill, os.getpid(), signal.SIGTERM)
    await session.watch(display)
    assert run.stops == ["drain", "now"]
    assert session.elapsed_seconds < 20
    assert "ending all processes now" in text.getvalue()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_the_end_of_a_session_or_of_its_terminal_drains(tmp_path: Path, number: signal.Signals) -> None:
    run = ScriptedRun(tmp_path, length_seconds=30.0)
    unread: list[bool] = []
    session = Session(run, HEADLINE, 512, [parse_drill("freeze-learner=0@0s+60s")], False, lambda: unread.append(True))
    display = PlainDisplay(Console(file=io.StringIO()), HEADLINE)
    asyncio.get_running_loop().call_later(1.0, os.kill, os.getpid(), number)
    await session.watch(display)
    assert run.stops == ["drain"]
    assert unread == [True] * (number is signal.SIGHUP)
    assert not session.drills.states[0].stopped or session.stop_reason == "Drained"


async def test_a_run_that_shall_outlive_its_terminal_does(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        run = ScriptedRun(tmp_path, length_seconds=1.5)
        session, display, _ = started(run)
        asyncio.get_running_loop().call_later(0.5, os.kill, os.getpid(), signal.SIGHUP)
        await session.watch(display)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert run.stops == []


async def test_output_nobody_reads_any_more_drains_the_run(tmp_path: Path) -> None:
    run = ScriptedRun(tmp_path, length_seconds=30.0)
    session, _, _ = started(run)
    readers, pipe = os.pipe()
    os.close(readers)
    with os.fdopen(pipe, "w") as gone:
        await session.watch(PlainDisplay(Console(file=gone), HEADLINE))
        os.dup2(os.open(os.devnull, os.O_WRONLY), gone.fileno())
    assert run.stops == ["drain"]
    assert session.elapsed_seconds < 20


async def test_without_a_terminal_there_are_no_escape_codes(tmp_path: Path) -> None:
    session, display, text = started(ScriptedRun(tmp_path, length_seconds=1.0))
    with display:
        await session.watch(display)
    assert "\x1b" not in text.getvalue()
    assert text.getvalue().startswith("job quickstart: DecoupledDiLoCo, 3 Learners, 854k parameters, 10.0M tokens")

"""One run from its options to its exit code and what it leaves, with runs that only tell how they end."""

import asyncio
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from builders import job
from diloco_api.errors import SpecError
from diloco_api.names import Role
from diloco_api.progress import Progress
from diloco_api.states import JobPhase
from diloco_api.status import Condition
from diloco_cli import local_job
from diloco_cli.exit_status import ExitStatus
from diloco_cli.local_job import RunOptions, run_job
from diloco_cli.session import TICK_SECONDS
from diloco_operator.local import LocalOutcome, Snapshot
from fakes.cli_sample import ended, progress, status


@dataclass
class Ending:
    """A run that is over at once."""

    folder: Path
    conditions: list[Condition]
    reason: str = ""
    heard: Progress | None = None
    error: Exception | None = None
    outer_file: Path = Path("nowhere")
    observed: Snapshot | None = field(init=False, default=None)

    def pids(self, role: Role, index: int | None = None) -> list[int]:
        return []

    def drain(self) -> None:
        pass

    def stop_now(self) -> None:
        pass

    async def run(self) -> LocalOutcome:
        (self.folder / "logs").mkdir(parents=True)
        (self.folder / "logs/synchronizer.log").write_text("Traceback: out of luck\n")
        self.observed = Snapshot(status("Running"), self.heard, False, time.time())
        await asyncio.sleep(TICK_SECONDS)
        if self.error:
            raise self.error
        self.observed = Snapshot(status("Stopped", conditions=self.conditions), self.heard, False, time.time())
        return LocalOutcome(JobPhase.STOPPED, self.reason, "Synchronizer: out of luck", self.observed)


def run_to(ending: Ending, monkeypatch: pytest.MonkeyPatch, report: str = "report.json") -> ExitStatus:
    def open_folder(_job: object, folder: Path) -> Ending:
        folder.mkdir(parents=True)
        return ending

    monkeypatch.setattr(local_job.LocalRun, "open_folder", open_folder)
    monkeypatch.setattr(local_job, "_log_to", lambda file: None)
    resume = ("/opt/my venv/bin/diloco", "run", "job.yaml")
    return run_job(job(), RunOptions(workdir=ending.folder, report=ending.folder / report, resume=resume))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "new/run"


def test_logs_of_a_start_that_crashed_for_unknown_reasons_stay(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    crashed = Ending(folder, ended("Failed", "RestartBudgetExhausted"), "RestartBudgetExhausted")
    assert run_to(crashed, monkeypatch) is ExitStatus.FAILED
    assert (folder / "logs/synchronizer.log").exists()
    assert capsys.readouterr().err == "error: toy: Synchronizer: out of luck (logs: new/run/logs)\n"


def test_of_a_start_that_failed_by_the_users_mistake_nothing_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mistaken = Ending(folder, ended("Failed", "FatalExitCode"), "FatalExitCode")
    assert run_to(mistaken, monkeypatch) is ExitStatus.FAILED
    assert os.listdir(folder.parent.parent) == []
    assert capsys.readouterr().err == "error: toy: Synchronizer: out of luck\n"


def test_of_a_run_stopped_before_it_began_nothing_stays_and_nothing_is_to_be_resumed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_to(Ending(folder, []), monkeypatch) is ExitStatus.INTERRUPTED
    assert os.listdir(folder.parent.parent) == []
    assert "stopped before it began" in capsys.readouterr().out


def test_what_the_user_can_mend_is_raised_and_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match="port"):
        run_to(Ending(folder, [], error=SpecError("port in use")), monkeypatch)
    assert os.listdir(folder.parent.parent) == []


def test_a_full_disk_is_one_line_and_keeps_the_logs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = Ending(folder, [], error=OSError(28, "No space left on device"))
    assert run_to(full, monkeypatch) is ExitStatus.FAILED
    assert capsys.readouterr().err == f"error: {folder}: No space left on device (see new/run)\n"
    assert (folder / "logs/synchronizer.log").exists()


def test_a_report_that_cannot_be_written_any_more_is_one_line_after_the_summary(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = Ending(folder, ended("Complete", "TokenBudgetReached"), "TokenBudgetReached", progress(loss_final=2.4))
    assert run_to(done, monkeypatch, report="logs") is ExitStatus.FAILED  # a folder has come into its place
    out, err = capsys.readouterr()
    assert err == f"error: --report {folder}/logs: cannot be written: Is a directory\n"
    assert "5.561 -> 2.400 nats/byte" in out
    assert not any(line.startswith("report ") for line in out.splitlines())


def test_how_to_resume_can_be_pasted_into_a_shell(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_to(Ending(folder, [], heard=progress()), monkeypatch) is ExitStatus.INTERRUPTED
    assert "stopped; to resume: '/opt/my venv/bin/diloco' run job.yaml\n" in capsys.readouterr().out

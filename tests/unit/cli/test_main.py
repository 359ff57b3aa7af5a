"""From arguments to a job and its options; nothing is run."""

import shlex
import sys
from pathlib import Path

import pytest

from diloco_api.v1alpha1 import DiLoCoJob
from diloco_cli import main
from diloco_cli.exit_status import ExitStatus
from diloco_cli.local_job import RunOptions

EXAMPLE = str(Path(__file__).resolve().parents[3] / "crds/examples/minimal.yaml")


def called(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, list[RunOptions]]:
    runs: list[RunOptions] = []

    def run_job(job: DiLoCoJob, options: RunOptions) -> ExitStatus:
        runs.append(options)
        return ExitStatus.COMPLETE

    monkeypatch.setattr(main, "run_job", run_job)
    monkeypatch.setattr(sys, "argv", list(arguments))
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code, runs


@pytest.mark.parametrize("name", ["diloco", "my venv/bin/diloco"])
def test_the_command_to_resume_is_this_one_without_its_drills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    program = tmp_path / name
    program.parent.mkdir(parents=True, exist_ok=True)
    program.touch()
    asked = ["--learners", "2", "--workdir", "a folder", "--set", "spec.budget.tokens=5000", "--report", "r.json"]
    drills = ["--drill", "kill-learner=1@3s", "--drill=kill-synchronizer@5s"]
    code, (options,) = called(monkeypatch, name, "run", EXAMPLE, *drills, *asked)
    assert code == 0
    assert len(options.drills) == 2
    again = shlex.split(shlex.join(options.resume))
    assert again == [name, "run", EXAMPLE, "--learners", "2", *asked[2:]]
    assert not any("drill" in word for word in again[1:])


def test_without_a_program_of_that_name_the_environments_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, (options,) = called(monkeypatch, "-c", "run", EXAMPLE)
    assert options.resume == (str(Path(sys.executable).parent / "diloco"), "run", EXAMPLE)


def test_found_on_the_path_it_is_called_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin/diloco"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(program.parent))
    _, (options,) = called(monkeypatch, str(program), "run", EXAMPLE)
    assert options.resume[0] == "diloco"


def test_without_arguments_there_is_help_and_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, runs = called(monkeypatch, "diloco")
    out, err = capsys.readouterr()
    assert (code, runs, err) == (0, [], "")
    assert "Usage: diloco" in out

"""From arguments to a job and its options; nothing is run."""

import shlex
import sys
from pathlib import Path

import pytest

from diloco_api.v1alpha1 import DiLoCoJob
from diloco_cli import main
from diloco_cli.cluster import BadCredentials, ClusterError
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


def ended(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["diloco", *arguments])
    with pytest.raises(SystemExit) as end:
        main.main()
    assert isinstance(end.value.code, int)
    return end.value.code


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["status", "--foo"], "No such option: --foo (see diloco status --help)"),
        (["site", "add", "a"], "Missing option '--kubeconfig'. (see diloco site add --help)"),
        (["site"], "Missing command. (see diloco site --help)"),
        (["site", "add", "hub", "--kubeconfig", "/x"], "hub: is the name of the cluster the jobs are in"),
        (["site", "add", "Site_1", "--kubeconfig", "/x"], "Site_1: the name of a site has at most 63 of a-z"),
        (["site", "add", "a", "--kubeconfig", "/there/is/none"], "/there/is/none: No such file or directory"),
        (["status", "job", "-A"], "--all-namespaces: goes without the name of a job"),
        (["logs", "job", "--learner", "1", "--synchronizer"], "--learner and --synchronizer: give one"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_command(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(monkeypatch, *arguments) == ExitStatus.INVALID
    told = capsys.readouterr().err
    assert told.startswith(f"error: {said}")
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code"), [(ClusterError("x: is away"), ExitStatus.FAILED), (BadCredentials("x: no"), ExitStatus.INVALID)]
)
def test_what_a_cluster_does_not_do_is_one_line_and_an_exit_code(
    error: ClusterError, code: ExitStatus, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_: str | None) -> None:
        raise error

    monkeypatch.setattr("diloco_cli.cluster.open_own", refuse)
    assert ended(monkeypatch, "status") == code
    assert capsys.readouterr().err == f"error: {error}\n"

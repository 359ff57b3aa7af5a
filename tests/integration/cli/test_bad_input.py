"""The real program, given something wrong: one line that names it, the right exit code, nothing left behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
QUICKSTART = (ROOT / "crds/examples/quickstart.yaml").read_text()


def diloco(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PYTHONPATH": ":".join(str(ROOT / name) for name in ("crds", "operator", "trainer_image")),
        "OMP_NUM_THREADS": "1",
    }
    program = [sys.executable, "-c", "from diloco_cli.main import main; main()", *arguments]
    return subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


def expect_refusal(answer: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert answer.returncode == code, answer.stderr
    lines = answer.stderr.splitlines()
    assert len(lines) == 1, answer.stderr
    assert lines[0].startswith("error: ")
    for word in words:
        assert word in lines[0]
    assert "Traceback" not in answer.stdout


def manifest(folder: Path, *changes: tuple[str, str]) -> Path:
    text = QUICKSTART
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file = folder / "job.yaml"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "spec.learnres.replicas=2"], ["learnres", "did you mean learners"]),
        (["--set", "spec.algorithm.syncDelay=24"], ["syncDelay", "24"]),
        (["--set", "spec.algorithm.fragments=1000"], ["fragments", "1000"]),
        (["--set", "spec.algorithm.quorum.minLearners=4"], ["quorum.minLearners", "4"]),
        (["--set", "spec.learners.replicas"], ["path=value"]),
        (["--learners", "0"], ["--learners 0"]),
        (["--learners", "two"], ["--learners", "integer"]),
        (["--drill", "kill-learner=3@30s"], ["kill-learner=3", "0 to 2"]),
        (["--drill", "kill-learner=1@soon"], ["kill-learner=1@soon"]),
        (["--report", "."], ["--report"]),
        (["--repotr", "x.json"], ["--repotr"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_argument_is_named_and_nothing_is_created(
    tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    file = manifest(tmp_path)
    expect_refusal(diloco("run", str(file), *arguments, folder=tmp_path), 2, *words)
    assert os.listdir(tmp_path) == ["job.yaml"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("replicas: 3", "replicas: 3\n    color: blue"), ["spec.learners.color", "unknown field"]),
        (("replicas: 3", "replicas: many"), ["spec.learners.replicas"]),
        (('    data:\n      uri: "{stdlib}/**/*.py"\n      sequenceLength: 64\n', ""), ["spec.train.data"]),
        (("kind: DiLoCoJob", "kind: Job"), ["kind", "DiLoCoJob"]),
        (("metadata:", "metadata: ["), ["line"]),
    ],
    ids=["unknown field", "type", "missing data", "kind", "not yaml"],
)
def test_a_wrong_manifest_is_refused_with_file_and_field(
    tmp_path: Path, change: tuple[str, str], words: list[str]
) -> None:
    file = manifest(tmp_path, change)
    expect_refusal(diloco("run", str(file), folder=tmp_path), 2, "job.yaml", *words)
    assert os.listdir(tmp_path) == ["job.yaml"]


def test_a_manifest_that_is_not_there_is_named(tmp_path: Path) -> None:
    expect_refusal(diloco("run", "nowhere.yaml", folder=tmp_path), 2, "nowhere.yaml", "No such file")
    assert os.listdir(tmp_path) == []


def test_without_arguments_it_explains_itself(tmp_path: Path) -> None:
    answer = diloco("run", "--help", folder=tmp_path)
    assert answer.returncode == 0
    assert "--drill" in answer.stdout

"""The real program, given something wrong: one line that names it, the right exit code, nothing left behind."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from diloco_api.manifest import load_job
from diloco_api.status import JobStatus, ProgressStatus
from diloco_operator.hub import FileHub

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
        (["--learners", "1000"], ["--learners: spec.learners.replicas: 1000", "256"]),
        (["--set", "spec.train.model.layers=.nan"], ["--set: spec.train.model.layers", "finite"]),
        (["--drill", "freeze-learner@1s+0s"], ["freeze-learner@1s+0s", "longer than 0"]),
        (["--workdir", "/etc/passwd"], ["--workdir /etc/passwd: is a file"]),
        (["--report", "."], ["--report"]),
        (["--report", "/proc/r.json"], ["--report /proc/r.json: /proc cannot be written"]),
        (["--report", "runs/quickstart/logs"], ["--report runs/quickstart/logs", "itself uses logs"]),
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


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("nowhere/*.txt", ["data.uri", "nowhere"]),
        ("dangling/*.txt", ["data.uri", "dangling/link.txt", "cannot be read"]),
        ("short/text.txt", ["data.uri", "short/text.txt", "6 bytes"]),
    ],
    ids=["missing", "unreadable", "shorter than a sequence"],
)
def test_data_that_cannot_be_used_fail_the_job_and_leave_nothing(tmp_path: Path, uri: str, words: list[str]) -> None:
    data, folder = tmp_path / "data", tmp_path / "here"
    for name in (data / "dangling", data / "short", folder):
        name.mkdir(parents=True)
    (data / "dangling/link.txt").symlink_to("gone")
    (data / "short/text.txt").write_text("short\n")
    file = manifest(tmp_path)
    answer = diloco("run", str(file), "--set", f"spec.train.data.uri={data}/{uri}", folder=folder)
    expect_refusal(answer, 1, "quickstart", *words)
    assert os.listdir(folder) == []


def test_a_port_in_use_is_named_and_nothing_is_created(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file = manifest(tmp_path)
        answer = diloco("run", str(file), "--set", f"spec.synchronizer.port={port}", folder=tmp_path)
    expect_refusal(answer, 2, "spec.synchronizer.port", str(port), "in use")
    assert os.listdir(tmp_path) == ["job.yaml"]


def test_a_work_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    file = manifest(tmp_path)
    expect_refusal(diloco("run", str(file), "--workdir", "job.yaml/run", folder=tmp_path), 2, "job.yaml/run")
    assert os.listdir(tmp_path) == ["job.yaml"]


async def leave_begun_job(folder: Path) -> None:
    """As a run does whose Synchronizer was heard."""
    hub = FileHub.open_folder(folder, load_job(QUICKSTART, "quickstart"))
    read = await hub.read_job()
    assert read is not None
    await hub.commit_status(read, JobStatus(progress=ProgressStatus(last_updated_time="2026-01-01T00:00:00Z")))
    hub.close()


@pytest.mark.parametrize(
    ("setting", "words"),
    [("metadata.name=other", ["quickstart", "other"]), ("spec.train.seed=5", ["spec.train", "immutable"])],
    ids=["another name", "another spec"],
)
def test_a_work_folder_of_another_job_is_left_alone(tmp_path: Path, setting: str, words: list[str]) -> None:
    folder = tmp_path / "taken"
    asyncio.run(leave_begun_job(folder))
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}
    file = manifest(tmp_path)
    answer = diloco("run", str(file), "--workdir", "taken", "--set", setting, folder=tmp_path)
    expect_refusal(answer, 2, "taken", *words)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"} == before


def test_a_manifest_that_is_not_there_is_named(tmp_path: Path) -> None:
    expect_refusal(diloco("run", "nowhere.yaml", folder=tmp_path), 2, "nowhere.yaml", "No such file")
    assert os.listdir(tmp_path) == []


def test_without_arguments_it_explains_itself(tmp_path: Path) -> None:
    answer = diloco(folder=tmp_path)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "Usage: diloco" in answer.stdout
    answer = diloco("run", "--help", folder=tmp_path)
    assert answer.returncode == 0
    assert "--drill" in answer.stdout

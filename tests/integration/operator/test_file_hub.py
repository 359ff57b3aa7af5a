"""Who may use a work folder, and what is kept in it."""

import json
from pathlib import Path

import pytest

from builders import job
from diloco_api.errors import SpecError
from diloco_api.status import Condition, JobStatus, LearnerStatus
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.hub import FileHub


def renamed(name: str) -> DiLoCoJob:
    found = job()
    return found.model_copy(update={"metadata": found.metadata.model_copy(update={"name": name})})


async def test_a_second_run_on_a_folder_in_use_is_refused_by_the_folders_name(tmp_path: Path) -> None:
    hub = FileHub.open_folder(tmp_path, job())
    with pytest.raises(SpecError, match=rf"^{tmp_path}: another run uses this work folder \(process \d+\)$"):
        FileHub.open_folder(tmp_path, job())
    hub.close()
    FileHub.open_folder(tmp_path, job()).close()


async def test_a_folder_keeps_uid_key_and_status_and_takes_a_mutable_edit(tmp_path: Path) -> None:
    hub = FileHub.open_folder(tmp_path / "new" / "folder", job())
    before, key = await hub.read_job(), await hub.read_key()
    assert before is not None
    await hub.commit_status(before, JobStatus(phase="Running"))
    hub.close()

    hub = FileHub.open_folder(tmp_path / "new" / "folder", job({"learners.replicas": 5}))
    after = await hub.read_job()
    assert after is not None
    assert after.metadata.uid == before.metadata.uid != ""
    assert (after.metadata.generation, after.spec.learners.replicas, after.status.phase) == (2, 5, "Running")
    assert await hub.read_key() == key
    hub.close()


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (renamed("another"), "holds the job of name 'toy', not 'another'; use another work folder"),
        (job({"train.seed": 7}), "holds this job with another spec.train, which is immutable; use another work folder"),
        (job(preset="DiLoCo"), "holds this job with another spec.algorithm"),
    ],
    ids=["name", "train", "algorithm"],
)
async def test_a_folder_of_another_job_is_refused_unchanged(tmp_path: Path, other: DiLoCoJob, words: str) -> None:
    FileHub.open_folder(tmp_path, job()).close()
    before = (tmp_path / "job.json").read_text()
    with pytest.raises(SpecError) as caught:
        FileHub.open_folder(tmp_path, other)
    assert str(caught.value).startswith(f"{tmp_path}: {words}")
    assert "\n" not in str(caught.value)
    assert (tmp_path / "job.json").read_text() == before


@pytest.mark.parametrize("trained", [False, True])
async def test_a_job_that_failed_before_any_learner_started_gives_its_folder_to_a_mended_one(
    tmp_path: Path, trained: bool
) -> None:
    hub = FileHub.open_folder(tmp_path, job())
    failed = Condition(
        type="Failed", status="True", reason="FatalExitCode", last_transition_time="2026-01-01T00:00:00Z"
    )
    row = LearnerStatus(index=0, site="local", incarnation=1, pod_name="toy-0-1", state="Stopped")
    before = await hub.read_job()
    assert before is not None
    await hub.commit_status(before, JobStatus(conditions=[failed], learner_statuses=[row] if trained else []))
    hub.close()
    if trained:
        with pytest.raises(SpecError, match="immutable"):
            FileHub.open_folder(tmp_path, job({"train.seed": 7}))
        return
    hub = FileHub.open_folder(tmp_path, job({"train.seed": 7}))
    after = await hub.read_job()
    assert after is not None
    assert (after.spec.train.seed, after.status) == (7, JobStatus())
    assert after.metadata.uid != before.metadata.uid
    hub.close()


async def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match=rf"^{tmp_path}/file/work: cannot be used as work folder: Not a directory$"):
        FileHub.open_folder(tmp_path / "file" / "work", job())


async def test_a_damaged_job_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text("{")
    with pytest.raises(SpecError, match=r"job\.json: is not a job of this version"):
        FileHub.open_folder(tmp_path, job())


async def test_the_key_is_for_the_owner_alone_and_events_are_lines_of_json(tmp_path: Path) -> None:
    hub = FileHub.open_folder(tmp_path, job())
    await hub.read_key()
    read = await hub.read_job()
    assert read is not None
    await hub.emit_event(read, "Normal", "Started", "execution attempt 1 starts")
    hub.close()
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    (line,) = (tmp_path / "events.jsonl").read_text().splitlines()
    assert {key: value for key, value in json.loads(line).items() if key != "time"} == {
        "type": "Normal",
        "reason": "Started",
        "message": "execution attempt 1 starts",
    }

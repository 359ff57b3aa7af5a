"""Who may use a work folder, and what is kept in it."""

import json
from pathlib import Path

import pytest

from builders import job
from diloco_api.accept import Ports
from diloco_api.errors import SpecError
from diloco_api.status import Condition, JobStatus, LearnerStatus, ProgressStatus, ResolvedStatus
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.hub import FileHub
from diloco_operator.planning.acceptance import resolve_status


def renamed(name: str) -> DiLoCoJob:
    found = job()
    return found.model_copy(update={"metadata": found.metadata.model_copy(update={"name": name})})


HEARD = ProgressStatus(last_updated_time="2026-01-01T00:00:00Z")


async def begun(folder: Path, of: DiLoCoJob, resolved: ResolvedStatus | None = None) -> None:
    """Leave a job in the folder whose Synchronizer was heard."""
    hub = FileHub.open_folder(folder, of)
    read = await hub.read_job()
    assert read is not None
    await hub.commit_status(read, JobStatus(progress=HEARD, resolved=resolved))
    hub.close()


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
    await hub.commit_status(before, JobStatus(phase="Running", progress=HEARD))
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
    await begun(tmp_path, job())
    before = (tmp_path / "job.json").read_text()
    with pytest.raises(SpecError) as caught:
        FileHub.open_folder(tmp_path, other)
    assert str(caught.value).startswith(f"{tmp_path}: {words}")
    assert "\n" not in str(caught.value)
    assert (tmp_path / "job.json").read_text() == before


@pytest.mark.parametrize("began", ["never", "heard", "started"])
@pytest.mark.parametrize("end", ["killed", "Failed", "Stopped"])
async def test_a_job_that_never_began_gives_its_folder_to_another_one(tmp_path: Path, began: str, end: str) -> None:
    hub = FileHub.open_folder(tmp_path, job())
    kind, reason = ("Failed", "FatalExitCode") if end == "Failed" else ("Progressing", "Stopped")
    status = "True" if end == "Failed" else "False"
    condition = Condition(type=kind, status=status, reason=reason, last_transition_time="2026-01-01T00:00:00Z")
    row = LearnerStatus(index=0, site="local", incarnation=1, pod_name="toy-0-1", state="Stopped")
    before = await hub.read_job()
    assert before is not None
    found = JobStatus(
        conditions=[] if end == "killed" else [condition],
        learner_statuses=[row] if began == "started" else [],
        progress=HEARD if began == "heard" else None,
    )
    await hub.commit_status(before, found)
    hub.close()
    if began != "never":
        with pytest.raises(SpecError, match="immutable"):
            FileHub.open_folder(tmp_path, job({"train.seed": 7}))
        return
    hub = FileHub.open_folder(tmp_path, job({"train.seed": 7}))
    after = await hub.read_job()
    assert after is not None
    assert (after.spec.train.seed, after.status) == (7, JobStatus())
    assert after.metadata.uid != before.metadata.uid
    hub.close()


async def test_what_a_job_that_never_began_has_left_is_removed_and_nothing_of_others(tmp_path: Path) -> None:
    (tmp_path / ".hidden").touch()
    hub = FileHub.open_folder(tmp_path, job())
    await hub.read_key()
    for folder in ("logs", "claims", "configmaps"):
        (tmp_path / folder / "x").mkdir(parents=True)
    (tmp_path / "notes.txt").touch()
    hub.leave()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "notes.txt"]


async def test_what_a_job_that_began_has_left_stays(tmp_path: Path) -> None:
    await begun(tmp_path, job())
    before = sorted(tmp_path.rglob("*"))
    FileHub.open_folder(tmp_path, job()).leave()
    assert sorted(tmp_path.rglob("*")) == before


async def test_a_folder_of_something_else_is_not_mixed_with_a_run(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(SpecError) as caught:
        FileHub.open_folder(tmp_path, job())
    assert str(caught.value) == f"{tmp_path}: cannot be used as work folder: holds no job, but other files (thesis.tex)"
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


async def test_a_file_is_no_work_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match=rf"^{tmp_path}/file: cannot be used as work folder: is a file$"):
        FileHub.open_folder(tmp_path / "file", job())


async def test_a_new_job_that_is_refused_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    def refuse(job: DiLoCoJob) -> None:
        raise SpecError("not this one")

    with pytest.raises(SpecError, match="not this one"):
        FileHub.open_folder(tmp_path, job(), refuse)
    assert list(tmp_path.iterdir()) == []
    await begun(tmp_path, job())
    FileHub.open_folder(tmp_path, job(), refuse).close()


async def test_a_synchronous_job_is_not_resumed_with_more_learners_than_it_was_accepted_with(tmp_path: Path) -> None:
    accepted = job(preset="DiLoCo")
    await begun(tmp_path, accepted, resolved=resolve_status(accepted, Ports(), "local"))
    FileHub.open_folder(tmp_path, job({"learners.replicas": 2}, preset="DiLoCo")).close()
    before = (tmp_path / "job.json").read_text()
    with pytest.raises(SpecError) as caught:
        FileHub.open_folder(tmp_path, job({"learners.replicas": 4}, preset="DiLoCo"))
    assert str(caught.value) == (
        "spec.learners.replicas: 4: must not exceed learners.replicas at acceptance: "
        "DiLoCo and StreamingDiLoCo divide the work by it (3)"
    )
    assert (tmp_path / "job.json").read_text() == before


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

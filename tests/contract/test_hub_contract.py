"""What every `Hub` promises, run on the fake, on a work folder and on an API server."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from builders import job, manifest
from diloco_api.status import JobStatus
from diloco_operator.api import JobRef
from diloco_operator.hub import FileHub, Hub, HubConflict
from diloco_operator.kube_hub import KubeHub
from fakes.hubs import FakeHub
from fakes.kube_api import FakeApi


@pytest.fixture(params=["fake", "file", "kube"])
async def hub(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Hub]:
    if request.param == "fake":
        yield FakeHub(job())
        return
    if request.param == "kube":
        api, document = FakeApi(), manifest()
        ref = JobRef("default", document["metadata"]["name"], document["metadata"]["uid"])
        api.put(ref.path, document)
        yield KubeHub(api, ref)
        return
    hub = FileHub.open_folder(tmp_path / "work", job())
    yield hub
    hub.close()


async def test_a_committed_status_is_read_again_under_a_new_resource_version(hub: Hub) -> None:
    before = await hub.read_job()
    assert before is not None
    written = await hub.commit_status(before, JobStatus(phase="Running"))
    after = await hub.read_job()
    assert after == written
    assert after is not None
    assert after.status.phase == "Running"
    assert after.metadata.resource_version != before.metadata.resource_version
    assert (after.spec, after.metadata.uid) == (before.spec, before.metadata.uid)


async def test_a_write_to_a_job_that_changed_since_it_was_read_is_refused_and_changes_nothing(hub: Hub) -> None:
    stale = await hub.read_job()
    assert stale is not None
    await hub.commit_status(stale, JobStatus(phase="Running"))
    with pytest.raises(HubConflict):
        await hub.commit_status(stale, JobStatus(phase="Failed"))
    after = await hub.read_job()
    assert after is not None
    assert after.status.phase == "Running"


async def test_the_key_stays_the_same_is_long_enough_and_is_not_in_the_job(hub: Hub) -> None:
    key = await hub.read_key()
    assert await hub.read_key() == key
    assert len(key) >= 32
    assert key.decode() not in repr(await hub.read_job())


async def test_an_event_does_not_change_the_job(hub: Hub) -> None:
    before = await hub.read_job()
    assert before is not None
    await hub.emit_event(before, "Warning", "LearnerLost", "it was lost")
    assert await hub.read_job() == before


async def test_asking_what_would_be_dropped_changes_nothing(hub: Hub) -> None:
    before = await hub.read_job()
    assert before is not None
    assert await hub.would_drop(before, JobStatus(phase="Running")) == ""
    assert await hub.read_job() == before
    assert (await hub.commit_status(before, JobStatus(phase="Running"))).status.phase == "Running"

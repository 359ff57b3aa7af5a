"""A list beside the watch: what it shows that the watch has not told, and which jobs are surely gone."""

import pytest

from builders import manifest
from diloco_operator.api import ApiError, JobRef
from diloco_operator.job_list import JobList
from fakes.kube_api import FakeApi


class Scene:
    def __init__(self) -> None:
        self.api, self.seconds = FakeApi(), 0.0
        self.jobs = JobList(self.api, ["default"], now=lambda: self.seconds)
        self.refs: dict[str, JobRef] = {}

    def put(self, name: str) -> str:
        document = manifest()
        document["metadata"] |= {"name": name, "uid": f"uid-of-{name}"}
        ref = JobRef("default", name, f"uid-of-{name}")
        self.refs[name] = ref
        return str(self.api.put(ref.path, document)["metadata"]["resourceVersion"])


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_a_watch_that_tells_everything_is_not_behind(scene: Scene) -> None:
    version = scene.put("a")
    scene.jobs.told(scene.refs["a"], version)
    assert await scene.jobs.refresh() == [(scene.refs["a"], version)]
    scene.seconds += 100
    assert scene.jobs.behind_seconds() == 0


async def test_a_watch_that_went_silent_is_behind_from_the_list_that_shows_it(scene: Scene) -> None:
    scene.jobs.told(JobRef("default", "a", "uid-of-a"), scene.put("a"))
    newer = scene.put("a")
    await scene.jobs.refresh()
    scene.seconds += 70
    await scene.jobs.refresh()
    assert scene.jobs.behind_seconds() == 70
    scene.jobs.told(scene.refs["a"], newer)
    await scene.jobs.refresh()
    assert scene.jobs.behind_seconds() == 0


async def test_a_job_is_surely_gone_after_two_complete_lists_in_a_row(scene: Scene) -> None:
    scene.put("a")
    await scene.jobs.refresh()
    assert not scene.jobs.surely_unknown("uid-of-b")
    scene.api.broken = ApiError(0, "Timeout", "no answer")
    with pytest.raises(ApiError):
        await scene.jobs.refresh()
    scene.api.broken = None
    await scene.jobs.refresh()
    assert not scene.jobs.surely_unknown("uid-of-b"), "the list before this one failed"
    await scene.jobs.refresh()
    assert scene.jobs.surely_unknown("uid-of-b")
    assert not scene.jobs.surely_unknown("uid-of-a")
    scene.put("b")
    await scene.jobs.refresh()
    assert not scene.jobs.surely_unknown("uid-of-b")


async def test_a_job_the_watch_has_told_of_since_the_lists_is_not_gone(scene: Scene) -> None:
    await scene.jobs.refresh()
    await scene.jobs.refresh()
    version = scene.put("new")
    assert scene.jobs.surely_unknown("uid-of-new")
    scene.jobs.told(scene.refs["new"], version)
    assert not scene.jobs.surely_unknown("uid-of-new"), "what it has at sites would be swept away"


async def test_a_job_whose_end_the_watch_has_missed_is_gone_all_the_same(scene: Scene) -> None:
    scene.jobs.told(JobRef("default", "a", "uid-of-a"), "1")
    await scene.jobs.refresh()
    await scene.jobs.refresh()
    assert scene.jobs.surely_unknown("uid-of-a")


async def test_jobs_that_are_each_told_of_a_moment_after_a_list_are_no_watch_that_is_behind(scene: Scene) -> None:
    for name in ("a", "b"):
        version = scene.put(name)
        await scene.jobs.refresh()
        scene.seconds += 60
        assert scene.jobs.behind_seconds() == 60
        scene.jobs.told(scene.refs[name], version)
        assert scene.jobs.behind_seconds() == 0

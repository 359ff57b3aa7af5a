"""An operator with rights in single namespaces sees in time that one of them is being deleted."""

import pytest

from diloco_operator.api import ApiError
from diloco_operator.namespaces import Namespaces
from fakes.kube_api import FakeApi

PATH = "/api/v1/namespaces/a"


class Scene:
    def __init__(self) -> None:
        self.api, self.told = FakeApi(), list[str]()
        self.namespaces = Namespaces(self.api, ["a"], self.told.append)

    async def seen(self, **metadata: str) -> bool:
        self.api.put(PATH, {"metadata": {"name": "a", **metadata}})
        await self.namespaces.look("a")
        return self.namespaces.ends("a")


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_the_end_of_a_namespace_is_told_once(scene: Scene) -> None:
    assert not await scene.seen()
    for _ in range(2):
        assert await scene.seen(deletionTimestamp="2026-01-01T00:00:00Z")
    assert scene.told == ["a"]
    assert not scene.namespaces.ends("b")


async def test_what_cannot_be_seen_is_as_it_was_and_told_once(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.api.broken = ApiError(403, "Forbidden", "namespaces is forbidden")
    for _ in range(2):
        await scene.namespaces.look("a")
    assert not scene.namespaces.ends("a")
    assert caplog.text.count("is forbidden") == 1
    scene.api.broken = None
    await scene.seen(deletionTimestamp="2026-01-01T00:00:00Z")
    scene.api.broken = ApiError(403, "Forbidden", "namespaces is forbidden")
    await scene.namespaces.look("a")
    assert scene.namespaces.ends("a"), "the right went with it"
    assert caplog.text.count("is forbidden") == 1


async def test_a_namespace_made_anew_is_another(scene: Scene) -> None:
    await scene.seen(deletionTimestamp="2026-01-01T00:00:00Z")
    del scene.api.objects[PATH]
    await scene.namespaces.look("a")
    assert not scene.namespaces.ends("a")
    assert not await scene.seen()

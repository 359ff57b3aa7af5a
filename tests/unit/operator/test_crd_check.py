"""An installed CRD that lacks a field is named before anything is done."""

import copy
from typing import Any

import pytest

from diloco_api.crd import build_crd
from diloco_operator.api import ApiError
from diloco_operator.crd_check import AGAIN_SECONDS, KEEP_SECONDS, PATH, CrdCheck
from fakes.kube_api import FakeApi


class Scene:
    def __init__(self, crd: dict[str, Any]) -> None:
        self.api, self.seconds = FakeApi(), 0.0
        self.api.put(PATH, {"items": [crd]})
        self.check = CrdCheck(self.api, now=lambda: self.seconds)


def without(*path: str) -> dict[str, Any]:
    crd = copy.deepcopy(build_crd())
    node = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for name in path[:-1]:
        node = node["properties"][name] if name != "[]" else node["items"]
    del node["properties"][path[-1]]
    return crd


async def test_our_own_crd_lacks_nothing() -> None:
    assert await Scene(build_crd()).check.problem() == ""


@pytest.mark.parametrize(
    ("path", "named"),
    [
        (("status", "goodput"), "status.goodput"),
        (("spec", "sites"), "spec.sites"),
        (("status", "learnerStatuses", "[]", "restarts"), "status.learnerStatuses[].restarts"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_field_it_lacks_is_named(path: tuple[str, ...], named: str) -> None:
    assert await Scene(without(*path)).check.problem() == f"lacks {named}"


async def test_an_updated_crd_is_noticed_within_seconds() -> None:
    scene = Scene(without("spec", "sites"))
    assert await scene.check.problem()
    scene.api.put(PATH, {"items": [build_crd()]})
    scene.seconds += AGAIN_SECONDS + 1
    assert await scene.check.problem() == ""


async def test_it_is_looked_at_seldom_and_not_at_all_without_the_right_to() -> None:
    scene = Scene(build_crd())
    scene.api.broken = ApiError(403, "Forbidden", "no")
    for _ in range(5):
        assert await scene.check.problem() == ""
    assert len(scene.api.requests) == 1
    scene.seconds += KEEP_SECONDS + 1
    await scene.check.problem()
    assert len(scene.api.requests) == 2

"""One active operator at a time, by a Lease; clocks need not agree."""

import asyncio
import time

import pytest

from diloco_operator.api import ApiError
from diloco_operator.lease import Lease, LeaseLost
from fakes.kube_api import FakeApi

PATH = "/apis/coordination.k8s.io/v1/namespaces/ops/leases/diloco-operator"


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


class Scene:
    def __init__(self) -> None:
        self.api, self.clock = FakeApi(), Clock()

    def lease(self, identity: str, duration: float = 15.0, predecessors: str = "") -> Lease:
        return Lease(self.api, "ops", identity, predecessors=predecessors, duration_seconds=duration, now=self.clock)

    @property
    def holder(self) -> str:
        return self.api.objects[PATH]["spec"]["holderIdentity"]


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def still_waits(lease: Lease) -> bool:
    """Its next attempt fails."""
    return not await lease._try(lease._take)


async def test_the_first_takes_it_and_the_second_waits(scene: Scene) -> None:
    first, second = scene.lease("a"), scene.lease("b")
    await first.acquire()
    assert first.is_held()
    assert await still_waits(second)
    assert scene.holder == "a"


async def test_a_lease_given_back_is_taken_at_once(scene: Scene) -> None:
    first, second = scene.lease("a"), scene.lease("b")
    await first.acquire()
    await first.release()
    assert not first.is_held()
    await second.acquire()
    assert scene.holder == "b"
    assert scene.api.objects[PATH]["spec"]["leaseTransitions"] == 1


async def test_a_dead_holders_lease_is_taken_after_it_was_seen_unchanged_for_its_duration(scene: Scene) -> None:
    first, second = scene.lease("a"), scene.lease("b")
    await first.acquire()
    assert await still_waits(second)
    scene.clock.seconds += 14
    assert await still_waits(second)
    await first._try(first._renew)
    scene.clock.seconds += 14
    assert await still_waits(second), "it was renewed meanwhile"
    scene.clock.seconds += 15
    await second.acquire()
    assert scene.holder == "b"


async def test_a_restarted_container_does_not_wait_for_the_process_before_it(scene: Scene) -> None:
    await scene.lease("pod_1-a").acquire()
    assert await still_waits(scene.lease("pod_2-b", predecessors="pod_2-")), "another pod"
    assert await still_waits(scene.lease("pod_1-b")), "a process of that pod that is not its first"
    await scene.lease("pod_1-b", predecessors="pod_1-").acquire()
    assert scene.holder == "pod_1-b"
    assert scene.api.objects[PATH]["spec"]["leaseTransitions"] == 1


async def test_a_holder_does_not_take_it_back_from_a_process_of_its_own_container(scene: Scene) -> None:
    first = scene.lease("pod_1-a", predecessors="pod_1-")
    await first.acquire()
    await scene.lease("pod_1-b", predecessors="pod_1-").acquire()
    assert not await first._try(first._renew)
    assert not first.is_held()
    assert scene.holder == "pod_1-b"


async def test_a_holder_that_lost_it_to_another_says_so_and_does_not_take_it_back(scene: Scene) -> None:
    first, second = scene.lease("a", 0.05), scene.lease("b", 0.05)
    await first.acquire()
    assert await still_waits(second)
    scene.clock.seconds += 1
    await second.acquire()
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(first.hold(), 5)
    assert not first.is_held()
    assert scene.holder == "b"


async def test_a_holder_that_cannot_renew_gives_up_before_another_may_take_it(scene: Scene) -> None:
    lease = scene.lease("a", 0.3)
    await lease.acquire()
    scene.api.broken = ApiError(0, "Timeout", "no answer")
    held = asyncio.create_task(lease.hold())
    await asyncio.sleep(0.1)
    assert not held.done(), "one failed attempt is none"
    scene.clock.seconds += 0.21
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(held, 5)


async def test_a_removed_lease_is_made_again_by_its_holder(scene: Scene) -> None:
    lease = scene.lease("a")
    await lease.acquire()
    del scene.api.objects[PATH]
    assert await lease._try(lease._renew)
    assert scene.holder == "a"


async def test_a_renewal_that_hangs_does_not_outlast_the_lease(scene: Scene) -> None:
    lease = Lease(scene.api, "ops", "a", duration_seconds=1.5)
    await lease.acquire()
    begun = time.monotonic()

    async def hangs(*_: object, **__: object) -> dict[str, object]:
        return await asyncio.Event().wait()  # type: ignore[return-value]

    scene.api.request = hangs  # type: ignore[method-assign]
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(lease.hold(), 5)
    assert time.monotonic() - begun < 1.5, "another may take it from then on"

"""One site of a job never holds the others up, and keeps order only where it matters."""

import asyncio
from typing import Any

import pytest

from diloco_api import names
from diloco_operator import site_batch, site_link
from diloco_operator.planning.learners import NAME_CONFLICT
from diloco_operator.planning.types import Apply, CreatePod, Delete, ReadLog, Refusal
from diloco_operator.site_batch import stages
from diloco_operator.site_link import SiteEntry, SiteLink
from diloco_operator.sites.site import AlreadyExists, Created, SiteError, SiteForbidden, SiteQuotaExceeded
from fakes.sites import FakeSite

JOB = "uid-of-the-job"


def labels(index: int = 0, incarnation: int = 1) -> dict[str, str]:
    return {
        names.LABEL_JOB_UID: JOB, names.LABEL_ROLE: "learner",
        names.LABEL_LEARNER_INDEX: str(index), names.LABEL_INCARNATION: str(incarnation),
    }  # fmt: skip


def pod(name: str, index: int = 0) -> CreatePod:
    metadata = {"name": name, "labels": labels(index)}
    spec = {"restartPolicy": "Never", "containers": [{"name": "c", "args": ["run"]}]}
    return CreatePod("a", {"kind": "Pod", "metadata": metadata, "spec": spec})


def thing(kind: str, name: str) -> Apply:
    spec = {"template": {"metadata": {"labels": labels()}, "spec": {"containers": [{"name": "c"}]}}}
    return Apply("a", {"kind": kind, "metadata": {"name": name, "labels": labels()}, "spec": spec})


def link(site: FakeSite | None, wakes: list[int], **entry: Any) -> SiteLink:
    clock = asyncio.get_running_loop().time
    return SiteLink(SiteEntry("a", site, **entry), JOB, lambda: wakes.append(1), clock)


async def test_what_others_read_comes_first_and_a_learners_secret_goes_with_its_pod() -> None:
    actions = [
        thing("Deployment", "sync"), thing("Secret", "l-0-1"), pod("l-0-1"), thing("ConfigMap", "config"),
        Delete("a", "Pod", "old", "u"),
    ]  # fmt: skip
    first, second = stages(actions)
    assert [[action.key for action in chain] for chain in first] == [[("ConfigMap", "config")]]  # type: ignore[union-attr]
    chains = [[type(action).__name__ for action in chain] for chain in second]
    assert chains == [["Apply"], ["Apply", "CreatePod"], ["Delete"]]


async def test_a_site_that_hangs_costs_one_short_wait_and_none_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_link, "PATIENCE_SECONDS", 0.1)
    site, wakes, answer = FakeSite("a"), [], asyncio.Event()

    async def hang(job_uid: str) -> list[Any]:
        await answer.wait()
        return []

    site.list_owned = hang  # type: ignore[method-assign]
    linked, loop = link(site, wakes), asyncio.get_running_loop()
    assert (await linked.look()).unreachable == "Timeout"
    before = loop.time()
    assert (await linked.look()).unreachable == "Timeout"
    assert loop.time() - before < 0.05
    answer.set()
    async with asyncio.timeout(2):
        while not wakes:
            await asyncio.sleep(0.01)
    view = await linked.look()
    assert (view.unreachable, view.last_contact is not None) == ("", True)
    await linked.close()


async def test_an_answer_that_came_long_ago_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_link, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(site_link, "FRESH_SECONDS", 0.05)
    site = FakeSite("a")
    real, delay = site.list_owned, [0.1]

    async def slow(job_uid: str) -> list[Any]:
        listed = await real(job_uid)
        await asyncio.sleep(delay[0])
        return listed

    site.list_owned = slow  # type: ignore[method-assign]
    linked = link(site, [])
    assert (await linked.look()).unreachable == "Timeout"
    await site.create_pod(pod("l-0-1").manifest)
    await asyncio.sleep(0.2)
    delay[0] = 0.0
    assert [seen.name for seen in (await linked.look()).pods] == ["l-0-1"]


async def test_a_slow_batch_goes_on_beside_the_next_pass_and_wakes_when_it_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(site_link, "PATIENCE_SECONDS", 0.05)
    site, wakes, created = FakeSite("a"), [], asyncio.Event()
    real = site.create_pod

    async def slow(manifest: Any) -> Any:
        await created.wait()
        return await real(manifest)

    site.create_pod = slow  # type: ignore[method-assign]
    linked = link(site, wakes)
    await linked.apply([pod("l-0-1")])
    await linked.apply([pod("l-1-1", 1)])  # not begun: the first batch is under way
    created.set()
    async with asyncio.timeout(2):
        while not wakes:
            await asyncio.sleep(0.01)
    assert site.pod_names() == ["l-0-1"]
    await linked.apply([pod("l-1-1", 1)])
    assert site.pod_names() == ["l-0-1", "l-1-1"]


async def test_a_batch_is_bounded_and_the_rest_is_asked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_link, "BATCH", 3)
    site, wakes = FakeSite("a"), []
    await link(site, wakes).apply([pod(f"l-{index}-1", index) for index in range(5)])
    assert (len(site.pod_names()), wakes) == (3, [1])


async def test_deletions_that_keep_failing_do_not_keep_creations_waiting_for_ever() -> None:
    class Undeletable(FakeSite):
        async def delete(self, kind: str, name: str, uid: str | None) -> None:
            raise SiteForbidden("may not delete")

    site, removals = Undeletable("a"), [Delete("a", "Pod", f"old-{index}", "u") for index in range(70)]
    linked = link(site, [])
    for _ in range(3):
        await linked.apply([*removals, *(pod(f"l-{index}-1", index) for index in range(5))])
    assert len(site.pod_names()) == 5


async def test_no_more_than_a_few_calls_are_under_way_at_once() -> None:
    running, most = 0, 0

    class Counting(FakeSite):
        async def create_pod(self, manifest: Any) -> Created | AlreadyExists:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01)
            running -= 1
            return await super().create_pod(manifest)

    await link(Counting("a"), []).apply([pod(f"l-{index}-1", index) for index in range(30)])
    assert most == site_batch.PARALLEL


async def test_after_the_first_denial_by_quota_no_more_creations_are_tried_but_deletions_go_on() -> None:
    tried: list[str] = []

    class Full(FakeSite):
        async def create_pod(self, manifest: Any) -> Created | AlreadyExists:
            tried.append(manifest["metadata"]["name"])
            await asyncio.sleep(0.01)
            raise SiteQuotaExceeded("exceeded quota: pods")

    site = Full("a")
    await FakeSite.create_pod(site, pod("old").manifest)
    linked = link(site, [])
    await linked.apply([*(pod(f"l-{index}-1", index) for index in range(30)), Delete("a", "Pod", "old", None)])
    assert len(tried) <= site_batch.PARALLEL
    assert ("delete", "Pod", "old") in site.calls
    view = await linked.look()
    assert set(view.refusals) == {f"l-{index}-1" for index in range(30)}
    assert {refusal.reason for refusal in view.refusals.values()} == {"QuotaExceeded"}


async def test_a_failed_apply_is_told_by_kind_and_name_and_the_pod_that_needs_it_is_still_tried() -> None:
    class Stubborn(FakeSite):
        async def apply(self, manifest: Any) -> None:
            raise SiteError("no")

    site = Stubborn("a")
    linked = link(site, [])
    await linked.apply([thing("ConfigMap", "config"), pod("l-0-1")])
    view = await linked.look()
    assert view.object_refusals == {("ConfigMap", "config"): Refusal("SiteError", "no")}
    assert site.pod_names() == ["l-0-1"]


async def test_a_site_without_credentials_is_unreachable_and_says_why() -> None:
    linked = link(None, [], problem=Refusal("SecretMissing", "Secret k: there is none"))
    view = await linked.look()
    assert (view.unreachable, view.credentials_problem) == ("SecretMissing", "SecretMissing")
    assert view.message == "Secret k: there is none"


async def test_other_credentials_are_used_and_watched_at_once() -> None:
    old, new, wakes = FakeSite("a"), FakeSite("a"), []
    linked = link(old, wakes)
    linked.watch()
    await asyncio.sleep(0.01)
    await linked.use(SiteEntry("a", new))
    await asyncio.sleep(0.01)
    await new.create_pod(pod("l-0-1").manifest)
    async with asyncio.timeout(2):
        while not wakes:
            await asyncio.sleep(0.01)
    assert [seen.name for seen in (await linked.look()).pods] == ["l-0-1"]
    await linked.close()


async def test_the_cluster_is_identified_before_its_list_is_believed() -> None:
    async def refuse() -> str:
        raise SiteError("may not look")

    async def tell() -> str:
        return "cluster-1"

    assert (await link(FakeSite("a"), [], identify=tell).look()).cluster_uid == "cluster-1"
    assert (await link(FakeSite("a"), [], identify=refuse).look()).unreachable == "SiteError"


class CountingSite(FakeSite):
    looks = 0

    async def list_owned(self, job_uid: str) -> list[Any]:
        self.looks += 1
        return await super().list_owned(job_uid)


@pytest.mark.parametrize(
    ("label", "value"), [(names.LABEL_INCARNATION, "2"), (names.LABEL_ORIGIN, "another"), (names.LABEL_JOB_UID, "b")]
)
async def test_a_pod_of_that_name_is_ours_only_with_all_that_makes_it_ours(label: str, value: str) -> None:
    site, ours, theirs = FakeSite("a"), pod("l-0-1"), pod("l-1-1", 1)
    await site.create_pod(ours.manifest)
    await site.create_pod({**theirs.manifest, "metadata": {"name": theirs.name, "labels": labels(1) | {label: value}}})
    linked = link(site, [])
    await linked.apply([ours, theirs])
    assert {name: refusal.reason for name, refusal in (await linked.look()).refusals.items()} == {
        theirs.name: NAME_CONFLICT
    }


async def test_a_watched_site_where_nothing_happens_is_not_asked_at_every_pass() -> None:
    site = CountingSite("a")
    linked = link(site, [], believed_seconds=60)
    linked.watch()
    await asyncio.sleep(0.01)
    for _ in range(5):
        await linked.look()
    assert site.looks == 1
    await site.create_pod(pod("l-0-1").manifest)  # somebody else's doing, told by the watch
    await asyncio.sleep(0.01)
    assert [seen.name for seen in (await linked.look()).pods] == ["l-0-1"]
    await linked.apply([pod("l-1-1", 1)])
    assert [seen.name for seen in (await linked.look()).pods] == ["l-0-1", "l-1-1"]
    await linked.close()


async def test_a_change_during_a_look_makes_the_next_pass_look_again() -> None:
    site = CountingSite("a")
    linked, listing = link(site, [], believed_seconds=60), site.list_owned

    async def slow(job_uid: str) -> list[Any]:
        listed = await listing(job_uid)
        await site.create_pod(pod("l-0-1").manifest)
        await asyncio.sleep(0.02)
        return listed

    linked.watch()
    await asyncio.sleep(0.01)
    site.list_owned = slow  # type: ignore[method-assign]
    assert (await linked.look()).pods == ()
    assert [seen.name for seen in (await linked.look()).pods] == ["l-0-1"]
    await linked.close()


async def test_what_is_not_watched_is_seen_when_the_look_is_no_longer_believed() -> None:
    site = CountingSite("a")
    linked = link(site, [], believed_seconds=0.05)
    linked.watch()
    await asyncio.sleep(0.01)
    await linked.look()
    await asyncio.sleep(0.06)
    await linked.look()
    assert site.looks == 2
    await linked.close()


async def test_without_a_watch_every_pass_looks() -> None:
    site = CountingSite("a")
    linked = link(site, [], believed_seconds=60)
    await linked.look()
    await linked.look()
    assert site.looks == 2


async def test_a_pod_with_labels_nobody_of_us_wrote_is_a_site_that_cannot_be_read_and_breaks_no_pass() -> None:
    site = FakeSite("a")

    async def odd(job_uid: str) -> list[Any]:
        return [{"kind": "Pod", "metadata": {"name": "x", "uid": "u", "labels": {names.LABEL_LEARNER_INDEX: "first"}}}]

    site.list_owned = odd  # type: ignore[method-assign]
    view = await link(site, []).look()
    assert view.unreachable == "InternalError"
    assert view.message == "ValueError"  # what the site wrote stays out of the status


async def test_a_log_is_read_beside_the_batch_and_told_with_the_next_look() -> None:
    site, wakes = FakeSite("a"), []
    site.logs["l-0-1"] = "joined\n"
    linked = link(site, wakes)
    await linked.apply([ReadLog("a", "l-0-1", "learner"), thing("ConfigMap", "config")])
    async with asyncio.timeout(2):
        while (tail := (await linked.look()).log_tail) is None:
            await asyncio.sleep(0.01)
    assert (tail.pod, tail.text, tail.problem) == ("l-0-1", "joined\n", "")
    assert wakes
    assert ("apply", "ConfigMap", "config") in site.calls
    await linked.close()


async def test_a_log_that_does_not_come_holds_nothing_up_and_is_asked_for_once() -> None:
    site, reads, never = FakeSite("a"), [], asyncio.Event()

    async def hang(pod: str, container: str) -> str:
        reads.append(pod)
        await never.wait()
        return ""

    site.log_tail = hang  # type: ignore[method-assign]
    linked = link(site, [])
    for number in range(3):
        await linked.apply([ReadLog("a", "l-0-1", "learner"), thing("ConfigMap", f"config-{number}")])
    assert reads == ["l-0-1"]
    assert [name for call, _, name in site.calls if call == "apply"] == ["config-0", "config-1", "config-2"]
    assert (await linked.look()).log_tail is None
    await linked.close()


async def test_a_log_that_may_not_be_read_is_told_by_its_reason() -> None:
    site, wakes = FakeSite("a"), []
    site.log_problem = SiteForbidden("pods/log")
    linked = link(site, wakes)
    await linked.apply([ReadLog("a", "l-0-1", "learner")])
    async with asyncio.timeout(2):
        while (tail := (await linked.look()).log_tail) is None:
            await asyncio.sleep(0.01)
    assert (tail.text, tail.problem) == ("", "Forbidden")
    await linked.close()

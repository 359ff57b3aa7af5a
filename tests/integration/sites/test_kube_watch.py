"""A site's watch: what is told, and how it survives everything a connection and a server can do to it."""

import asyncio
import gc
import logging
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from diloco_operator.sites.kube import KubeSite
from diloco_operator.sites.kube_breaker import Pauses
from diloco_operator.sites.kube_client import KubeLimits
from diloco_operator.sites.kube_kinds import HUB_KINDS, SITE_KINDS
from diloco_operator.sites.site import SiteEvent
from fakes.api_server import ApiServer, Asked, Collection, bookmark, event, item, status
from fakes.tcp_proxy import TcpProxy

PODS = "/api/v1/namespaces/a/pods"
LIMITS = KubeLimits(
    connect_seconds=1,
    read_seconds=1,
    watch_inactivity_seconds=30,
    watch_retry_seconds=0.02,
    longest_watch_retry_seconds=0.2,
    pauses=Pauses(first_seconds=0.1, longest_seconds=0.2),
)


@pytest.fixture
def pods() -> Collection:
    return Collection()


@pytest.fixture
async def server(pods: Collection) -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        server.answers[PODS] = pods.answer
        yield server


@asynccontextmanager
async def site_of(server: ApiServer, limits: KubeLimits = LIMITS, url: str = "") -> AsyncIterator[KubeSite]:
    site = KubeSite("s", server.credentials(url), "a", kinds=SITE_KINDS, limits=limits)
    try:
        yield site
    finally:
        await site.close()


async def told(watch: AsyncIterator[SiteEvent], count: int = 1) -> list[tuple[str, str]]:
    """The next events: type and name."""
    async with asyncio.timeout(10):
        events = [await anext(watch) for _ in range(count)]
    return [(event.type, event.name) for event in events]


def watches(server: ApiServer) -> list[Asked]:
    return [asked for asked in server.asked if "watch" in asked.query]


async def test_what_there_is_and_what_happens_is_told_as_metadata(server: ApiServer, pods: Collection) -> None:
    pods.items = [item("old", "j")]
    async with site_of(server) as site:
        watch = site.watch("j")
        assert await told(watch) == [("ADDED", "old")]
        await pods.watched()
        pods.tell("ADDED", item("a", "j", "2"))
        pods.tell("MODIFIED", item("a", "j", "3"))
        pods.tell("DELETED", item("a", "j", "4"))
        assert await told(watch, 3) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    (asked,) = watches(server)
    assert "PartialObjectMetadata" in asked.headers["Accept"]
    assert asked.query["allowWatchBookmarks"] == "true"
    assert asked.query["labelSelector"] == "diloco.dev/job-uid"


async def test_a_watch_that_ends_goes_on_from_the_last_bookmark(server: ApiServer, pods: Collection) -> None:
    async with site_of(server) as site:
        watch = site.watch("j")
        await pods.watched()
        pods.tell("BOOKMARK", bookmark("77"))
        pods.send("end")
        await pods.watched(0)
        await pods.watched()
        pods.tell("ADDED", item("a", "j", "78"))
        assert await told(watch) == [("ADDED", "a")]
    assert [asked.query["resourceVersion"] for asked in watches(server)] == ["1", "77"]
    assert len(server.asked) == 3  # one list


@pytest.mark.parametrize("way", ["event", "status"])
async def test_a_version_that_is_too_old_leads_to_a_list_and_what_was_missed_is_told(
    server: ApiServer, pods: Collection, way: str
) -> None:
    pods.items = [item("stays", "j"), item("changes", "j"), item("goes", "j"), item("other", "k")]
    async with site_of(server) as site:
        watch = site.watch("j")
        await told(watch, 3)
        await pods.watched()
        pods.items = [item("stays", "j"), item("changes", "j", "5"), item("comes", "j", "6")]
        pods.version = "9"
        if way == "event":
            pods.tell("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})
        else:
            pods.refusals = [status(410, "Expired", "too old")]
            pods.send("end")
        assert set(await told(watch, 3)) == {("MODIFIED", "changes"), ("ADDED", "comes"), ("DELETED", "goes")}
        await pods.watched()
    assert watches(server)[-1].query["resourceVersion"] == "9"


@pytest.mark.parametrize("end", ["end", "reset"])
async def test_half_a_line_is_not_told_and_the_watch_goes_on(
    server: ApiServer, pods: Collection, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with site_of(server) as site:
        watch = site.watch("j")
        await pods.watched()
        whole = event("ADDED", item("a", "j", "2"))
        pods.send(whole[: len(whole) // 2])
        pods.send(end)
        await pods.watched(0)
        await pods.watched()
        pods.send(whole)
        assert await told(watch) == [("ADDED", "a")]
    broke = [record for record in caplog.records if "TCPFailure" in record.message]
    assert len(broke) == len([record for record in caplog.records if "watch" in record.message]) == (end == "reset")


@pytest.mark.parametrize(
    "line",
    [b"garbage\n", b"{}\n", b'{"type": "ADDED", "object": []}\n', b'{"type": "ADDED", "object": {}}\n', b"[1]\n",
     b'{"type": "ERROR", "object": {"code": "x"}}\n', b'{"type": "ADDED", "object": {"metadata": 7}}\n', b"x" * 2**23],
    ids=["garbage", "no object", "list", "no metadata", "no mapping", "odd error", "odd metadata", "endless line"],
)  # fmt: skip
async def test_a_line_that_makes_no_sense_ends_one_watch_not_the_watching(
    server: ApiServer, pods: Collection, line: bytes
) -> None:
    async with site_of(server) as site:
        watch = site.watch("j")
        await pods.watched()
        pods.send(line)
        await pods.watched(0)
        await pods.watched()
        pods.tell("ADDED", item("a", "j", "2"))
        assert await told(watch) == [("ADDED", "a")]


async def test_a_connection_that_goes_dead_is_noticed_by_its_silence(server: ApiServer, pods: Collection) -> None:
    limits = KubeLimits(watch_inactivity_seconds=0.5, watch_retry_seconds=0.02)
    async with (
        TcpProxy(server.port) as proxy,
        site_of(server, limits, f"https://127.0.0.1:{proxy.port}") as site,
    ):
        watch = site.watch("j")
        await pods.watched()
        dead = set(pods.watches)
        for connection in proxy.connections:
            connection.freeze()
        pods.tell("ADDED", item("a", "j", "2"))
        pods.version = "2"
        async with asyncio.timeout(10):
            while not set(pods.watches) - dead:  # the dead one may still be open at this end
                await asyncio.sleep(0.01)
        pods.tell("ADDED", item("a", "j", "2"))
        assert await told(watch) == [("ADDED", "a")]


async def test_a_kind_of_which_nothing_is_ever_told_is_watched_on_and_nothing_is_said(
    server: ApiServer, pods: Collection, caplog: pytest.LogCaptureFixture
) -> None:
    limits = KubeLimits(watch_inactivity_seconds=0.3, watch_retry_seconds=0.02)
    with caplog.at_level(logging.INFO):
        async with site_of(server, limits) as site:
            watch = site.watch("j")
            for _ in range(3):
                await pods.watched()
                await pods.watched(0)
            await pods.watched()
            pods.tell("ADDED", item("a", "j", "2"))
            assert await told(watch) == [("ADDED", "a")]
    assert len(server.asked) - len(watches(server)) == 1  # one list
    assert not [record for record in caplog.records if record.name.startswith("diloco")]


async def test_bookmarks_keep_a_quiet_watch_alive(server: ApiServer, pods: Collection) -> None:
    limits = KubeLimits(watch_inactivity_seconds=0.6, watch_retry_seconds=0.02)
    async with site_of(server, limits) as site:
        site_watch = site.watch("j")
        await pods.watched()
        for version in range(2, 8):
            await asyncio.sleep(0.3)
            pods.tell("BOOKMARK", bookmark(str(version)))
        pods.tell("ADDED", item("a", "j", "9"))
        assert await told(site_watch) == [("ADDED", "a")]
    assert len(watches(server)) == 1


async def test_refusals_for_a_while_are_waited_out_and_told_once(
    server: ApiServer, pods: Collection, caplog: pytest.LogCaptureFixture
) -> None:
    pods.refusals = [status(403, "Forbidden", "pods is forbidden") for _ in range(5)]
    with caplog.at_level(logging.INFO):
        async with site_of(server) as site:
            watch = site.watch("j")
            await pods.watched()
            pods.tell("ADDED", item("a", "j", "2"))
            assert await told(watch) == [("ADDED", "a")]
    lines = [record.message for record in caplog.records if "Forbidden" in record.message]
    assert lines == ["site s: watch of pods: Forbidden: pods is forbidden"]


async def test_a_server_away_for_a_while_is_found_again(server: ApiServer, pods: Collection) -> None:
    async with site_of(server) as site:
        watch = site.watch("j")
        await pods.watched()
        await server.__aexit__()
        await asyncio.sleep(0.5)
        pods.items, pods.version = [item("a", "j", "5")], "5"
        pods.refusals = [status(410, "Expired", "another etcd")]
        await server.__aenter__()
        assert await told(watch) == [("ADDED", "a")]


async def test_watches_that_break_together_do_not_make_a_site_count_as_gone(server: ApiServer) -> None:
    watched = {kind.path("a"): Collection() for kind in HUB_KINDS if kind.watched}
    server.answers.update({path: collection.answer for path, collection in watched.items()})
    limits = KubeLimits(watch_retry_seconds=5)
    site = KubeSite("s", server.credentials(), "a", limits=limits)
    watch = site.watch("j")
    assert len(watched) == 3
    for collection in watched.values():
        await collection.watched()
        collection.send("reset")
        await collection.watched(0)
    await asyncio.sleep(0.1)
    assert await site.secret_data("none") is None
    del watch
    await site.close()


async def test_jobs_share_one_watch_and_each_is_told_its_own(server: ApiServer, pods: Collection) -> None:
    async with site_of(server) as site:
        first, second, again = site.watch("j"), site.watch("k"), site.watch("j")
        await pods.watched()
        pods.tell("ADDED", item("a", "j", "2"))
        pods.tell("ADDED", item("b", "k", "3"))
        pods.tell("ADDED", item("c", "j", "4"))
        assert await told(first, 2) == await told(again, 2) == [("ADDED", "a"), ("ADDED", "c")]
        assert await told(second) == [("ADDED", "b")]
    assert len(watches(server)) == 1


async def test_a_watch_nobody_reads_any_more_is_ended_and_one_read_again_begins_anew(
    server: ApiServer, pods: Collection
) -> None:
    async with site_of(server) as site:
        first, second = site.watch("j"), site.watch("k")
        await pods.watched()
        del first
        gc.collect()
        await asyncio.sleep(0.1)
        assert len(pods.watches) == 1
        del second
        await pods.watched(0)
        pods.items = [item("a", "j", "5")]
        assert await told(site.watch("j")) == [("ADDED", "a")]


async def test_closing_a_site_ends_its_watches(server: ApiServer, pods: Collection) -> None:
    async with site_of(server) as site:
        watch = site.watch("j")
        await pods.watched()
        await site.close()
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(anext(watch), 5)
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(anext(site.watch("j")), 5)
    await pods.watched(0)


async def test_a_hundred_sites_come_and_go_and_leave_nothing_behind(server: ApiServer, pods: Collection) -> None:
    async def come_and_go() -> None:
        async with site_of(server, url=f"https://localhost:{server.port}") as site:
            watch = site.watch("j")
            await pods.watched()
            pods.tell("ADDED", item("a", "j", "2"))
            await told(watch)
        await pods.watched(0)

    await come_and_go()
    before = await _held()
    for _ in range(100):
        await come_and_go()
    after = await _held()
    assert all(now <= then + 3 for now, then in zip(after, before, strict=True)), (before, after)


async def _held() -> tuple[int, int, int]:
    """Tasks, threads and open files of this process."""
    gc.collect()
    await asyncio.sleep(0.3)
    return len(asyncio.all_tasks()), threading.active_count(), len(os.listdir("/proc/self/fd"))

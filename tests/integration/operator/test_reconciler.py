"""The loop around the plan: what is written when, what a failure of one part does to the others."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from builders import job, manifest
from diloco_api.progress import LearnerProgress, LearnerState, Phase, Progress, TokenTotals
from diloco_api.tokens import AdminRole, read_admin_token
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.api import JobRef
from diloco_operator.hub import HubError
from diloco_operator.hub_facts import FixedFacts, HubFacts
from diloco_operator.kube_hub import KubeHub
from diloco_operator.planning.types import OperatorPolicy, Stop
from diloco_operator.reconciler import CONFLICT_SECONDS, LONGEST_RETRY_SECONDS, PATIENT_FAILURES, Pass, Reconciler
from diloco_operator.site_link import FixedSites
from diloco_operator.sites.following import follow
from diloco_operator.sites.site import SiteEvent, SiteUnreachable
from diloco_operator.synchronizer_client import (
    MAX_ANSWER_BYTES,
    AdminEndpoint,
    SynchronizerClient,
    SynchronizerSilent,
)
from fakes.hubs import KEY, FakeHub
from fakes.kube_api import FakeApi
from fakes.sites import FakeSite

HERE = FixedFacts(HubFacts(admin_host="127.0.0.1"))
POLICY = OperatorPolicy(image="trainer:1", loopback=True, poll_seconds=0.05)


class ScriptedSynchronizer:
    """Hears every running Learner of a site, once `phase` is set."""

    def __init__(self, site: FakeSite) -> None:
        self.site = site
        self.phase: Phase | None = None
        self.drains = 0

    async def progress(self, endpoint: AdminEndpoint, key: bytes, job_uid: str) -> Progress:
        assert key == KEY
        if self.phase is None:
            raise SynchronizerSilent("TCPFailure", "not yet")
        learners = [
            LearnerProgress(
                index=int(labels["diloco.dev/learner-index"]), incarnation=int(labels["diloco.dev/incarnation"]),
                site="local", live=True, heartbeat_age_seconds=0, state=LearnerState.TRAINING, step=1, token_clock=1,
            )
            for (kind, _), pod in self.site.objects.items()
            if kind == "Pod" and pod["status"]["phase"] == "Running"
            and "diloco.dev/learner-index" in (labels := pod["metadata"]["labels"])
        ]  # fmt: skip
        return Progress(
            job_uid=job_uid, epoch=0, phase=self.phase, served_seconds=1, uptime_seconds=1, budget_tokens=1, percent=1,
            outer_steps=1, outer_rounds=1, tokens=TokenTotals(), learners=learners, last_merge_age_seconds=0,
        )  # fmt: skip

    async def drain(self, endpoint: AdminEndpoint, key: bytes, job_uid: str) -> None:
        self.drains += 1


class Scene:
    def __init__(self) -> None:
        self.site, self.hub = FakeSite(), FakeHub(job())
        self.synchronizer = ScriptedSynchronizer(self.site)
        self.passes: list[Pass] = []
        self.reconciler = Reconciler(
            self.hub,
            FixedSites([self.site]),
            HERE,
            self.synchronizer,
            POLICY,
            fresh_start=True,
            on_pass=self.passes.append,
        )

    async def passes_of(self, count: int) -> None:
        for _ in range(count):
            await self.reconciler.one_pass()

    async def at_work(self) -> None:
        await self.passes_of(1)
        self.synchronizer.phase = Phase.RUNNING
        await self.passes_of(4)
        self.site.calls.clear()

    def learners(self) -> list[str]:
        return [name for name in self.site.pod_names() if "synchronizer" not in name]


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_a_failed_write_ends_the_pass_before_anything_is_done(scene: Scene) -> None:
    scene.hub.refuse = 1
    assert await scene.reconciler.one_pass() is None
    assert scene.site.calls == []
    assert scene.hub.events == []
    assert await scene.reconciler.one_pass() is not None
    assert scene.site.calls != []
    assert [reason for _, reason, _ in scene.hub.events] == ["Accepted", "Started"]


async def test_at_rest_a_pass_calls_no_site_and_writes_nothing(scene: Scene) -> None:
    await scene.at_work()
    writes = len(scene.hub.writes)
    await scene.passes_of(10)
    assert scene.site.calls == []
    assert len(scene.hub.writes) == writes
    assert scene.passes[-1].plan.live.learners.summary == "3/3"


async def test_a_lost_pod_wakes_the_loop_and_is_replaced_long_before_the_next_look(scene: Scene) -> None:
    scene = Scene()
    scene.reconciler = Reconciler(
        scene.hub, FixedSites([scene.site]), HERE, scene.synchronizer,
        OperatorPolicy("x", loopback=True, poll_seconds=3600),
        fresh_start=True, on_pass=scene.passes.append,
    )  # fmt: skip
    task = asyncio.create_task(scene.reconciler.run())
    async with asyncio.timeout(5):
        while not scene.passes:
            await asyncio.sleep(0.01)
        scene.synchronizer.phase = Phase.RUNNING
        scene.reconciler.wake()
        while len(scene.learners()) < 3:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        scene.site.kill("toy-0a1b2c3d-1-1", 9)
        while "toy-0a1b2c3d-1-2" not in scene.learners():
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_replacement_is_one_line_of_the_log(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    await scene.at_work()
    caplog.set_level(logging.INFO, logger="diloco_operator")
    scene.site.kill("toy-0a1b2c3d-1-1", 9)
    await scene.passes_of(3)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert said == ["job default/toy: Learner 1 starts as incarnation 2 at site local: AppError"]


async def test_a_site_that_fails_is_data_and_its_recovery_converges(scene: Scene) -> None:
    await scene.at_work()
    scene.site.down = SiteUnreachable("no route")
    await scene.passes_of(3)
    assert scene.passes[-1].observed.sites[0].unreachable == "Timeout"
    assert scene.passes[-1].plan.status.sites[0].reason == "Timeout"
    scene.site.down = None
    scene.site.vanish("toy-0a1b2c3d-0-1")
    await scene.passes_of(3)
    assert scene.learners() == ["toy-0a1b2c3d-1-1", "toy-0a1b2c3d-2-1", "toy-0a1b2c3d-0-2"]


async def test_a_foreign_pod_of_our_name_is_left_alone_and_the_next_incarnation_is_taken(scene: Scene) -> None:
    await scene.passes_of(1)
    foreign = {"kind": "Pod", "metadata": {"name": "toy-0a1b2c3d-1-1", "labels": {"diloco.dev/job-uid": "another"}}}
    await scene.site.create_pod({**foreign, "spec": {"containers": [{}]}})
    scene.synchronizer.phase = Phase.RUNNING
    await scene.passes_of(4)
    assert sorted(scene.learners()) == [
        "toy-0a1b2c3d-0-1", "toy-0a1b2c3d-1-1", "toy-0a1b2c3d-1-2", "toy-0a1b2c3d-2-1",
    ]  # fmt: skip
    row = scene.passes[-1].plan.status.learner_statuses[1]
    assert (row.incarnation, row.restarts_counted) == (2, 0)
    assert ("delete", "Pod", "toy-0a1b2c3d-1-1") not in scene.site.calls


async def test_a_run_ends_by_itself_when_complete_and_cleaned_up(scene: Scene) -> None:
    task = asyncio.create_task(scene.reconciler.run())
    async with asyncio.timeout(10):
        while not scene.passes:
            await asyncio.sleep(0.01)
        scene.synchronizer.phase = Phase.RUNNING
        while len(scene.learners()) < 3:
            await asyncio.sleep(0.01)
        scene.synchronizer.phase = Phase.COMPLETE
        for name in scene.learners():
            scene.site.finish(name, 0)
        end = await task
    assert end.last is not None
    assert (end.last.plan.status.phase, end.problem) == ("Complete", "")
    assert {kind for kind, _ in scene.site.objects} == {"PersistentVolumeClaim"}


async def test_a_stop_is_asked_of_the_synchronizer_until_it_drains(scene: Scene) -> None:
    await scene.at_work()
    scene.reconciler.request_stop(Stop.DRAIN)
    await scene.passes_of(2)
    assert scene.synchronizer.drains == 2
    scene.synchronizer.phase = Phase.DRAINING
    await scene.passes_of(2)
    assert scene.synchronizer.drains == 2


@pytest.mark.parametrize("stop", [Stop.NOW, Stop.DRAIN])
async def test_a_run_whose_job_cannot_be_written_ends_when_asked_and_says_why(
    scene: Scene, stop: Stop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diloco_operator.reconciler.RETRY_SECONDS", 0.01)
    problems: list[str] = []
    reconciler = Reconciler(
        scene.hub,
        FixedSites([scene.site]),
        HERE,
        scene.synchronizer,
        POLICY,
        fresh_start=True,
        on_problem=problems.append,
    )
    scene.hub.refuse = 1_000_000
    task = asyncio.create_task(reconciler.run())
    async with asyncio.timeout(5):
        while len(problems) < 10:
            await asyncio.sleep(0.01)
        assert not task.done()
        reconciler.request_stop(stop)
        end = await task
    assert (end.last, end.problem, end.gone) == (None, "made to fail", False)
    assert set(problems) == {"made to fail"}


async def test_a_drained_run_outlives_one_failed_write(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diloco_operator.reconciler.RETRY_SECONDS", 0.01)
    await scene.at_work()
    scene.reconciler.request_stop(Stop.DRAIN)
    scene.synchronizer.phase = Phase.STOPPED
    for name in scene.learners():
        scene.site.finish(name, 0)
    scene.hub.refuse = 1
    async with asyncio.timeout(10):
        end = await scene.reconciler.run()
    assert end.problem == ""
    assert scene.hub.refuse == 0
    assert scene.hub.job is not None
    assert scene.hub.job.status.phase == "Stopped"


async def test_a_run_whose_job_is_gone_ends_by_itself(scene: Scene) -> None:
    await scene.at_work()
    scene.hub.job = None
    async with asyncio.timeout(5):
        end = await scene.reconciler.run()
    assert (end.gone, end.problem) == (True, "the job is gone")


async def test_a_job_that_changed_or_is_gone_is_no_problem_unless_it_always_has(scene: Scene) -> None:
    problems: list[str] = []
    scene.reconciler = Reconciler(
        scene.hub, FixedSites([scene.site]), HERE, scene.synchronizer, POLICY, on_problem=problems.append
    )
    scene.hub.changing = True
    await scene.passes_of(PATIENT_FAILURES)
    assert problems == []
    await scene.passes_of(1)
    assert problems == ["has changed since it was read"]
    scene.hub.changing = False
    await scene.passes_of(1)
    assert scene.hub.job is not None
    scene.hub.changing = True
    metadata = scene.hub.job.metadata.model_copy(update={"generation": 2})  # told in the status
    scene.hub.job = scene.hub.job.model_copy(update={"metadata": metadata})
    await scene.passes_of(PATIENT_FAILURES)
    scene.hub.job = None
    await scene.passes_of(1)
    assert problems == ["has changed since it was read"]


async def test_an_event_that_cannot_be_told_stops_nothing_and_starts_nothing_anew(scene: Scene) -> None:
    scene.hub.mute = True
    await scene.passes_of(3)
    assert scene.hub.job is not None
    assert scene.hub.job.status.execution_attempt == 1
    assert ("Deployment", "toy-0a1b2c3d-synchronizer") in scene.site.objects


async def test_an_unexpected_error_of_one_site_does_not_abandon_the_others(scene: Scene) -> None:
    broken = FakeSite("broken")

    async def explode(*_: object) -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    async def slow(kind: str, name: str, uid: str | None) -> None:
        await asyncio.sleep(0.05)
        await FakeSite.delete(scene.site, kind, name, uid)

    scene.reconciler = Reconciler(
        scene.hub,
        FixedSites([scene.site, broken]),
        HERE,
        scene.synchronizer,
        POLICY,
        fresh_start=True,
        on_pass=scene.passes.append,
    )
    await scene.at_work()
    broken.delete = explode  # type: ignore[method-assign]
    scene.site.delete = slow  # type: ignore[method-assign]
    scene.reconciler.request_stop(Stop.NOW)
    await scene.passes_of(1)
    assert any(call[:2] == ("delete", "Pod") for call in scene.site.calls)
    broken.list_owned = explode  # type: ignore[method-assign,assignment]
    await scene.passes_of(1)
    assert scene.passes[-1].observed.sites[1].unreachable == "InternalError"
    assert scene.passes[-1].observed.sites[0].unreachable == ""


async def test_a_watch_that_breaks_is_told_and_begun_again(caplog: pytest.LogCaptureFixture) -> None:
    site, woken, begun = FakeSite(), asyncio.Event(), 0

    async def watch(job_uid: str) -> AsyncIterator[SiteEvent]:
        nonlocal begun
        begun += 1
        if begun == 1:
            raise SiteUnreachable("no route")
        if begun == 2:
            raise ZeroDivisionError
        yield SiteEvent("ADDED", "Pod", "a")
        await asyncio.Event().wait()

    site.watch = watch  # type: ignore[method-assign]
    task = asyncio.create_task(follow(site, "uid", woken.set, first_retry_seconds=0.01))
    async with asyncio.timeout(5):
        while begun < 3:
            await asyncio.sleep(0.01)
        await woken.wait()
    task.cancel()
    said = [record.message for record in caplog.records]
    assert said == ["site local: watch: Timeout: no route", "site local: watch: unexpected ZeroDivisionError()"]


# --- the client ---------------------------------------------------------------------------------------------------

UID = "0a1b2c3d-0000-4000-8000-000000000000"


@pytest.fixture
async def admin() -> AsyncIterator[tuple[dict[str, object], int]]:
    """(what to answer, port) of an endpoint that checks the operator's token."""
    answer: dict[str, object] = {"status": 200, "text": "", "wait": 0.0, "asked": 0}

    async def handle(request: web.Request) -> web.Response:
        answer["asked"] = int(str(answer["asked"])) + 1
        token = request.headers["Authorization"].removeprefix("Bearer ")
        assert read_admin_token(KEY, token).role is AdminRole.OPERATOR
        await asyncio.sleep(float(str(answer["wait"])))
        return web.Response(status=int(str(answer["status"])), text=str(answer["text"]))

    app = web.Application()
    app.router.add_route("*", "/{path}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield answer, int(runner.addresses[0][1])
    await runner.cleanup()


def some_progress(uid: str) -> str:
    return Progress(
        job_uid=uid, epoch=0, phase=Phase.RUNNING, served_seconds=1, uptime_seconds=1, budget_tokens=1, percent=1,
        outer_steps=1, outer_rounds=1, tokens=TokenTotals(),
    ).model_dump_json()  # fmt: skip


async def test_progress_is_read_with_the_operators_token(admin: tuple[dict[str, object], int]) -> None:
    answer, port = admin
    answer["text"] = some_progress(UID)
    async with SynchronizerClient() as client:
        assert (await client.progress(AdminEndpoint("127.0.0.1", port), KEY, UID)).phase is Phase.RUNNING
        answer |= {"status": 202, "text": ""}
        await client.drain(AdminEndpoint("127.0.0.1", port), KEY, UID)


@pytest.mark.parametrize(
    ("status", "text", "reason"),
    [
        (401, "no", "AuthFailure"),
        (500, "", "BadAnswer"),
        (200, "{}", "BadAnswer"),
        (200, some_progress("another"), "ForeignJob"),
        (200, f"{some_progress(UID)}{' ' * MAX_ANSWER_BYTES}", "BadAnswer"),
    ],
    ids=["refused", "fault", "empty", "of another job", "too much"],
)
async def test_what_is_no_progress_of_this_job_is_silence_with_a_reason(
    admin: tuple[dict[str, object], int], status: int, text: str, reason: str
) -> None:
    answer, port = admin
    answer |= {"status": status, "text": text}
    async with SynchronizerClient() as client:
        with pytest.raises(SynchronizerSilent) as caught:
            await client.progress(AdminEndpoint("127.0.0.1", port), KEY, UID)
    assert caught.value.reason == reason
    assert KEY.decode() not in str(caught.value)


async def test_a_synchronizer_that_hangs_costs_one_wait_and_is_not_asked_again_at_once(
    admin: tuple[dict[str, object], int],
) -> None:
    answer, port = admin
    answer["wait"] = 60.0
    async with SynchronizerClient(timeout_seconds=0.2, rest_seconds=60.0) as client:
        began = asyncio.get_running_loop().time()
        for _ in range(5):
            with pytest.raises(SynchronizerSilent, match="in time"):
                await client.progress(AdminEndpoint("127.0.0.1", port), KEY, UID)
        assert asyncio.get_running_loop().time() - began < 2
    assert answer["asked"] == 1


async def test_a_closed_port_is_silence() -> None:
    async with SynchronizerClient() as client:
        with pytest.raises(SynchronizerSilent) as caught:
            await client.progress(AdminEndpoint("127.0.0.1", 1), KEY, UID)
    assert caught.value.reason == "TCPFailure"


class ClusterScene:
    """A job on a hub that is an API server in memory; its one site is the hub."""

    def __init__(self, *, drops: str = "") -> None:
        document = manifest()
        self.ref = JobRef("default", document["metadata"]["name"], document["metadata"]["uid"])
        self.api, self.site, self.passes = FakeApi(), FakeSite("hub"), []
        self.api.put(self.ref.path, document)
        self.api.drops = {drops}
        self.seconds = 1_800_000_000.0
        self.hub = KubeHub(self.api, self.ref)
        self.reconciler = Reconciler(
            self.hub, FixedSites([self.site]), FixedFacts(HubFacts()), SynchronizerClient(),
            OperatorPolicy(image="trainer:1", tls=True, origin="ours"),
            now=lambda: self.seconds, on_pass=self.passes.append,
        )  # fmt: skip

    @property
    def stored(self) -> dict:
        return self.api.objects[self.ref.path]

    @property
    def accepted(self) -> tuple[str, str, str]:
        (found,) = [one for one in self.stored["status"]["conditions"] if one["type"] == "Accepted"]
        return found["status"], found["reason"], found["message"]

    async def delete(self) -> None:
        metadata = self.stored["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:00Z"}
        self.api.put(self.ref.path, {**self.stored, "metadata": metadata})
        self.hub.changed()


async def test_on_clusters_nothing_is_made_before_the_finalizer_was_seen() -> None:
    scene = ClusterScene()
    await scene.reconciler.one_pass()
    assert scene.stored["metadata"]["finalizers"] == ["diloco.dev/teardown"]
    assert scene.site.calls == []
    await scene.reconciler.one_pass()
    assert ("apply", "Deployment") in {call[:2] for call in scene.site.calls}


async def test_a_deleted_job_loses_its_finalizer_when_nothing_is_left_of_it() -> None:
    scene = ClusterScene()
    for _ in range(2):
        await scene.reconciler.one_pass()
    await scene.delete()
    async with asyncio.timeout(5):
        while scene.stored["metadata"]["finalizers"]:
            await scene.reconciler.one_pass()
            await asyncio.sleep(0.02)
    assert {kind for kind, _ in scene.site.objects} <= {"PersistentVolumeClaim"}


async def test_a_crd_that_forgets_a_field_is_told_and_nothing_is_done_until_it_is_updated() -> None:
    scene = ClusterScene(drops="status.resolved")
    for _ in range(4):
        await scene.reconciler.one_pass()
    assert scene.accepted[:2] == ("False", "CRDOutdated")
    assert "status.resolved" in scene.accepted[2]
    assert scene.site.calls == []
    writes = len(scene.api.writes)
    for _ in range(12):
        scene.seconds += 5
        await scene.reconciler.one_pass()
    assert len(scene.api.writes) == writes
    assert 5 <= len(scene.api.dry_runs) <= 6, "it is tried now and then without writing"
    assert scene.site.calls == []
    scene.api.drops = set()
    scene.seconds += 11
    for _ in range(3):
        await scene.reconciler.one_pass()
    assert scene.accepted[:2] == ("True", "Valid")
    assert ("apply", "Deployment") in {call[:2] for call in scene.site.calls}


async def test_what_cannot_be_known_ends_the_pass_only_when_its_looks_have_ended(scene: Scene) -> None:
    looked = asyncio.Event()

    async def slow(job_uid: str) -> list[dict[str, object]]:
        await asyncio.sleep(0.05)
        looked.set()
        return []

    class Unreadable(FixedFacts):
        async def read(self, job: DiLoCoJob) -> HubFacts:
            raise HubError("no answer")

    scene.site.list_owned = slow  # type: ignore[assignment, method-assign]
    facts = Unreadable(HubFacts())
    loop = Reconciler(scene.hub, FixedSites([scene.site]), facts, scene.synchronizer, POLICY)
    assert await loop.one_pass() is None
    assert looked.is_set()


async def test_a_job_that_has_changed_at_every_pass_is_not_written_ever_faster(scene: Scene) -> None:
    scene.hub.changing = True
    waits = []
    for _ in range(PATIENT_FAILURES + 6):
        assert await scene.reconciler.one_pass() is None
        waits.append(scene.reconciler._retry_after())
    assert waits[:PATIENT_FAILURES] == [CONFLICT_SECONDS] * PATIENT_FAILURES
    assert waits[-1] == LONGEST_RETRY_SECONDS

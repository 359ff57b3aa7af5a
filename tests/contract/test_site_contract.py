"""What every `Site` promises, run on the fake and on local processes; on real clusters in tests/clusters."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

from diloco_api.names import LABEL_JOB_UID
from diloco_operator.sites.container import RestartBackoff
from diloco_operator.sites.process import ProcessSite
from diloco_operator.sites.site import LOG_TAIL_LINES, AlreadyExists, Created, Site, SiteConflict
from fakes.sites import FakeSite

Manifest = dict[str, Any]
JOB, OTHER = "uid-of-the-job", "uid-of-another"
PROGRAM = """
import signal, sys, time
if sys.argv[1] == "fail":
    sys.exit("error: made to fail")
if sys.argv[1] == "chatty":
    print("\\n".join(f"line {number}" for number in range(1000)), flush=True)
if sys.argv[1] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
"""


class Rig(Protocol):
    """A site under test, and the hand of fate."""

    site: Site
    patience_seconds: float
    """Within which whatever is waited for happens here."""

    def kill(self, pod_name: str) -> None:
        """SIGKILL to the pod's process."""


class FakeRig:
    patience_seconds = 20.0

    def __init__(self) -> None:
        self.site = FakeSite()

    def kill(self, pod_name: str) -> None:
        self.site.kill(pod_name, signal.SIGKILL)


class ProcessRig:
    patience_seconds = 20.0

    def __init__(self, folder: Path) -> None:
        self.site = ProcessSite("local", folder, os.environ, RestartBackoff(first_seconds=0.05))

    def kill(self, pod_name: str) -> None:
        pids = [process.pid for process in self.site.processes() if process.pod == pod_name]
        os.kill(pids[0], signal.SIGKILL)


@pytest.fixture(params=["fake", "process"])
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    if request.param == "fake":
        yield FakeRig()
        return
    process_rig = ProcessRig(tmp_path / "site")
    await process_rig.site.start()
    yield process_rig
    await process_rig.site.close(grace_seconds=0.5)


def pod(name: str, behaviour: str = "run", job: str = JOB, grace: int = 5, **spec: Any) -> Manifest:
    container = {"name": "c", "image": "none", "command": ["python", "-S", "-c", PROGRAM], "args": [behaviour]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {LABEL_JOB_UID: job, "colour": "red"}},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": grace, "containers": [container], **spec},
    }


def deployment(name: str, behaviour: str = "run", grace: int = 5) -> Manifest:
    template = pod("unused", behaviour, grace=grace)
    template["spec"]["restartPolicy"] = "Always"
    template["metadata"]["labels"]["app"] = name
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": {LABEL_JOB_UID: JOB}},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": template["metadata"]["labels"]}, "spec": template["spec"]},
        },
    }


def content(kind: str, name: str, job: str = JOB, hash_: str = "h1") -> Manifest:
    field = "stringData" if kind == "Secret" else "data"
    metadata = {"name": name, "labels": {LABEL_JOB_UID: job}, "annotations": {"diloco.dev/spec-hash": hash_}}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, field: {"key": "value"}}


async def pods(rig: Rig, job: str = JOB) -> dict[str, Manifest]:
    return {o["metadata"]["name"]: o for o in await rig.site.list_owned(job) if o["kind"] == "Pod"}


async def until(rig: Rig, condition: Callable[[dict[str, Manifest]], bool]) -> dict[str, Manifest]:
    async with asyncio.timeout(rig.patience_seconds):
        while not condition(found := await pods(rig)):
            await asyncio.sleep(0.02)
    return found


def phase(name: str, wanted: str) -> Callable[[dict[str, Manifest]], bool]:
    return lambda found: name in found and found[name].get("status", {}).get("phase") == wanted


def container(manifest: Manifest) -> Manifest:
    """Status of the pod's container, empty while nothing is known of it."""
    return next(iter(manifest.get("status", {}).get("containerStatuses", [])), {})


def state(manifest: Manifest) -> Manifest:
    return container(manifest).get("state", {})


async def test_a_created_pod_runs_and_creating_it_again_is_answered_not_done(rig: Rig) -> None:
    created = await rig.site.create_pod(pod("a"))
    assert isinstance(created, Created)
    found = await until(rig, phase("a", "Running"))
    again = await rig.site.create_pod(pod("a"))
    assert again == AlreadyExists(labels=found["a"]["metadata"]["labels"], uid=created.uid)
    assert list(await pods(rig)) == ["a"]


async def test_only_objects_with_the_jobs_label_are_listed(rig: Rig) -> None:
    await rig.site.create_pod(pod("a"))
    await rig.site.create_pod(pod("b", job=OTHER))
    await rig.site.apply(content("ConfigMap", "c", job=OTHER))
    assert [o["metadata"]["name"] for o in await rig.site.list_owned(JOB)] == ["a"]
    assert {o["metadata"]["name"] for o in await rig.site.list_owned(OTHER)} == {"b", "c"}


async def test_a_delete_with_another_uid_is_refused_and_an_absent_object_is_deleted(rig: Rig) -> None:
    await rig.site.create_pod(pod("a"))
    with pytest.raises(SiteConflict):
        await rig.site.delete("Pod", "a", "some-other-uid")
    assert "deletionTimestamp" not in (await pods(rig))["a"]["metadata"]
    await rig.site.delete("Pod", "b", None)


async def test_a_pod_that_fails_shows_its_exit_code_and_last_words_until_it_is_deleted(rig: Rig) -> None:
    await rig.site.create_pod(pod("a", "fail"))
    found = await until(rig, phase("a", "Failed"))
    ended = state(found["a"])["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (1, "Error")
    assert ended["message"].rstrip().endswith("error: made to fail")
    await rig.site.delete("Pod", "a", found["a"]["metadata"]["uid"])
    await until(rig, lambda found: not found)


async def test_a_pod_ended_by_sigkill_shows_137(rig: Rig) -> None:
    await rig.site.create_pod(pod("a"))
    await until(rig, phase("a", "Running"))
    rig.kill("a")
    assert state((await until(rig, phase("a", "Failed")))["a"])["terminated"]["exitCode"] == 137


async def test_deletion_is_polite_first_and_kills_after_the_grace_period(rig: Rig) -> None:
    await rig.site.create_pod(pod("a"))
    await rig.site.create_pod(pod("b", "stubborn", grace=1))
    await until(rig, lambda found: phase("a", "Running")(found) and phase("b", "Running")(found))
    await asyncio.sleep(0.3)  # until the stubborn one ignores SIGTERM
    began = asyncio.get_running_loop().time()
    await rig.site.delete("Pod", "a", None)
    await rig.site.delete("Pod", "b", None)
    found = await until(rig, lambda found: "a" not in found)
    assert "deletionTimestamp" in found["b"]["metadata"]
    await until(rig, lambda found: not found)
    assert 0.9 <= asyncio.get_running_loop().time() - began < 5


async def test_a_watch_tells_of_every_change_from_its_beginning(rig: Rig) -> None:
    watch = rig.site.watch(JOB)
    await rig.site.create_pod(pod("x", job=OTHER))
    await rig.site.create_pod(pod("a", "fail"))
    seen = []
    async with asyncio.timeout(rig.patience_seconds):
        while not phase("a", "Failed")(await pods(rig)):
            seen.append(await anext(watch))
        await rig.site.delete("Pod", "a", None)
        while not seen or seen[-1].type != "DELETED":
            seen.append(await anext(watch))
    assert {event.name for event in seen} == {"a"}
    assert seen[0].type == "ADDED"


async def test_a_deployment_restarts_its_container_in_the_same_pod(rig: Rig) -> None:
    await rig.site.apply(deployment("d"))
    found = await until(rig, lambda found: bool(found) and all("running" in state(p) for p in found.values()))
    (name,) = found
    rig.kill(name)
    found = await until(rig, lambda found: container(found[name])["restartCount"] == 1)
    found = await until(rig, lambda found: "running" in state(found[name]))
    assert list(found) == [name]
    assert container(found[name])["lastState"]["terminated"]["exitCode"] == 137
    await rig.site.delete("Deployment", "d", None)
    await until(rig, lambda found: not found)


async def test_a_deployment_that_keeps_failing_is_seen_in_a_crash_loop(rig: Rig) -> None:
    await rig.site.apply(deployment("d", "fail"))

    def looping(found: dict[str, Manifest]) -> bool:
        waiting = [p for p in found.values() if state(p).get("waiting", {}).get("reason") == "CrashLoopBackOff"]
        return any(container(p)["restartCount"] >= 2 for p in waiting)

    (found,) = (await until(rig, looping)).values()
    assert container(found)["lastState"]["terminated"]["message"].rstrip().endswith("error: made to fail")


async def test_a_changed_deployment_ends_the_old_pod_before_a_new_one_starts(rig: Rig) -> None:
    await rig.site.apply(deployment("d", "stubborn", grace=1))
    (old,) = await until(rig, lambda found: bool(found) and all("running" in state(p) for p in found.values()))
    await rig.site.apply(deployment("d", "run"))
    while old in (found := await pods(rig)):
        assert list(found) == [old]
        await asyncio.sleep(0.02)
    (new,) = (await until(rig, lambda found: len(found) == 1)).values()
    assert new["spec"]["containers"][0]["args"] == ["run"]


async def test_applied_objects_keep_their_uid_show_their_hash_and_hide_secrets(rig: Rig) -> None:
    for kind in ("ConfigMap", "Secret"):
        await rig.site.apply(content(kind, "c"))
    before = {o["kind"]: o["metadata"]["uid"] for o in await rig.site.list_owned(JOB)}
    for kind in ("ConfigMap", "Secret"):
        await rig.site.apply(content(kind, "c", hash_="h2"))
    after = {o["kind"]: o for o in await rig.site.list_owned(JOB)}
    assert {kind: o["metadata"]["uid"] for kind, o in after.items()} == before
    assert {o["metadata"]["annotations"]["diloco.dev/spec-hash"] for o in after.values()} == {"h2"}
    assert "value" not in str(after["Secret"])


async def test_an_object_of_another_job_is_never_taken_over(rig: Rig) -> None:
    await rig.site.apply(content("ConfigMap", "c", job=OTHER))
    with pytest.raises(SiteConflict):
        await rig.site.apply(content("ConfigMap", "c"))


async def test_a_pod_waits_for_a_missing_secret_and_starts_when_it_appears(rig: Rig) -> None:
    waits = pod("a", volumes=[{"name": "v", "secret": {"secretName": "later"}}])
    waits["spec"]["containers"][0]["volumeMounts"] = [{"name": "v", "mountPath": "/etc/later"}]
    await rig.site.create_pod(waits)
    found = await until(rig, lambda found: "waiting" in state(found["a"]))
    assert state(found["a"])["waiting"]["reason"] in ("CreateContainerConfigError", "ContainerCreating")
    assert found["a"]["status"]["phase"] == "Pending"
    await rig.site.apply(content("Secret", "later"))
    await until(rig, phase("a", "Running"))


async def test_the_end_of_a_log_is_read_while_a_pod_runs_and_after_it(rig: Rig) -> None:
    await rig.site.create_pod(pod("a", "chatty"))
    await rig.site.create_pod(pod("b", "fail"))
    async with asyncio.timeout(rig.patience_seconds):
        await until(rig, lambda found: phase("a", "Running")(found) and phase("b", "Failed")(found))
        while "line 999" not in (tail := await rig.site.log_tail("a", "c")):
            await asyncio.sleep(0.02)
    assert tail.splitlines() == [f"line {number}" for number in range(1000 - LOG_TAIL_LINES, 1000)]
    assert (await rig.site.log_tail("b", "c")).splitlines() == ["error: made to fail"]
    assert await rig.site.log_tail("never-there", "c") == ""

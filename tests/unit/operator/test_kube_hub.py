"""A job on an API server: what is written when, and what is never written."""

import base64
import copy
from typing import Any

import pytest

from builders import job as build_job
from builders import manifest
from diloco_api import names
from diloco_api.accept import Ports
from diloco_api.status import Condition, JobStatus, LearnerStatus, ProgressStatus
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.api import ApiError, JobRef
from diloco_operator.hub import HubConflict, HubError, HubInvalid, HubOutdated
from diloco_operator.kube_hub import BELIEVED_SECONDS, KubeHub
from diloco_operator.planning.acceptance import resolve_status
from fakes.kube_api import FakeApi

DOCUMENT = manifest()
REF = JobRef("default", "toy", DOCUMENT["metadata"]["uid"])
ROOT = f"/api/v1/namespaces/default/secrets/{names.object_name('toy', REF.uid, 'root')}"
HEARD = "2026-01-01T00:00:00Z"


class Scene:
    def __init__(self) -> None:
        self.api = FakeApi()
        self.api.put(REF.path, DOCUMENT)
        self.seconds = 0.0
        self.hub = KubeHub(self.api, REF, clock=lambda: self.seconds)

    async def job(self) -> DiLoCoJob:
        job = await self.hub.read_job()
        assert job is not None
        return job

    @property
    def stored(self) -> dict:
        return self.api.objects[REF.path]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def row(index: int, **fields: object) -> LearnerStatus:
    return LearnerStatus(index=index, site="hub", incarnation=1, pod_name="p", state="Running", **fields)


async def test_an_optional_field_that_is_gone_is_gone_on_the_server_too(scene: Scene) -> None:
    progress = ProgressStatus(percent=3, eta_seconds=9, last_updated_time=HEARD)
    job = await scene.hub.commit_status(await scene.job(), JobStatus(start_time=HEARD, progress=progress))
    later = JobStatus(progress=progress.model_copy(update={"eta_seconds": None}))
    job = await scene.hub.commit_status(job, later)
    assert "startTime" not in scene.stored["status"]
    assert "etaSeconds" not in scene.stored["status"]["progress"]
    assert job.status == later
    assert (await scene.job()).status == later


async def test_what_a_newer_operator_wrote_is_left_alone(scene: Scene) -> None:
    scene.api.put(REF.path, {**DOCUMENT, "status": {"phase": "Running", "forecast": {"a": 1}, "goodput": {"new": "1"}}})
    await scene.hub.commit_status(await scene.job(), JobStatus(phase="Degraded"))
    assert scene.stored["status"]["phase"] == "Degraded"
    assert scene.stored["status"]["forecast"] == {"a": 1}
    assert scene.stored["status"]["goodput"]["new"] == "1"


async def test_what_a_newer_operator_wrote_into_rows_is_left_alone(scene: Scene) -> None:
    job = await scene.hub.commit_status(await scene.job(), JobStatus(learner_statuses=[row(0), row(1, message="m")]))
    newer = {**scene.stored, "status": {**scene.stored["status"]}}
    newer["status"]["learnerStatuses"] = [
        {**known, "clock": {"index": number}, "marks": [1]}
        for number, known in enumerate(scene.stored["status"]["learnerStatuses"])
    ]
    scene.api.put(REF.path, newer)
    scene.hub.changed()
    job = await scene.job()
    assert job.status.learner_statuses == [row(0), row(1, message="m")]
    await scene.hub.commit_status(job, JobStatus(learner_statuses=[row(2), row(1), row(0, restarts=1)]))
    rows = {found["index"]: found for found in scene.stored["status"]["learnerStatuses"]}
    assert {index: found.get("clock") for index, found in rows.items()} == {0: {"index": 0}, 1: {"index": 1}, 2: None}
    assert (rows[0]["restarts"], rows[1].get("message"), rows[1]["marks"]) == (1, "", [1])


async def test_a_job_with_fields_of_a_newer_crd_is_read_as_far_as_it_is_known(scene: Scene) -> None:
    known = JobStatus(phase="Running", resolved=resolve_status(build_job(), Ports(), "trainer:1"))
    await scene.hub.commit_status(await scene.job(), known)
    spec = {**DOCUMENT["spec"], "forecast": {"a": 1}, "learners": {"replicas": 3, "mood": "good"}}
    status = dict(scene.stored["status"])
    status["resolved"] = {**status["resolved"], "policy": {**status["resolved"]["policy"], "tempo": 2}}
    scene.api.put(REF.path, {**scene.stored, "spec": spec, "status": status})
    scene.hub.changed()
    job = await scene.job()
    assert (job.spec, job.status) == (build_job().spec, known)
    await scene.hub.commit_status(job, known.model_copy(update={"phase": "Degraded"}))
    assert scene.stored["status"]["resolved"]["policy"]["tempo"] == 2


async def test_where_the_right_to_read_a_job_is_gone_the_way_to_let_it_go_is_told(scene: Scene) -> None:
    scene.api.refused["GET", REF.path] = ApiError(403, "Forbidden", "dilocojobs is forbidden")
    with pytest.raises(HubError, match="kubectl patch dilocojob toy -n default --type=merge -p ") as caught:
        await scene.hub.read_job()
    assert str(caught.value).endswith("""'{"metadata":{"finalizers":null}}'""")
    scene.api.refused["GET", REF.path] = ApiError(500, "InternalError", "etcd")
    with pytest.raises(HubError) as caught:
        await scene.hub.read_job()
    assert "kubectl" not in str(caught.value)


async def test_a_job_that_is_held_no_more_needs_no_way_to_be_let_go(scene: Scene) -> None:
    job = await scene.job()
    for edit, told in (("add", True), ("remove", False)):
        await scene.hub.edit_finalizer(job, edit)
        scene.api.refused["GET", REF.path] = ApiError(403, "Forbidden", "dilocojobs is forbidden")
        with pytest.raises(HubError) as caught:
            await scene.hub.read_job()
        assert ("kubectl" in str(caught.value)) is told
        del scene.api.refused["GET", REF.path]
        job = await scene.job()


async def test_only_what_differs_is_sent(scene: Scene) -> None:
    job = await scene.hub.commit_status(await scene.job(), JobStatus(phase="Running", learner_statuses=[row(0)]))
    await scene.hub.commit_status(job, job.status.model_copy(update={"phase": "Degraded"}))
    assert scene.api.bodies[-1] == {
        "metadata": {"resourceVersion": job.metadata.resource_version},
        "status": {"phase": "Degraded"},
    }


@pytest.mark.parametrize("dropped", ["status.goodput", "status.learnerStatuses[].message", "status.startTime"])
async def test_a_crd_that_drops_a_field_is_named_as_outdated(scene: Scene, dropped: str) -> None:
    scene.api.drops = {dropped}
    status = JobStatus(start_time=HEARD, learner_statuses=[row(0, message="m")])
    with pytest.raises(HubOutdated, match=dropped.replace("[", r"\[").replace("]", r"\]")):
        await scene.hub.commit_status(await scene.job(), status)


async def test_whether_a_crd_still_drops_a_field_is_asked_without_writing(scene: Scene) -> None:
    scene.api.drops = {"status.goodput"}
    job, before = await scene.job(), copy.deepcopy(scene.stored)
    assert await scene.hub.would_drop(job, JobStatus(start_time=HEARD)) == "drops status.goodput"
    scene.api.drops = set()
    assert await scene.hub.would_drop(job, JobStatus(start_time=HEARD)) == ""
    assert scene.stored == before
    assert scene.api.writes == []
    committed = await scene.hub.commit_status(job, JobStatus(start_time=HEARD))
    assert committed.status.start_time == HEARD, "what was read before holds"


async def test_a_new_job_of_the_same_name_is_not_this_one(scene: Scene) -> None:
    other = {**DOCUMENT, "metadata": {**DOCUMENT["metadata"], "uid": "another"}}
    scene.api.put(REF.path, other)
    assert await scene.hub.read_job() is None


async def test_the_finalizer_is_added_and_removed_beside_those_of_others(scene: Scene) -> None:
    await scene.hub.edit_finalizer(await scene.job(), "add")
    assert scene.stored["metadata"]["finalizers"] == [names.FINALIZER]
    document = {**DOCUMENT, "metadata": {**DOCUMENT["metadata"], "finalizers": ["other/a", names.FINALIZER, "other/b"]}}
    scene.api.put(REF.path, document)
    await scene.hub.edit_finalizer(await scene.job(), "add")
    assert scene.stored["metadata"]["finalizers"] == ["other/a", names.FINALIZER, "other/b"]
    await scene.hub.edit_finalizer(await scene.job(), "remove")
    assert scene.stored["metadata"]["finalizers"] == ["other/a", "other/b"]
    await scene.hub.edit_finalizer(await scene.job(), "add")
    assert scene.stored["metadata"]["finalizers"] == ["other/a", "other/b", names.FINALIZER]


async def test_a_finalizer_edit_of_a_job_that_changed_meanwhile_is_a_conflict(scene: Scene) -> None:
    job = await scene.job()
    scene.api.put(REF.path, {**DOCUMENT, "metadata": {**DOCUMENT["metadata"], "labels": {"a": "b"}}})
    with pytest.raises(HubConflict):
        await scene.hub.edit_finalizer(job, "add")
    assert "finalizers" not in scene.stored["metadata"]


async def test_the_root_key_is_made_once_and_belongs_to_the_job(scene: Scene) -> None:
    await scene.job()
    key = await scene.hub.read_key()
    assert await KubeHub(scene.api, REF).read_key() == key
    secret = scene.api.objects[ROOT]
    assert base64.b64decode(secret["data"]["key"]) == key
    assert secret["metadata"]["ownerReferences"][0]["uid"] == REF.uid
    assert [write for write in scene.api.writes if "secrets" in write[1]] == [
        ("POST", "/api/v1/namespaces/default/secrets")
    ]


async def test_a_root_secret_somebody_laid_down_beforehand_is_not_used(scene: Scene) -> None:
    scene.api.put(ROOT, {"data": {"key": base64.b64encode(b"k" * 64).decode()}})
    with pytest.raises(HubError, match="is not the job's own"):
        await scene.hub.read_key()


async def test_a_job_that_is_being_deleted_gets_no_new_key(scene: Scene) -> None:
    await scene.job()
    key = await scene.hub.read_key()
    del scene.api.objects[ROOT]
    deleted = {**DOCUMENT, "metadata": {**DOCUMENT["metadata"], "deletionTimestamp": HEARD}}
    scene.api.put(REF.path, deleted)
    fresh = KubeHub(scene.api, REF)
    for hub, expected in ((scene.hub, key), (fresh, b"")):
        await hub.read_job()
        assert await hub.read_key() == expected
    assert ROOT not in scene.api.objects


async def test_a_job_that_cannot_be_read_says_which_field_and_only_once(scene: Scene) -> None:
    broken = {**DOCUMENT, "spec": {**DOCUMENT["spec"], "learners": {"replicas": "many"}}}
    scene.api.put(REF.path, broken)
    for _ in range(2):
        with pytest.raises(HubInvalid, match=r"spec\.learners\.replicas"):
            await scene.hub.read_job()
    (condition,) = scene.stored["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Accepted", "False", "InvalidSpec")
    assert len(scene.api.writes) == 1


async def test_a_job_that_cannot_be_read_can_still_be_deleted(scene: Scene) -> None:
    metadata = {**DOCUMENT["metadata"], "deletionTimestamp": HEARD, "finalizers": [names.FINALIZER]}
    scene.api.put(REF.path, {**DOCUMENT, "metadata": metadata, "spec": {"learners": "none"}})
    job = await scene.job()
    await scene.hub.edit_finalizer(job, "remove")
    assert scene.stored["metadata"]["finalizers"] == []


async def test_a_site_that_cannot_be_read_hides_no_other_when_its_job_is_deleted_and_is_told(scene: Scene) -> None:
    def site(name: str, **fields: object) -> dict[str, object]:
        return {"name": name, "kubeconfigSecretRef": {"name": f"kube-{name}"}, **fields}

    metadata = {**DOCUMENT["metadata"], "deletionTimestamp": HEARD, "finalizers": [names.FINALIZER]}
    unreadable = [site("a", learners={"max": "many"}), site("b", kubeconfigSecretRef=7), site("c", namespace=[]), 3]
    status = {"phase": [], "sites": [{"name": "b", "secretName": "kube-b", "clusterUID": "two"}, {"name": {}}, "x"]}
    document = {**DOCUMENT, "metadata": metadata, "spec": {"sites": unreadable}, "status": status}
    scene.api.put(REF.path, document)
    for _ in range(2):
        job = await scene.hub.read_job()
    assert job is not None
    assert [(named.name, named.kubeconfig_secret_ref.name) for named in job.spec.sites] == [("a", "kube-a")]  # type: ignore[union-attr]
    assert [(row.name, row.secret_name, row.cluster_uid) for row in job.status.sites] == [("b", "kube-b", "two")]
    events = [item for path, item in scene.api.objects.items() if "/events/" in path]
    assert [event["reason"] for event in events] == ["SiteLeftBehind"] * 2
    assert ["site c" in events[0]["message"], "site number 3" in events[1]["message"]] == [True, True]
    scene.api.refused["POST", "/events"] = ApiError(403, "Forbidden", "the namespace is being terminated")
    assert await KubeHub(scene.api, REF).read_job() is not None


async def test_an_event_told_again_is_counted_not_created_again(scene: Scene) -> None:
    job = await scene.job()
    for _ in range(3):
        await scene.hub.emit_event(job, "Warning", "LearnerLost", "Learner 1 was lost")
    await scene.hub.emit_event(job, "Warning", "LearnerLost", "Learner 2 was lost")
    events = [item for path, item in scene.api.objects.items() if "/events/" in path]
    assert [event["message"] for event in events] == ["Learner 1 was lost", "Learner 2 was lost"]
    assert all(event["involvedObject"]["uid"] == REF.uid for event in events)


async def test_a_server_that_does_not_answer_is_a_hub_error(scene: Scene) -> None:
    job = await scene.job()
    scene.api.broken = ApiError(0, "Timeout", "no answer")
    with pytest.raises(HubError, match="no answer"):
        await scene.hub.commit_status(job, JobStatus(phase="Running"))


async def test_a_condition_keeps_its_place_in_the_list(scene: Scene) -> None:
    conditions = [
        Condition(type=kind, status="True", reason="r", last_transition_time=HEARD) for kind in ("Accepted", "Degraded")
    ]
    job = await scene.hub.commit_status(await scene.job(), JobStatus(conditions=conditions))
    assert [condition.type for condition in job.status.conditions] == ["Accepted", "Degraded"]


async def test_a_job_nobody_told_a_change_of_is_not_read_at_every_pass(scene: Scene) -> None:
    job = await scene.hub.commit_status(await scene.job(), JobStatus(phase="Running"))
    requests = len(scene.api.requests)
    assert await scene.job() == job
    assert len(scene.api.requests) == requests
    newer = scene.api.put(REF.path, {**scene.stored, "metadata": {**scene.stored["metadata"], "labels": {"a": "b"}}})
    assert (await scene.job()).metadata.resource_version == job.metadata.resource_version
    scene.hub.changed()
    assert (await scene.job()).metadata.resource_version == newer["metadata"]["resourceVersion"]


async def test_what_was_read_while_a_change_was_told_is_not_believed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = scene.api.request

    async def slow(*arguments: Any, **options: Any) -> Any:
        answer = await ask(*arguments, **options)
        scene.hub.changed()
        return answer

    monkeypatch.setattr(scene.api, "request", slow)
    job = await scene.job()
    monkeypatch.undo()
    newer = scene.api.put(REF.path, {**scene.stored, "metadata": {**scene.stored["metadata"], "labels": {"a": "b"}}})
    assert newer["metadata"]["resourceVersion"] != job.metadata.resource_version
    assert (await scene.job()).metadata.resource_version == newer["metadata"]["resourceVersion"]


async def test_a_change_nobody_told_of_is_read_after_a_refused_write_and_after_a_while(scene: Scene) -> None:
    for notice in ("refused write", "time"):
        stale = await scene.job()
        newer = scene.api.put(
            REF.path, {**scene.stored, "metadata": {**scene.stored["metadata"], "labels": {"a": notice}}}
        )
        if notice == "time":
            scene.seconds += BELIEVED_SECONDS + 1
        else:
            with pytest.raises(HubConflict):
                await scene.hub.commit_status(stale, JobStatus(phase="Running"))
        assert (await scene.job()).metadata.resource_version == newer["metadata"]["resourceVersion"]

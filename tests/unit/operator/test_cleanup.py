"""Jobs that no operator is left to tear down are let go, and nobody else's business is touched."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from diloco_api import names
from diloco_operator.api import ApiError
from diloco_operator.cleanup import clean_up, main
from fakes.kube_api import FakeApi

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LEASE = "/apis/coordination.k8s.io/v1/namespaces/ops/leases/diloco-operator"
ALL_JOBS = "/apis/diloco.dev/v1alpha1/dilocojobs"


class Hub(FakeApi):
    """Lists the jobs of all namespaces, too."""

    async def request(self, method: str, path: str, body: object = None, **more: Any) -> Any:
        if path == ALL_JOBS:
            return {"items": [job for at, job in self.objects.items() if "/dilocojobs/" in at]}
        return await super().request(method, path, body, **more)

    def job(self, name: str, *finalizers: str, namespace: str = "train", **more: Any) -> str:
        path = f"/apis/diloco.dev/v1alpha1/namespaces/{namespace}/dilocojobs/{name}"
        self.put(path, {"metadata": {"name": name, "namespace": namespace, "finalizers": list(finalizers), **more}})
        return path

    def finalizers(self, path: str) -> list[str]:
        return self.objects[path]["metadata"]["finalizers"]


@pytest.fixture
def hub() -> Hub:
    return Hub()


async def test_only_the_operators_own_finalizer_is_taken_off(hub: Hub) -> None:
    first = hub.job("first", "other.dev/one", names.FINALIZER, "other.dev/two")
    second = hub.job("second", names.FINALIZER, namespace="elsewhere")
    foreign = hub.job("third", "other.dev/one")
    assert await clean_up(hub, [], "ops", NOW, orphan=True) == 0
    assert hub.finalizers(first) == ["other.dev/one", "other.dev/two"]
    assert hub.finalizers(second) == []
    assert hub.writes == [("PATCH", first), ("PATCH", second)]
    assert hub.finalizers(foreign) == ["other.dev/one"]


async def test_without_orphan_jobs_are_listed_and_nothing_is_written(hub: Hub, capsys: Any) -> None:
    hub.job("first", names.FINALIZER, deletionTimestamp="2026-01-01T00:00:00Z", uid="abc")
    assert await clean_up(hub, [], "ops", NOW, orphan=False) == 1
    assert hub.writes == []
    told = capsys.readouterr()
    assert (
        "held: train/first (is being deleted); at no site: kubectl get all,secret,configmap -l diloco.dev/job-uid="
        in (told.out)
    )
    assert "--orphan" in told.err


async def test_where_no_job_is_held_there_is_nothing_to_do(hub: Hub, capsys: Any) -> None:
    hub.job("first")
    assert await clean_up(hub, [], "ops", NOW, orphan=False) == 0
    assert capsys.readouterr().out == "no job has the operator's finalizer\n"


async def test_what_is_left_behind_is_named_by_site_and_label(hub: Hub, capsys: Any) -> None:
    path = hub.job("first", names.FINALIZER)
    hub.objects[path]["status"] = {"sites": [{"name": "site-1"}, {"name": "site-2"}]}
    await clean_up(hub, [], "ops", NOW, orphan=True)
    uid = hub.objects[path]["metadata"]["uid"]
    assert (
        f"at site-1, site-2: kubectl get all,secret,configmap -l {names.LABEL_JOB_UID}={uid}" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("holder", "age_seconds", "is_at_work"),
    [("operator-1", 5, True), ("operator-1", 16, False), ("", 5, False)],
    ids=["held", "run out", "given back"],
)
async def test_an_operator_that_is_at_work_is_left_to_tear_its_jobs_down(
    hub: Hub, capsys: Any, holder: str, age_seconds: int, is_at_work: bool
) -> None:
    path = hub.job("first", names.FINALIZER)
    renewed = (NOW - timedelta(seconds=age_seconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    hub.put(LEASE, {"spec": {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15}})
    assert await clean_up(hub, [], "ops", NOW, orphan=True) == (1 if is_at_work else 0)
    assert hub.finalizers(path) == ([names.FINALIZER] if is_at_work else [])
    assert ("the operator operator-1 is at work (Lease ops/diloco-operator)" in capsys.readouterr().err) == is_at_work


async def test_only_the_namespaces_that_were_named_are_looked_at(hub: Hub) -> None:
    inside, outside = hub.job("one", names.FINALIZER), hub.job("two", names.FINALIZER, namespace="elsewhere")
    assert await clean_up(hub, ["train"], "ops", NOW, orphan=True) == 0
    assert (hub.finalizers(inside), hub.finalizers(outside)) == ([], [names.FINALIZER])


async def test_a_finalizer_that_moves_at_this_moment_is_found_again(hub: Hub) -> None:
    path = hub.job("first", "other.dev/one", names.FINALIZER)
    inner, moved = hub.request, []

    async def request(method: str, at: str, body: object = None, **more: Any) -> Any:
        if method == "PATCH" and not moved:
            moved.append(True)
            hub.objects[path]["metadata"]["finalizers"] = [names.FINALIZER, "other.dev/two"]
        return await inner(method, at, body, **more)

    hub.request = request  # type: ignore[method-assign]
    assert await clean_up(hub, [], "ops", NOW, orphan=True) == 0
    assert hub.finalizers(path) == ["other.dev/two"]


async def test_a_refusal_of_the_server_is_not_swallowed(hub: Hub) -> None:
    path = hub.job("first", names.FINALIZER)
    hub.refused["PATCH", path] = ApiError(403, "Forbidden", "may not patch")
    with pytest.raises(ApiError, match="may not patch"):
        await clean_up(hub, [], "ops", NOW, orphan=True)


def test_outside_of_a_cluster_one_line_says_so(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main(["--orphan"]) == 1
    assert capsys.readouterr().err == "error: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set\n"

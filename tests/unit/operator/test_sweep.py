"""What jobs that are gone left at sites is removed, and nothing else ever is."""

from typing import Any

import pytest

from diloco_api import names
from diloco_operator.api import JobRef
from diloco_operator.sites.site import SiteUnreachable
from diloco_operator.sweep import Sweep


class ListedJobs:
    """Stands for the lists: knows these uids."""

    def __init__(self, *known: str) -> None:
        self.known = known

    def surely_unknown(self, job_uid: str) -> bool:
        return job_uid not in self.known


class SweptSite:
    def __init__(self, *found: dict[str, Any], down: bool = False) -> None:
        self.name, self.found, self.down = "s", list(found), down
        self.selectors: list[str] = []
        self.deleted: list[tuple[str, str, str]] = []

    async def list_labelled(self, selector: str) -> list[dict[str, Any]]:
        if self.down:
            raise SiteUnreachable("no answer")
        self.selectors.append(selector)
        return self.found

    async def delete(self, kind: str, name: str, uid: str) -> None:
        self.deleted.append((kind, name, uid))


def found(job: str, kind: str = "Pod", namespace: str = "team", **metadata: object) -> dict[str, Any]:
    labels = {
        names.LABEL_JOB_UID: f"uid-of-{job}", names.LABEL_JOB_NAME: job, names.LABEL_JOB_NAMESPACE: namespace,
        names.LABEL_ORIGIN: "ours",
    }  # fmt: skip
    return {"kind": kind, "metadata": {"name": f"{job}-0-1", "uid": "u", "labels": labels, **metadata}}


async def swept(site: SweptSite, *, namespaces: tuple[str, ...] = (), present: tuple[JobRef, ...] = ()) -> list[Any]:
    jobs = ListedJobs(*(ref.uid for ref in present))
    await Sweep("ours", namespaces, jobs).run([site], present)  # type: ignore[arg-type, list-item]
    return site.deleted


async def test_an_orphan_of_ours_is_deleted_by_its_uid() -> None:
    site = SweptSite(found("gone"))
    assert await swept(site) == [("Pod", "gone-0-1", "u")]
    assert site.selectors == ["diloco.dev/origin=ours"]


@pytest.mark.parametrize(
    "kept",
    [
        found("here"),
        found("gone", namespace="elsewhere"),
        found("gone", kind="PersistentVolumeClaim"),
        found("gone", ownerReferences=[{"uid": "x"}]),
        found("gone", deletionTimestamp="2026-01-01T00:00:00Z"),
    ],
    ids=["of a job", "of a namespace that is not ours", "data", "collected by the cluster", "going already"],
)
async def test_what_must_be_kept(kept: dict[str, Any]) -> None:
    assert await swept(SweptSite(kept), namespaces=("team",), present=(JobRef("team", "here", "uid-of-here"),)) == []


async def test_what_belongs_to_an_earlier_job_of_the_same_name_is_held_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    present = (JobRef("team", "again", "another-uid"),)
    assert await swept(SweptSite(found("again")), present=present) == []
    assert "under the unknown uid uid-of-again are kept" in caplog.text


async def test_a_site_that_cannot_be_reached_stops_no_other() -> None:
    down, up = SweptSite(found("gone"), down=True), SweptSite(found("gone"))
    removed = await Sweep("ours", (), ListedJobs()).run([down, up], [])  # type: ignore[arg-type, list-item]
    assert (removed, len(up.deleted)) == (1, 1)


async def test_a_site_that_lists_nonsense_stops_no_other() -> None:
    odd, up = SweptSite({"kind": "Pod", "metadata": "none"}), SweptSite(found("gone"))
    removed = await Sweep("ours", (), ListedJobs()).run([odd, up], [])  # type: ignore[arg-type, list-item]
    assert (removed, len(up.deleted)) == (1, 1)

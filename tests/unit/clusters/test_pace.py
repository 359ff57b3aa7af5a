"""Which containers are slowed down, and when; on folders that look like cgroups."""

import pytest

from clusters import cgroups, pace
from clusters.layout import Layout

POD = "site-1/site-1-node-0/kubepods/burstable/pod-a"
LIMITED = "90000"


@pytest.fixture
def layout(tmp_path, monkeypatch):
    roots = {name: tmp_path / name for name in ("cpu", "cpuacct")}
    monkeypatch.setattr(cgroups, "hierarchies", lambda: roots)
    return Layout(tmp_path / "set")


def container(layout, path, quota, used_seconds):
    for name, file, value in (
        ("cpu", "cpu.cfs_quota_us", quota),
        ("cpuacct", "cpuacct.usage", int(used_seconds * 1e9)),
    ):
        folder = layout.folder.with_name(name) / "set" / path
        folder.mkdir(parents=True)
        (folder / file).write_text(f"{value}\n")
    return layout.folder.with_name("cpu") / "set" / path / "cpu.cfs_quota_us"


def test_one_that_has_started_is_slowed_down(layout):
    started = container(layout, f"{POD}/started", LIMITED, 6.1)
    pace.slow_down(layout)
    assert started.read_text() == "5000"


@pytest.mark.parametrize(
    ("path", "quota", "used_seconds"),
    [
        pytest.param(f"{POD}/starting", LIMITED, 5.9, id="starting"),
        pytest.param(f"{POD}/other", "100000", 60, id="another limit"),
        pytest.param(f"{POD}/unlimited", "-1", 60, id="no limit"),
        pytest.param("site-1/components", LIMITED, 60, id="not a pod"),
    ],
)
def test_others_are_left_alone(layout, path, quota, used_seconds):
    other = container(layout, path, quota, used_seconds)
    pace.slow_down(layout)
    assert other.read_text() == f"{quota}\n"


def test_the_pod_around_it_keeps_its_quota(layout):
    """The kernel refuses a group less than a group in it has."""
    around = container(layout, POD, LIMITED, 60)
    container(layout, f"{POD}/started", LIMITED, 60)
    pace.slow_down(layout)
    assert around.read_text() == f"{LIMITED}\n"


def test_one_that_ends_meanwhile_is_no_error(layout, monkeypatch):
    gone = layout.folder.with_name("cpu") / "set" / POD / "gone"
    monkeypatch.setattr(pace.os, "walk", lambda _: [(str(gone), [], [])])
    pace.slow_down(layout)


def test_a_file_that_is_missing_is_an_error(layout):
    container(layout, f"{POD}/broken", LIMITED, 60)
    (layout.folder.with_name("cpuacct") / "set" / POD / "broken/cpuacct.usage").unlink()
    with pytest.raises(FileNotFoundError):
        pace.slow_down(layout)

"""Sessions side by side: every file is run once, what they found is told together, a failure is not lost."""

import os
import re
import subprocess
import sys
import time

import pytest

from clusters.layout import Layout
from clusters.run import run, summary
from clusters.run import test_files as files_of

HOOKS = "from clusters.sharing import *\n"
TEST = """import os, pathlib, time, pytest

@pytest.fixture(scope="module", autouse=True)
def place():
    with pathlib.Path(__file__).with_suffix(".log").open("a") as file:
        yield file

def test_one(place, figure):
    place.write(os.environ["CLUSTERS_DIR"] + "\\n")
    figure("measured by {name}")
    time.sleep(0.2)

def test_two(place):
    assert {works}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "conftest.py").write_text(HOOKS)
    (tests / "pytest.ini").write_text("[pytest]\n")
    for name in "abcd":
        (tests / f"test_{name}.py").write_text(TEST.format(name=name, works="True"))
    return tests


def outcome(folder):
    share = folder.parent / "share"
    share.mkdir()
    layouts = [Layout(folder.parent / "set"), Layout(folder.parent / "set-2")]
    return run(layouts, [str(folder)], share), summary(share)


def test_two_sessions_run_every_file_once(folder, capfd):
    codes, lines = outcome(folder)
    assert codes == [0, 0]
    for name in "abcd":
        assert len((folder / f"test_{name}.log").read_text().splitlines()) == 1
        assert f"test_{name}.py: measured by {name}" in lines
        assert [line.split()[2] for line in lines].count(f"test_{name}.py") == 1
    shown = capfd.readouterr().out
    assert sum(f"test_{name}.py::test_two PASSED" in shown for name in "abcd") == 4


def test_a_failure_is_in_the_exit_code_and_in_one_piece_at_the_end(folder, capfd):
    (folder / "test_c.py").write_text(TEST.format(name="c", works="False"))
    codes, _ = outcome(folder)
    assert sorted(codes) == [0, 1]
    # From the session's heading to its last line: the other session may go on after it.
    told = re.search(r"--- session \d\n=+ FAILURES =.*?= 1 failed[^\n]*=\n", capfd.readouterr().out, re.DOTALL)
    assert told
    assert "def test_two(place):" in told[0]
    assert not [line for line in told[0].splitlines() if line.startswith("[")]


def test_files_are_counted_once(folder):
    assert files_of([str(folder)]) == {"test_a.py", "test_b.py", "test_c.py", "test_d.py"}
    assert files_of([f"{folder}/test_a.py::test_one", f"{folder}/test_a.py::test_two", "-k", "one"]) == {"test_a.py"}


def test_what_measures_the_machine_runs_after_all_else(folder):
    (folder / "test_operator_scale.py").write_text(TEST.format(name="scale", works="True"))
    begun = time.time()
    code = subprocess.run(
        [sys.executable, "-m", "clusters.run", "--sets=2", str(folder)],
        env=os.environ | {"CLUSTERS_DIR": str(folder.parent / "set")},
        check=False,
        capture_output=True,
        text=True,
    )
    assert code.returncode == 0, code.stdout + code.stderr
    ended = {path.stem: path.stat().st_mtime for path in folder.glob("*.log")}
    assert min(ended.values()) > begun
    assert max(ended, key=ended.__getitem__) == "test_operator_scale"
    assert len(ended) == 5
    assert len((folder / "test_operator_scale.log").read_text().splitlines()) == 1

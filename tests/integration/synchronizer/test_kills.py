"""SIGKILL at random instants, also in the middle of snapshots and between two durable writes."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def killed(program: str, folder: Path, *arguments: str) -> None:
    """Run a killing program, which says itself whether anything was lost."""
    path = os.pathsep.join(str(ROOT / name) for name in ("crds", "operator", "trainer_image", "tests"))
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/fakes" / program), str(folder), *arguments],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "versions" in done.stdout


def test_no_kill_changes_a_bit_of_what_comes_after_it(tmp_path: Path) -> None:
    killed("kill_host.py", tmp_path, "1", "8")


def test_no_kill_changes_a_bit_where_bodies_are_held_rebased_or_refused_and_learners_come_and_go(
    tmp_path: Path,
) -> None:
    killed("kill_decoupled.py", tmp_path, "1", "6", "orderly")


def test_no_kill_loses_what_was_told_where_learners_go_while_their_bodies_are_held(tmp_path: Path) -> None:
    killed("kill_decoupled.py", tmp_path, "2", "6", "departures")

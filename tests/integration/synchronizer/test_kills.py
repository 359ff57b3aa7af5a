"""SIGKILL at random instants, also in the middle of snapshots and between two durable writes."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_no_kill_changes_a_bit_of_what_comes_after_it(tmp_path: Path) -> None:
    seed = 1
    path = os.pathsep.join(str(ROOT / folder) for folder in ("crds", "operator", "trainer_image", "tests"))
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/fakes/kill_host.py"), str(tmp_path), str(seed), "8"],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "versions" in done.stdout

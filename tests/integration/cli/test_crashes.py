"""What a run says when the machine, not the user, is at fault, and odd values that used to get through."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = [sys.executable, "-c", "from diloco_cli.entry import main; main()", "run"]
PATHS = os.pathsep.join(str(ROOT / part) for part in ("crds", "operator", "trainer_image"))
QUICKSTART = str(ROOT / "crds" / "examples" / "quickstart.yaml")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*PROGRAM, *arguments], env=environment, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--workdir", "a" * 300], r"error: .*a{300}.*: File name too long\n"),
        (["--set", 'spec.train.data.uri="a\\0b"'], r"error: .*spec\.train\.data\.uri: .*\n"),
    ],
    ids=["work folder", "NUL in a path"],
)
def test_odd_paths_are_one_line(tmp_path: Path, arguments: list[str], expected: str) -> None:
    done = run(QUICKSTART, *arguments)
    assert re.fullmatch(expected, done.stderr), done.stderr
    assert done.returncode == 2


def test_a_crashing_synchronizer_is_told_and_its_logs_are_kept(tmp_path: Path) -> None:
    """Its program is broken: nothing a user did, and nothing that will mend itself."""
    broken = tmp_path / "broken" / "diloco_trainer"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('no such luck')\n", encoding="utf-8")
    folder = tmp_path / "work"
    environment = {
        **os.environ,
        "PYTHONPATH": f"{broken.parent}{os.pathsep}{PATHS}",
        "OMP_NUM_THREADS": "1",
    }
    command = [*PROGRAM, QUICKSTART, "--workdir", str(folder)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told = ""
    give_up_at = time.monotonic() + 60
    while "keeps crashing" not in told and time.monotonic() < give_up_at:
        told += process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    assert "keeps crashing" in told, told
    assert "no such luck" in told
    assert process.returncode == 130, (rest, errors)
    assert "the Synchronizer kept crashing: see" in errors
    assert "no such luck" in "".join(path.read_text(encoding="utf-8") for path in (folder / "logs").iterdir())

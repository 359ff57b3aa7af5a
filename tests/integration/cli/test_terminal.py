"""The real program in a real terminal that is closed, with stand-ins for the trainer's programs."""

import json
import os
import pty
import select
import sys
import time
from pathlib import Path

from fakes.stub_trainer import write_stub_trainer

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = "from diloco_cli.main import main; main()"


def start(folder: Path, stubs: str) -> tuple[int, int]:
    """Process and terminal of a job too long to end by itself."""
    process, terminal = pty.fork()
    if process == 0:
        paths = [stubs, *(str(ROOT / name) for name in ("crds", "operator"))]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TERM": "xterm"}
        os.chdir(folder)
        manifest = str(ROOT / "crds/examples/minimal.yaml")
        os.execve(sys.executable, [sys.executable, "-c", PROGRAM, "run", manifest], environment)
    return process, terminal


def read_until(terminal: int, text: bytes, seconds: float) -> bytes:
    seen, end = b"", time.monotonic() + seconds
    while text not in seen and time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            seen += os.read(terminal, 65536)
    return seen


def test_a_closed_terminal_drains_the_run_and_leaves_no_process(tmp_path: Path) -> None:
    process, terminal = start(tmp_path, write_stub_trainer(tmp_path / "stubs"))
    seen = read_until(terminal, b"training", seconds=40)
    assert b"training" in seen, seen.decode()
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    folder = tmp_path / "runs/minimal"
    assert os.waitstatus_to_exitcode(status) == 130, (folder / "operator.log").read_text()
    report = json.loads((folder / "report.json").read_text())
    assert (report["phase"], report["reason"]) == ("Stopped", "Drained")
    assert json.loads((folder / "processes.json").read_text()) == []

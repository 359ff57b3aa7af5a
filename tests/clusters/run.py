"""`make test-clusters`: pytest sessions side by side, each with a set of clusters of its own.

Most of the tests' time is waiting for deadlines. Every session goes through the same files and takes whole ones that no
other has taken (sharing.py), so that nothing has to be divided beforehand. Lines of running sessions carry the
session's number; what a session says at its end, failures among it, stays together. Files that measure the machine come
last, in one session that has it for itself.

Run as root: PYTHONPATH=tests python3 -m clusters.run --help
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from clusters import cli
from clusters.layout import Layout
from clusters.sharing import ALONE

_lock = threading.Lock()


def main() -> int:
    parser = argparse.ArgumentParser(prog="clusters.run", description=__doc__)
    parser.add_argument("--sets", type=int, default=2, help="sets of clusters, at most one a file (4 GiB each)")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="files, folders, test ids, then pytest's options")
    options = parser.parse_args()
    arguments = options.arguments or ["tests/clusters"]
    first = Layout.from_environment().folder
    layouts = [Layout(first)] + [Layout(first.with_name(f"{first.name}-{number}")) for number in range(2, 10)]
    files = test_files(arguments)
    together, alone = files - ALONE, files & ALONE
    layouts = layouts[: max(1, min(options.sets, len(together)))]
    ours = [layout for layout in layouts if not layout.folder.exists()]
    begin = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as share:
            codes = run(layouts, [*arguments, "--alone=no"], Path(share)) if together or not files else []
            codes += run(layouts[:1], [*arguments, "--alone=yes"], Path(share)) if alone else []
            for line in summary(Path(share)):
                print(line)
    finally:
        for layout in ours:  # sessions take down what they brought up, unless they were killed
            cli.down(layout)
    print(f"{len(layouts)} sessions, exit codes {codes}, {time.monotonic() - begin:.0f} s")
    return next((code for code in codes if code != 0), 0)


def test_files(arguments: Sequence[str]) -> set[str]:
    """Names of the test files that the arguments name."""
    paths = [path for path in (Path(argument.partition("::")[0]) for argument in arguments) if path.exists()]
    return {file.name for path in paths for file in (path.rglob("test_*.py") if path.is_dir() else [path])}


def summary(share: Path) -> list[str]:
    """Seconds of each file and what tests had to tell, of all sessions."""
    reports = [json.loads(path.read_text()) for path in sorted(share.glob("*.json"))]
    times = [(seconds, file) for report in reports for file, seconds in report["seconds"].items()]
    lines = [f"{seconds:7.0f} s  {file}" for seconds, file in sorted(times, reverse=True)]
    return [*lines, *(line for report in reports for line in report["figures"])]


def run(layouts: Sequence[Layout], arguments: Sequence[str], share: Path) -> list[int]:
    """Exit codes of the sessions."""
    sessions = []
    for layout in layouts:
        command = [sys.executable, "-m", "pytest", "-v", f"--share={share}", *arguments]
        environment = os.environ | {"CLUSTERS_DIR": str(layout.folder), "PYTHONUNBUFFERED": "1"}
        sessions.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    readers = [threading.Thread(target=_show, args=pair) for pair in enumerate(sessions, 1)]
    for reader in readers:
        reader.start()
    while True:
        try:
            for reader in readers:
                reader.join()
            return [session.wait() for session in sessions]
        except KeyboardInterrupt:
            continue  # the sessions were interrupted, too: they tidy up and end


def _show(number: int, session: "subprocess.Popen[str]") -> None:
    assert session.stdout is not None, "it is a pipe"
    at_the_end: list[str] = []
    with session.stdout as lines:
        for line in lines:
            if at_the_end or (line.startswith("=") and "test session starts" not in line):
                at_the_end.append(line)
            elif line.strip():
                with _lock:
                    print(f"[{number}] {line}", end="", flush=True)
    with _lock:
        print("".join([f"--- session {number}\n", *at_the_end]), flush=True)


if __name__ == "__main__":
    sys.exit(main())

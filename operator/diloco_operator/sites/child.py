"""Started before every local process: ties its life to the operator's, then becomes the process.

Usage: child.py PARENT_PID COMMAND [ARGUMENT...]. Linux: PR_SET_PDEATHSIG survives exec, so the kernel kills the process
when its parent ends, however it ends. Elsewhere (macOS; untested) this program stays, watches both by kqueue and passes
signals on. Standard library only: it runs with `-I -S`.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
from types import FrameType

PR_SET_PDEATHSIG = 1
EXEC_FAILED = 127


def _exec(command: list[str]) -> None:
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"error: {command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(EXEC_FAILED)


def _exec_tied_to_parent(parent: int, command: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        print(f"error: prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}", file=sys.stderr)
        sys.exit(EXEC_FAILED)
    if os.getppid() != parent:  # the parent ended before the call: no signal would ever come
        sys.exit(EXEC_FAILED)
    _exec(command)


def _watch_parent(parent: int, command: list[str]) -> int:
    """Run the command as a child and end it when `parent` ends; returns its exit code."""
    process = subprocess.Popen(command)

    def pass_on(signum: int, _frame: FrameType | None) -> None:
        process.send_signal(signum)

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, pass_on)
    queue = select.kqueue()  # type: ignore[attr-defined,unused-ignore]
    flags, note = select.KQ_EV_ADD, select.KQ_NOTE_EXIT  # type: ignore[attr-defined,unused-ignore]
    events = [
        select.kevent(pid, filter=select.KQ_FILTER_PROC, flags=flags, fflags=note)  # type: ignore[attr-defined,unused-ignore]
        for pid in (parent, process.pid)
    ]
    for event in queue.control(events, 1):
        if event.ident == parent:
            process.kill()
    code = process.wait()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform.startswith("linux"):
        _exec_tied_to_parent(parent, command)
    else:
        sys.exit(_watch_parent(parent, command))


if __name__ == "__main__":
    main()

"""Rules of every test run: one torch thread, no test skipped without a stated reason, no luck in CI."""

import os

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples for everyone where a failure stops a landing; new ones everywhere else.
settings.register_profile("ci", derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

_NO_REASON = {"", "unconditional skip", "<Skipped instance>"}
_silent_skips: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if text.removeprefix("Skipped").removeprefix(":").strip() in _NO_REASON:
            _silent_skips.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _silent_skips and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for nodeid in _silent_skips:
        terminalreporter.write_line(f"ERROR {nodeid}: skipped without a stated reason", red=True)

"""pytest hooks by which sessions that run side by side share test files, and tell together what they found (run.py).

A file is run by the session that takes it first; the others pass it over. What tests measure is in the summary.
"""

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

LONGEST_FIRST = [
    "test_failures",
    "test_lost_site",
    "test_site_failures",
    "test_bad_input",
    "test_monitoring",
    "test_operator_release",
    "test_upgrade",
    "test_install",
    "test_operator_jobs",
    "test_train",
]
"""Files that a run begins with, so that none of them is what is waited for in the end."""
ALONE = frozenset({"test_operator_scale.py"})
"""Files whose bounds are those of the machine."""
_taken: dict[Path, bool] = {}
"""Whether this session has taken a file, by its path."""
_seconds: Counter[str] = Counter()
_figures: list[str] = []
_reporters: list[pytest.TerminalReporter] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share", type=Path, help="folder by which sessions agree on who runs which file")
    parser.addoption(
        "--alone", choices=["yes", "no"], help="only the files that have the machine for themselves, or none"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _reporters.append(config.pluginmanager.getplugin("terminalreporter"))
    if (alone := config.getoption("alone")) is not None:
        items[:] = [item for item in items if (item.path.name in ALONE) == (alone == "yes")]
    ranks = {name: rank for rank, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """True: a file that another session has taken is passed over; it is told of there."""
    share = item.config.getoption("share")
    if share is None:
        return None
    if item.path not in _taken:
        try:
            (share / item.path.name).touch(exist_ok=False)
            _taken[item.path] = True
        except FileExistsError:
            _taken[item.path] = False
    return None if _taken[item.path] else True


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    file = Path(report.location[0]).name
    _seconds[file] += report.duration
    if report.failed:  # the whole of it comes at the end of the run, which may be half an hour away
        _reporters[0].write_line(f"{report.nodeid}: {getattr(report.longrepr, 'reprcrash', report.longrepr)}")
    if report.when == "teardown":
        _figures.extend(f"{file}: {text}" for name, text in report.user_properties if name == "figure")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    terminalreporter.section("figures")
    for line in _figures:
        terminalreporter.write_line(line)
    if (share := config.getoption("share")) is not None:
        report = {"seconds": _seconds, "figures": _figures}
        (share / f"{os.getpid()}.json").write_text(json.dumps(report))


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Tells something that was measured, in the summary of the run as well."""

    def tell(text: str) -> None:
        print(text)
        request.node.user_properties.append(("figure", text))

    return tell

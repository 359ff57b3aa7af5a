"""What tests of the command line share."""

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _a_closed_terminal_counts() -> Iterator[None]:
    """Also where the tests were started under nohup, which sessions honour."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)

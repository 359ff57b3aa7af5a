"""What a Learner says in its log about its way to the Synchronizer, in one form for who writes and who reads it.

A line is written when the way breaks and the reason is another than before, and when it is whole again; so the last
such line of a log is how things are. The words are reasons of a site's condition `SynchronizerReachable`.
"""

import re
from dataclasses import dataclass
from enum import StrEnum


class Failure(StrEnum):
    """The first step of the way that fails."""

    DNS = "DNSFailure"
    TCP = "TCPFailure"
    TLS = "TLSFailure"
    AUTH = "AuthFailure"


@dataclass(frozen=True, slots=True)
class Unreached:
    """Why the Synchronizer is not reached. `message` begins with the address."""

    failure: Failure
    message: str

    def __str__(self) -> str:
        return f"{self.failure.value}: {self.message}"


REACHED_LINE = "the Synchronizer is reached again"
_UNREACHED = "the Synchronizer is not reached: "
_LINE = re.compile(rf"{_UNREACHED}({'|'.join(Failure)}): (.+)|({REACHED_LINE})$")


def unreached_line(why: str) -> str:
    """`why` is an `Unreached` as text, or begins like one."""
    return _UNREACHED + why


def last_said(log: str) -> Unreached | None:
    """How things are by the end of a log; None: the way is whole, or nothing is said of it."""
    for line in reversed(log.splitlines()):
        found = _LINE.search(line)
        if found is not None:
            return None if found[3] else Unreached(Failure(found[1]), found[2].strip())
    return None

"""What a drill is and how it is written: `KIND[=TARGET]@SECONDSs[+SECONDSs]`, as in `kill-learner=1@30s`.

Pure. Seconds before `+` count from the first outer step of the run, so that start-up time does not matter; seconds
after it are how long a freeze or a slow-down lasts. What a drill does when is in `drill_plan`.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from diloco_api.errors import SpecError

DEFAULT_LASTS_SECONDS = 20.0


class DrillKind(StrEnum):
    """What can be done to a running job."""

    KILL_LEARNER = "kill-learner"  # SIGKILL
    FREEZE_LEARNER = "freeze-learner"  # SIGSTOP, later SIGCONT
    SLOW_LEARNER = "slow-learner"  # stopped two thirds of the time
    KILL_SYNCHRONIZER = "kill-synchronizer"  # SIGKILL


LASTING = frozenset({DrillKind.FREEZE_LEARNER, DrillKind.SLOW_LEARNER})
_TEXT = re.compile(
    r"(?P<kind>[a-z-]+)(=(?P<target>[^@]*))?@(?P<at>\d+(\.\d+)?)s(\+(?P<lasts>\d+(\.\d+)?)s)?", flags=re.ASCII
)
_SYNTAX = "KIND[=TARGET]@SECONDSs[+SECONDSs], as in kill-learner=1@30s or freeze-learner=0@20s+15s"


@dataclass(frozen=True, slots=True)
class Drill:
    """One failure to bring about."""

    kind: DrillKind
    target: int | None
    """Learner index; None for the Synchronizer."""
    at_seconds: float
    """After the first outer step of the run."""
    lasts_seconds: float = 0.0
    """How long a freeze or a slow-down lasts; 0 for kills."""

    @property
    def title(self) -> str:
        """`kill-learner=1`, as the user wrote it."""
        return self.kind.value if self.target is None else f"{self.kind.value}={self.target}"


def parse_drill(text: str) -> Drill:
    """Read one `--drill`; SpecError says what is wrong with it."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise SpecError(f"--drill {text}: not of the form {_SYNTAX}")
    kinds = ", ".join(DrillKind)
    if match["kind"] not in list(DrillKind):
        raise SpecError(f"--drill {text}: no drill {match['kind']}; there are {kinds}")
    kind = DrillKind(match["kind"])
    lasts = match["lasts"]
    if lasts is not None and kind not in LASTING:
        raise SpecError(f"--drill {text}: {kind} is over at once, +{lasts}s means nothing")
    if lasts is not None and float(lasts) == 0:
        raise SpecError(f"--drill {text}: +{lasts}s: must last longer than 0 seconds")
    default = DEFAULT_LASTS_SECONDS if kind in LASTING else 0.0
    return Drill(kind, _target(text, kind, match["target"]), float(match["at"]), float(lasts) if lasts else default)


def check_targets(drills: list[Drill], replicas: int) -> None:
    """SpecError when a drill aims at a Learner the job will not have."""
    for drill in drills:
        if drill.target is not None and drill.target >= replicas:
            raise SpecError(f"--drill {drill.title}: no Learner {drill.target}, the job has 0 to {replicas - 1}")


def _target(text: str, kind: DrillKind, target: str | None) -> int | None:
    if kind is DrillKind.KILL_SYNCHRONIZER:
        if target is not None:
            raise SpecError(f"--drill {text}: there is one Synchronizer, {kind} takes no =TARGET")
        return None
    if target is None:
        return 0
    if not (target.isascii() and target.isdigit()):
        raise SpecError(f"--drill {text}: =TARGET must be the index of a Learner, not {target!r}")
    return int(target)

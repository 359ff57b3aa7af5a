"""What is durably known of one incarnation: its place, its last words, its lease, how its contributions ended."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from diloco_trainer.algorithm.events import GoneReason
from diloco_trainer.synchronizer.records import LearnerTotals

Who = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Settled:
    """How the last settled contribution of one Learner and fragment ended."""

    sequence: int
    outcome: Literal["merged", "refused"]
    version: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Lease:
    """The last answer to an incarnation's request for work."""

    request_number: int
    ranges: tuple[tuple[int, int, int], ...]
    exhausted: bool


@dataclass(slots=True)
class Enrolled:
    """One incarnation ever admitted."""

    index: int
    incarnation: int
    site: str
    gone: GoneReason | None = None
    departing: bool = False
    """It has left, and is gone once its bodies have settled."""
    totals: LearnerTotals = field(default_factory=lambda: LearnerTotals(0, 0))
    lease: Lease | None = None
    settled: dict[int, Settled] = field(default_factory=dict)
    """By fragment."""

    @property
    def who(self) -> Who:
        return (self.index, self.incarnation)

    def to_json(self) -> dict[str, Any]:
        """Plain data for a snapshot."""
        return {
            **{name: getattr(self, name) for name in ("index", "incarnation", "site", "gone", "departing")},
            "totals": asdict(self.totals),
            "lease": asdict(self.lease) if self.lease else None,
            "settled": {str(fragment): asdict(settled) for fragment, settled in self.settled.items()},
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Enrolled":
        """The reverse of `to_json`, also after a trip through JSON text."""
        lease = data["lease"]
        return cls(
            index=data["index"],
            incarnation=data["incarnation"],
            site=data["site"],
            gone=GoneReason(data["gone"]) if data["gone"] else None,
            departing=data["departing"],
            totals=LearnerTotals(**data["totals"]),
            lease=Lease(lease["request_number"], tuple(tuple(r) for r in lease["ranges"]), lease["exhausted"])
            if lease
            else None,
            settled={int(fragment): Settled(**settled) for fragment, settled in data["settled"].items()},
        )

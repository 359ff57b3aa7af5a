"""The durable state of a job but its tensors, as the fold of the log's records.

`apply` is the only way it changes, in live operation and in replay, so both end at the same state. It makes no
decision: what a record says has been decided. Token clocks between two totals records are the one thing a crash
forgets; Learners say them again.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from diloco_trainer.algorithm.spans import WorkRange
from diloco_trainer.algorithm.tokens import TokenLedger
from diloco_trainer.algorithm.work import WorkPool
from diloco_trainer.synchronizer.enrolled import Enrolled, Lease, Settled, Who
from diloco_trainer.synchronizer.records import (
    AdmitRecord,
    DepartRecord,
    FinishRecord,
    GoneRecord,
    JobRecord,
    JobTotals,
    LearnerTotals,
    LeaseRecord,
    LossRecord,
    MergeRecord,
    NothingRecord,
    OpenRecord,
    Record,
    RefuseRecord,
    ShareRecord,
    StartRecord,
    TotalsRecord,
)


class RecordMismatch(Exception):
    """A record does not fit the state before it; the text says how."""


@dataclass(slots=True)
class Control:
    """See the module. Read by everyone on the engine's thread, changed by `apply`."""

    ledger: TokenLedger
    pool: WorkPool
    numels: tuple[int, ...]
    """Elements of each fragment."""
    job: JobRecord | None = None
    fence: int = 0
    """Number of the newest process that took the folder."""
    started: bool = False
    """Version 0 has been handed out."""
    enrolled: dict[Who, Enrolled] = field(default_factory=dict)
    """In the order of admission."""
    newest: dict[int, int] = field(default_factory=dict)
    """Index to its newest incarnation."""
    versions: list[int] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    """Turn of the newest version of each fragment."""
    finish: FinishRecord | None = None
    loss_initial: float | None = None
    loss_final: float | None = None
    totals: JobTotals = field(default_factory=JobTotals)
    last_merge_wall: float | None = None

    @property
    def outer_steps(self) -> int:
        """Merges of all fragments, those on record and not visible yet included."""
        return sum(self.versions)

    def present(self) -> list[Enrolled]:
        """Incarnations admitted and not gone."""
        return [item for item in self.enrolled.values() if item.gone is None]

    def apply(self, record: Record) -> None:
        """Fold one record in; raises RecordMismatch when it cannot follow what came before."""
        match record:
            case JobRecord():
                self.job = record
            case OpenRecord():
                self.fence = record.fence
                if record.resumed:
                    self.finish, self.loss_final = None, None
            case StartRecord():
                self.started = True
            case AdmitRecord():
                self._admit(record)
            case LeaseRecord():
                self._lease(record)
            case ShareRecord():
                self.pool = self.pool.share(record.index, record.live)
            case MergeRecord():
                self._merge(record)
            case RefuseRecord():
                self._refuse(record)
            case NothingRecord():
                self._nothing(record)
            case DepartRecord():
                self.enrolled[record.index, record.incarnation].departing = True
            case GoneRecord():
                self._gone(record)
            case FinishRecord():
                self.finish = record
            case LossRecord():
                self._loss(record)
            case TotalsRecord():
                self._totals(record)

    def heard(self, who: Who, token_clock: int) -> None:
        """A token clock between two totals records: what a crash may forget."""
        self.ledger.heard(*who, token_clock)

    def _admit(self, record: AdmitRecord) -> None:
        who = (record.index, record.incarnation)
        known = self.enrolled.get(who)
        if known is None:
            totals = LearnerTotals(record.index, record.incarnation)
            self.enrolled[who] = Enrolled(record.index, record.incarnation, record.site, totals=totals)
        else:
            known.site, known.gone, known.departing, known.lease = record.site, None, False, None
        self.newest[record.index] = max(record.incarnation, self.newest.get(record.index, 0))
        self.ledger.admitted(record.index, record.incarnation)

    def _lease(self, record: LeaseRecord) -> None:
        self.pool, ranges, exhausted = self.pool.grant(
            record.index,
            record.incarnation,
            remaining=record.remaining_sequences,
            batch=record.batch_sequences,
            want=record.want_sequences,
            live=record.num_live,
            max_ahead_sequences=record.max_ahead_sequences,
            start_clock_tokens=record.start_clock_tokens,
        )
        if plain_ranges(ranges) != record.ranges or exhausted != record.exhausted:
            raise RecordMismatch(f"the lease of learner {record.index} is {record.ranges}, replay grants {ranges}")
        item = self.enrolled[record.index, record.incarnation]
        item.lease = Lease(record.request_number, record.ranges, record.exhausted)

    def _merge(self, record: MergeRecord) -> None:
        if record.version != self.versions[record.fragment] + 1:
            raise RecordMismatch(
                f"version {record.version} of fragment {record.fragment} follows {self.versions[record.fragment]}"
            )
        self.versions[record.fragment] = record.version
        self.turns[record.fragment] = record.turn
        self.last_merge_wall = record.wall
        for item in record.contributors:
            who = (item.index, item.incarnation)
            self.ledger.merged(*who, record.fragment, item.token_clock, item.c_tokens)
            self.pool = self.pool.settled(*who, self.ledger.frontier(*who))
            self.enrolled[who].settled[record.fragment] = Settled(item.sequence, "merged", record.version)

    def _refuse(self, record: RefuseRecord) -> None:
        who = (record.index, record.incarnation)
        limit = self.pool.clock_limit_tokens(*who)
        lost = self.ledger.discarded(*who, record.fragment, record.token_clock, record.c_tokens, record.reason, limit)
        self.pool = self.pool.settled(*who, self.ledger.frontier(*who))
        self.pool = self.pool.refill(lost * self.numels[record.fragment] / sum(self.numels))
        self.enrolled[who].settled[record.fragment] = Settled(
            record.sequence, "refused", record.newest_version, record.reason
        )

    def _nothing(self, record: NothingRecord) -> None:
        who = (record.index, record.incarnation)
        self.ledger.merged(*who, record.fragment, record.token_clock, 0)
        self.pool = self.pool.settled(*who, self.ledger.frontier(*who))

    def _gone(self, record: GoneRecord) -> None:
        who = (record.index, record.incarnation)
        self.ledger.heard(*who, record.token_clock)
        is_over = self.finish is not None and self.finish.reason is not None
        frontier = self.ledger.gone(*who, record.reason, leased_again=not is_over)
        self.pool, _ = self.pool.revoke(*who, frontier)
        self.enrolled[who].gone = record.reason

    def _loss(self, record: LossRecord) -> None:
        if record.when == "initial":
            self.loss_initial = record.loss
        else:
            self.loss_final = record.loss

    def _totals(self, record: TotalsRecord) -> None:
        self.totals = record.job
        for item in record.learners:
            self.enrolled[item.index, item.incarnation].totals = item
            self.ledger.heard(item.index, item.incarnation, item.token_clock)

    def to_json(self) -> dict[str, Any]:
        """Plain data for a snapshot."""
        return {
            "ledger": self.ledger.to_json(),
            "pool": self.pool.to_json(),
            "numels": list(self.numels),
            "job": asdict(self.job) if self.job else None,
            "fence": self.fence,
            "started": self.started,
            "enrolled": [item.to_json() for item in self.enrolled.values()],
            "newest": list(self.newest.items()),
            "versions": list(self.versions),
            "turns": list(self.turns),
            "finish": asdict(self.finish) if self.finish else None,
            "loss_initial": self.loss_initial,
            "loss_final": self.loss_final,
            "totals": asdict(self.totals),
            "last_merge_wall": self.last_merge_wall,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Control":
        """The reverse of `to_json`, also after a trip through JSON text."""
        control = cls(
            ledger=TokenLedger.from_json(data["ledger"]),
            pool=WorkPool.from_json(data["pool"]),
            numels=tuple(data["numels"]),
            job=JobRecord(**data["job"]) if data["job"] else None,
            newest=dict(data["newest"]),
            finish=FinishRecord(**data["finish"]) if data["finish"] else None,
            totals=JobTotals(**data["totals"]),
        )
        for name in ("fence", "started", "versions", "turns", "loss_initial", "loss_final", "last_merge_wall"):
            setattr(control, name, data[name])
        for item in data["enrolled"]:
            found = Enrolled.from_json(item)
            control.enrolled[found.who] = found
        return control


def new_control(numels: tuple[int, ...], pool: WorkPool) -> Control:
    """A job without a record."""
    return Control(
        ledger=TokenLedger(numels), pool=pool, numels=numels, versions=[0] * len(numels), turns=[0] * len(numels)
    )


def plain_ranges(ranges: tuple[WorkRange, ...]) -> tuple[tuple[int, int, int], ...]:
    """Work ranges as a lease record holds them."""
    return tuple((item.pass_number, item.start, item.stop) for item in ranges)

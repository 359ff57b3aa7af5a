"""Does what `sync_round` decided: records it, tells whom it concerns, starts merges.

Each effect has one short method; none of them decides anything. What an effect makes known waits for its record.
"""

import logging
from collections.abc import Callable

from diloco_trainer.algorithm.events import (
    Admit,
    Announce,
    Effect,
    Finish,
    Hold,
    MarkAlive,
    MarkDead,
    MarkGone,
    Merge,
    RefusalReason,
    Refuse,
    RejectJoin,
    SkipTurn,
    Start,
    Void,
)
from diloco_trainer.synchronizer.core import Core
from diloco_trainer.synchronizer.merge_exec import Body
from diloco_trainer.synchronizer.merging import Merger
from diloco_trainer.synchronizer.records import (
    AdmitRecord,
    FinishRecord,
    GoneRecord,
    RefuseRecord,
    StartRecord,
    TotalsRecord,
)
from diloco_trainer.wire.gen import synchronizer_pb2 as pb

logger = logging.getLogger(__name__)
GUARD = frozenset({RefusalReason.NON_FINITE, RefusalReason.NORM_OUTLIER})


class Effects:
    """Belongs to the engine thread."""

    def __init__(self, core: Core, merger: Merger, on_finish: Callable[[], None]) -> None:
        """`on_finish` is called once the end of the job is on record and durable."""
        self._core = core
        self._merger = merger
        self._on_finish = on_finish

    def execute(self, effect: Effect) -> None:
        """Do one effect."""
        match effect:
            case Admit():
                self._admit(effect)
            case RejectJoin():
                logger.info("learner %d incarnation %d may not join", effect.index, effect.incarnation)
            case Start():
                self._core.journal.record(StartRecord(self._core.clock.wall()))
                logger.info("version 0 is handed out")
            case Announce():
                self._core.counters.turns_announced += 1
                self._core.notices.tell_all(turn_notice(effect))
            case SkipTurn():
                self._core.counters.turns_skipped += 1
                logger.debug("turn %d of fragment %d skipped: %s", effect.turn, effect.fragment, effect.reason)
            case Merge():
                self._merger.begin(effect)
            case Void():
                self._core.counters.turns_void += 1
                logger.debug("turn %d of fragment %d is void: %s", effect.turn, effect.fragment, effect.reason)
            case Hold():
                self._core.inbox.hold(effect.key)
            case Refuse():
                body = self._core.inbox.get(effect.key)
                self.refuse(body, effect.reason, "")
            case MarkDead():
                logger.warning("learner %d incarnation %d is unheard", effect.index, effect.incarnation)
            case MarkAlive():
                logger.info("learner %d incarnation %d is heard again", effect.index, effect.incarnation)
            case MarkGone():
                self._gone(effect)
            case Finish():
                self._finish(effect)

    def refuse(self, body: Body, reason: RefusalReason, message: str) -> None:
        """Settle a body without merging it; the tokens it stood for can be leased again."""
        core, key = self._core, body.key
        core.inbox.drop(key)
        core.journal.record(
            RefuseRecord(
                index=key.index,
                incarnation=key.incarnation,
                fragment=key.fragment,
                sequence=key.sequence,
                reason=reason,
                message=message,
                newest_version=core.fragments[key.fragment].version,
                token_clock=body.token_clock,
                c_tokens=body.c_tokens,
                wall=core.clock.wall(),
            )
        )
        logger.warning(
            "learner %d incarnation %d, fragment %d: contribution %d refused: %s %s",
            *(key.index, key.incarnation, key.fragment, key.sequence, reason, message),
        )
        who = (key.index, key.incarnation)
        notice = pb.Notice(settlement=settlement_of(core, key.index, key.incarnation, key.fragment))
        core.journal.when_durable(lambda: core.notices.tell(who, notice))
        core.pool_changed()

    def _admit(self, effect: Admit) -> None:
        core, who = self._core, (effect.index, effect.incarnation)
        core.journal.record(AdmitRecord(*who, site=core.sites.pop(who, ""), wall=core.clock.wall()))
        core.roster.admit(core.control.enrolled[who].totals, core.now())
        logger.info("learner %d incarnation %d of site %r admitted", *who, core.control.enrolled[who].site)

    def _gone(self, effect: MarkGone) -> None:
        core, who = self._core, (effect.index, effect.incarnation)
        clock = core.control.ledger.clock(*who)
        core.journal.record(TotalsRecord(core.job_totals(), core.roster.take_unsaved()))
        core.journal.record(GoneRecord(*who, reason=effect.reason, token_clock=clock, wall=core.clock.wall()))
        core.roster.remove(who)
        core.journal.when_durable(lambda: core.notices.end(who))
        logger.info("learner %d incarnation %d is gone: %s", *who, effect.reason)
        core.pool_changed()

    def _finish(self, effect: Finish) -> None:
        core = self._core
        core.journal.record(FinishRecord(effect.reason, core.clock.wall()))
        core.journal.when_durable(self._on_finish)
        logger.info("all rounds are over: %s", effect.reason or "drained")


def turn_notice(effect: Announce) -> pb.Notice:
    """A turn as Learners are told of it."""
    turn = pb.Turn(
        number=effect.turn,
        fragment=effect.fragment,
        closing=effect.closing,
        interval_seconds=effect.interval_seconds,
    )
    return pb.Notice(turn=turn)


def settlement_of(core: Core, index: int, incarnation: int, fragment: int) -> pb.Settlement:
    """The last settlement of a Learner and fragment, as its Learner is told; there is one."""
    settled = core.control.enrolled[index, incarnation].settled[fragment]
    return pb.Settlement(
        fragment=fragment,
        sequence=settled.sequence,
        outcome=pb.MERGED if settled.outcome == "merged" else pb.REFUSED,
        version=settled.version,
        reason=settled.reason,
        discarded_by_guard=settled.reason in GUARD,
    )

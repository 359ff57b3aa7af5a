"""What Learners ask of membership and work: join, heartbeat, lease, leave, the stream of turns.

Runs on the engine thread; answers through `Reply`. An answer that admits, fences or leases waits for its record. Who is
dead, gone or fenced has been decided by `sync_round`; how much is leased by `WorkPool`.
"""

import math

from diloco_trainer.algorithm.events import Heard, Joined, Left, Listening, RejectJoin
from diloco_trainer.algorithm.round_state import Stage
from diloco_trainer.algorithm.sync_round import open_turns
from diloco_trainer.synchronizer.control import plain_ranges
from diloco_trainer.synchronizer.core import PHASES, Core, Who
from diloco_trainer.synchronizer.effects import turn_notice
from diloco_trainer.synchronizer.enrolled import Lease
from diloco_trainer.synchronizer.notices import Subscription
from diloco_trainer.synchronizer.records import DepartRecord, LearnerTotals, LeaseRecord
from diloco_trainer.synchronizer.reply import Reply
from diloco_trainer.wire.errors import Fenced, LayoutMismatch, Reason, Refused, SynchronizerUnavailable, WireError
from diloco_trainer.wire.gen import synchronizer_pb2 as pb


class Desk:
    """Belongs to the engine thread."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def join(self, request: pb.JoinRequest, reply: Reply[pb.JoinReply]) -> None:
        """Admit an incarnation, or say why not."""
        core, who = self._core, (request.index, request.incarnation)
        problem = self._cannot_join(request)
        if problem is not None:
            reply.fail(problem)
            return
        core.sites[who] = request.site
        effects = core.feed(Joined(*who))
        core.sites.pop(who, None)
        rejected = next((effect for effect in effects if isinstance(effect, RejectJoin)), None)
        if rejected is not None and rejected.newest > request.incarnation:
            fenced = self.fenced(who)
            core.journal.when_durable(lambda: reply.fail(fenced))
        elif rejected is not None:
            reply.fail(SynchronizerUnavailable("what this incarnation had delivered is still being settled"))
        else:
            core.journal.when_durable(lambda: reply.ok(self._join_reply()))

    def heartbeat(self, request: pb.HeartbeatRequest, reply: Reply[pb.HeartbeatReply]) -> None:
        core, who = self._core, (request.index, request.incarnation)
        try:
            self.admitted(who)
        except WireError as error:
            reply.fail(error)
            return
        self._hear(request)
        self._ask_again(who)
        rounds = core.rounds
        available = rounds.stage in (Stage.WAITING, Stage.RUNNING) and not rounds.draining
        reply.ok(
            pb.HeartbeatReply(
                phase=PHASES[core.told_phase],
                lease_available=available and core.control.pool.has_work_for(request.index),
                turn_interval_seconds=rounds.interval_seconds() or 0.0,
            )
        )

    def lease(self, request: pb.LeaseRequest, reply: Reply[pb.LeaseReply]) -> None:
        """Grant work; the same request number has the same answer, also after a restart."""
        core, who = self._core, (request.index, request.incarnation)
        try:
            self.admitted(who)
            lease = self._lease(request)
        except WireError as error:
            reply.fail(error)
            return
        answer = pb.LeaseReply(exhausted=lease.exhausted)
        for number, start, stop in lease.ranges:
            answer.ranges.add(start=start, stop=stop, **{"pass": number})
        core.journal.when_durable(lambda: reply.ok(answer))

    def leave(self, request: pb.LeaveRequest, reply: Reply[None]) -> None:
        """The last word of an incarnation; saying it again changes nothing."""
        core, who = self._core, (request.index, request.incarnation)
        if core.member(who) is not None:
            if request.HasField("totals"):
                self._hear(request.totals)
            core.journal.record(DepartRecord(*who))
            core.feed(Left(*who))
        core.journal.when_durable(lambda: reply.ok(None))

    def subscribe(self, who: Who, subscription: Subscription, reply: Reply[None]) -> None:
        """Open a stream of notices: the phase and the turns that are open, then everything as it happens."""
        try:
            self.admitted(who)
        except WireError as error:
            reply.fail(error)
            return
        core = self._core
        core.notices.subscribe(who, subscription)
        subscription.push(pb.Notice(phase=PHASES[core.told_phase]))
        for turn in open_turns(core.rounds):
            subscription.push(turn_notice(turn))
        core.feed(Listening(*who))
        reply.ok(None)

    def unsubscribe(self, who: Who, subscription: Subscription) -> None:
        self._core.notices.unsubscribe(who, subscription)

    def admitted(self, who: Who) -> None:
        """Raise the error that tells an incarnation which is no member what to do."""
        if self._core.member(who) is not None:
            return
        if self._core.control.newest.get(who[0], -1) > who[1]:
            raise self.fenced(who)
        raise Refused(Reason.NOT_ADMITTED, f"learner {who[0]} incarnation {who[1]} is not admitted: join first")

    def fenced(self, who: Who) -> Fenced:
        newest = self._core.control.newest[who[0]]
        return Fenced(f"learner {who[0]} incarnation {who[1]} is fenced: incarnation {newest} was admitted")

    def _ask_again(self, who: Who) -> None:
        """Repeat turns this Learner has left unanswered for a while.

        It takes an open contribution for its answer. When that turns out to have been settled in an earlier round (the
        notice was lost with a broken stream), nobody else would remind it of the turn.
        """
        core = self._core
        patience = core.run.timeouts.heartbeat_seconds
        for turn in open_turns(core.rounds):
            current = core.rounds.rounds[turn.fragment]
            if who not in current.answered and core.now() - current.opened_at >= patience:
                core.notices.tell(who, turn_notice(turn))

    def _cannot_join(self, request: pb.JoinRequest) -> WireError | None:
        core = self._core
        if request.layout_digest != core.context.layout.digest:
            return LayoutMismatch(
                f"the Learner's model has layout {request.layout_digest[:64]!r}, the Synchronizer's is "
                f"{core.context.layout.digest!r}: both need the same run config and trainer image"
            )
        if core.rounds.stage == Stage.FINISHED:
            return Refused(Reason.JOB_ENDED, f"the job is {core.phase()}")
        if core.run.policy.synchronous and request.index >= core.run.replicas:
            return Refused(
                Reason.BAD_HEADER, f"learner index {request.index} is not below replicas = {core.run.replicas}"
            )
        return None

    def _join_reply(self) -> pb.JoinReply:
        core = self._core
        return pb.JoinReply(
            epoch=core.context.epoch,
            versions=[state.version for state in core.fragments],
            job_step=max(state.newest.stage_step for state in core.fragments),
            heartbeat_seconds=core.run.timeouts.heartbeat_seconds,
            started=core.control.started,
            rejoin=any(state.version > 0 for state in core.fragments),
        )

    def _hear(self, request: pb.HeartbeatRequest) -> None:
        """Take in a heartbeat of a member."""
        core, who = self._core, (request.index, request.incarnation)
        core.roster.hear(totals_of(request), core.now())
        # A clock beyond the lease is a mistake or a lie; it must not push the whole job's schedule.
        core.control.heard(who, min(request.token_clock, core.control.pool.clock_limit_tokens(*who)))
        step_seconds = request.step_seconds if request.step_seconds > 0 else None
        core.feed(Heard(*who, step_seconds=step_seconds, drained=request.drained))

    def _lease(self, request: pb.LeaseRequest) -> Lease:
        core, who = self._core, (request.index, request.incarnation)
        last = core.control.enrolled[who].lease
        if last is not None and request.request_number == last.request_number:
            return last
        if last is not None and request.request_number < last.request_number:
            raise Refused(
                Reason.BAD_HEADER, f"lease request {request.request_number} comes after {last.request_number}"
            )
        if request.batch_sequences < 1:
            raise Refused(Reason.BAD_HEADER, "a lease request without a batch size")
        if core.rounds.draining or core.rounds.stage not in (Stage.WAITING, Stage.RUNNING):
            return Lease(request.request_number, (), exhausted=True)
        # Those still to come count too: or the first one to join would take half of the budget for itself.
        live = max(core.run.replicas, len(core.rounds.live()))
        max_ahead = core.run.policy.max_steps_ahead * request.batch_sequences
        core.control.heard(who, request.token_clock)
        start_clock = core.control.ledger.clock(*who)
        _, ranges, exhausted = core.control.pool.grant(
            *who,
            remaining=request.remaining_sequences,
            batch=request.batch_sequences,
            want=request.want_sequences,
            live=live,
            max_ahead_sequences=max_ahead,
            start_clock_tokens=start_clock,
        )
        lease = Lease(request.request_number, plain_ranges(ranges), exhausted)
        if ranges:
            core.journal.record(
                LeaseRecord(
                    index=request.index,
                    incarnation=request.incarnation,
                    request_number=request.request_number,
                    remaining_sequences=request.remaining_sequences,
                    batch_sequences=request.batch_sequences,
                    want_sequences=request.want_sequences,
                    num_live=live,
                    max_ahead_sequences=max_ahead,
                    start_clock_tokens=start_clock,
                    ranges=lease.ranges,
                    exhausted=exhausted,
                )
            )
            # It may have said that it is drained; with this it is not, whatever is left in the pool.
            core.feed(Heard(*who, step_seconds=core.rounds.members[who].step_seconds, drained=False))
            core.pool_changed()
        return lease


def totals_of(request: pb.HeartbeatRequest) -> LearnerTotals:
    """A heartbeat as it is kept."""
    return LearnerTotals(
        index=request.index,
        incarnation=request.incarnation,
        state=request.state,
        step=request.step,
        job_step=request.job_step,
        token_clock=request.token_clock,
        loss=request.loss if math.isfinite(request.loss) else None,
        learning_rate=request.learning_rate,
        step_seconds=request.step_seconds if request.step_seconds > 0 else None,
        warmup_left=request.warmup_left,
        staleness=request.staleness,
        metrics_port=request.metrics_port,
        state_seconds=dict(request.state_seconds),
        bytes_up=request.bytes_up,
        bytes_down=request.bytes_down,
        digest_mismatches=request.digest_mismatches,
    )

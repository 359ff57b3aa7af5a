"""Contributions over the counter: checks of header and values, duplicates, the guard, the answer; and pulls.

Runs on the engine thread but for `inspect`, which reads a body and belongs on any other. Bodies are checked as they
arrive; what becomes of a good one is `sync_round`'s decision. A contribution whose settlement is on record gets it
again. One of more tokens than its Learner was leased is settled as refused, unread: were it turned away without a
record, its tokens would later pass for overlap.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from diloco_api.policy import Codec
from diloco_trainer.algorithm import guard, reduce
from diloco_trainer.algorithm.events import AnsweredNothing, Contributed, Key, RefusalReason
from diloco_trainer.synchronizer.core import Core
from diloco_trainer.synchronizer.desk import Desk
from diloco_trainer.synchronizer.effects import Effects, settlement_of
from diloco_trainer.synchronizer.inbox import Contradiction
from diloco_trainer.synchronizer.merge_exec import Body, MergeContext
from diloco_trainer.synchronizer.merging import Merger
from diloco_trainer.synchronizer.records import NothingRecord
from diloco_trainer.synchronizer.reply import Reply
from diloco_trainer.synchronizer.state import Retained, Version
from diloco_trainer.wire.errors import Fenced, Reason, Refused, SynchronizerUnavailable, WireError
from diloco_trainer.wire.gen import synchronizer_pb2 as pb

LARGEST = {Codec.FP16: 1e3}
"""Values above this could overflow the outer step or its downlink encoding; 1e30 for codecs with fp32's range."""
RATE_TOLERANCE = 1e-6
"""Relative: a mean of equal rates may come out above them."""


@dataclass(frozen=True, slots=True)
class Inspected:
    """A body as it arrived. `norm` is of the decoded delta, NaN when a value is not finite."""

    data: Tensor
    norm: float
    problem: str
    """Why the guard refuses it whatever its norm; empty when it does not."""


def inspect(context: MergeContext, fragment: int, payload: bytearray) -> Inspected:
    """Decode a body and take its norm; pure, may run on any thread."""
    data = torch.frombuffer(payload, dtype=torch.uint8)
    numel = context.fragment(fragment).numel
    if not context.up.is_finite(data, numel):
        return Inspected(data, math.nan, "a value is NaN or infinite")
    delta = context.up.decode(data, numel)
    largest = float(delta.abs().max())
    limit = LARGEST.get(context.down.kind, 1e30)
    problem = f"a value of {largest:.3g} would overflow the outer step" if largest > limit else ""
    return Inspected(data, reduce.tree_norm(delta), problem)


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a pull is answered with: deltas in order, or one anchor."""

    fragment: int
    deltas: tuple[Retained, ...] = ()
    anchor: Tensor | None = None
    """fp32 [numel], the asker's to keep."""
    version: Version | None = None
    """Of the anchor."""


class Counter:
    """Belongs to the engine thread."""

    def __init__(self, core: Core, desk: Desk, merger: Merger, effects: Effects) -> None:
        self._core = core
        self._desk = desk
        self._merger = merger
        self._effects = effects

    def offer(self, header: pb.ContributionHeader, reply: Reply[pb.Settlement | None]) -> None:
        """Before the body is read: None to read it, or what is already known of it."""
        try:
            known = self._known(header) or self._check(header)
        except WireError as error:
            reply.fail(error)
            return
        if known is None:
            reply.ok(None)
        else:
            self._answer(known, reply)

    def contribute(
        self, header: pb.ContributionHeader, inspected: Inspected | None, reply: Reply[pb.Settlement]
    ) -> None:
        """Take in a whole body, or an answer without one (`inspected` None)."""
        self._core.counters.bytes_up += header.size_bytes
        try:
            known = self._known(header) or self._check(header)
        except WireError as error:
            reply.fail(error)
            return
        if known is None:
            known = self._nothing(header) if inspected is None else self._body(header, inspected)
        self._answer(known, reply)

    def pull(self, request: pb.PullRequest, reply: Reply[Pulled]) -> None:
        """Deltas that are retained, or the anchor of the newest version."""
        core = self._core
        try:
            self._desk.admitted((request.index, request.incarnation))
            if request.fragment >= len(core.fragments):
                raise Refused(Reason.UNKNOWN_FRAGMENT, f"there is no fragment {request.fragment}")
            if not core.control.started:
                raise SynchronizerUnavailable("version 0 is not handed out yet: not enough learners have joined")
            pulled = None if request.raw else self._deltas(request)
        except WireError as error:
            reply.fail(error)
            return
        if pulled is not None:
            core.counters.bytes_down += sum(item.delta.numel() for item in pulled.deltas)
            reply.ok(pulled)
            return
        self._merger.when_idle(request.fragment, self._raw(request.fragment, reply))

    def _answer(self, known: pb.Settlement, reply: Reply[pb.Settlement]) -> None:
        """A settlement is told once its record is on disk; that a body waits is not on record."""
        if known.outcome in (pb.RECEIVED, pb.HELD):
            reply.ok(known)
        else:
            self._core.journal.when_durable(lambda: reply.ok(known))

    def _raw(self, fragment: int, reply: Reply[Pulled]) -> Callable[[], None]:
        def answer() -> None:
            state = self._core.fragments[fragment]
            self._core.counters.bytes_down += 4 * state.published.numel()
            reply.ok(Pulled(fragment, anchor=state.published.clone(), version=state.newest))

        return answer

    def _deltas(self, request: pb.PullRequest) -> Pulled:
        state = self._core.fragments[request.fragment]
        want = request.want_version or state.version
        if want > state.version or request.have_version > want:
            raise Refused(
                Reason.UNKNOWN_VERSION,
                f"fragment {request.fragment} has version {state.version}; {request.have_version} to {want} was asked",
            )
        deltas = state.deltas(request.have_version, want)
        if deltas is None:
            raise Refused(
                Reason.UNKNOWN_VERSION,
                f"fragment {request.fragment}: deltas from version {request.have_version} are no longer retained: "
                "pull it raw",
            )
        return Pulled(request.fragment, deltas=tuple(deltas))

    def _known(self, header: pb.ContributionHeader) -> pb.Settlement | None:
        """What is known of this very contribution: settled, waiting, or nothing. Raises for contradictions."""
        core, who = self._core, (header.index, header.incarnation)
        if header.nothing:
            return None
        enrolled = core.control.enrolled.get(who)
        settled = enrolled.settled.get(header.fragment) if enrolled is not None else None
        if settled is not None and settled.sequence == header.sequence:
            return settlement_of(core, *who, header.fragment)
        if settled is not None and settled.sequence > header.sequence:
            raise Refused(
                Reason.BAD_HEADER, f"contribution {header.sequence} comes after {settled.sequence} was settled"
            )
        key = key_of(header)
        try:
            body = core.inbox.find(key, header.checksum)
        except Contradiction as error:
            raise Refused(Reason.BAD_HEADER, f"fragment {header.fragment}: {error}") from error
        if body is None:
            return None
        outcome = pb.HELD if core.inbox.is_held(key) else pb.RECEIVED
        return pb.Settlement(fragment=header.fragment, sequence=header.sequence, outcome=outcome)

    def _check(self, header: pb.ContributionHeader) -> pb.Settlement | None:
        """Raise for a header that cannot be taken: its sender or its figures are wrong.

        Returns the refusal of a body that is beyond its Learner's lease, else None.
        """
        core, who = self._core, (header.index, header.incarnation)
        try:
            self._desk.admitted(who)
        except Fenced:
            core.counters.fenced_updates += 1
            known = core.control.enrolled.get(who)
            core.measures.fenced(known.site if known is not None else "")
            raise
        limit = core.control.pool.clock_limit_tokens(*who)
        beyond = f"token clock {header.token_clock} is beyond the {limit} tokens leased"
        if header.nothing:
            if header.token_clock > limit:
                raise Refused(Reason.BEYOND_LEASE, beyond)
            return None
        self._check_figures(header)
        if header.token_clock > limit:
            unread = Inspected(torch.empty(0, dtype=torch.uint8), 0.0, "")
            return self._refuse(body_of(header, unread), RefusalReason.BEYOND_LEASE, beyond)
        return None

    def _check_figures(self, header: pb.ContributionHeader) -> None:
        """Raise for a body whose header cannot be true: guard, weights and books rely on it."""
        core, who = self._core, (header.index, header.incarnation)
        version = core.fragments[header.fragment].version
        if header.base_version > version:
            raise Refused(
                Reason.UNKNOWN_VERSION,
                f"fragment {header.fragment} has version {version}, the base is {header.base_version}",
            )
        covered = core.control.ledger.fragment_tokens(*who)[header.fragment].covered
        if header.c_tokens < 1 or header.token_clock - header.c_tokens < covered:
            raise Refused(
                Reason.BAD_HEADER,
                f"{header.c_tokens} tokens up to token clock {header.token_clock} reach back before {covered}, "
                "which is settled",
            )
        sequence_length = core.run.train.data.sequence_length
        if header.c_steps * sequence_length > header.c_tokens:
            raise Refused(
                Reason.BAD_HEADER,
                f"{header.c_tokens} tokens make no {header.c_steps} steps: one takes {sequence_length} tokens at least",
            )
        peak = core.run.train.optimizer.learning_rate
        if header.mean_lr > peak * (1 + RATE_TOLERANCE):
            raise Refused(
                Reason.BAD_HEADER, f"mean_lr is {header.mean_lr:.6g}, above {peak:.6g}, the job's peak learning rate"
            )

    def _nothing(self, header: pb.ContributionHeader) -> pb.Settlement:
        """No step since the adoption: what was trained before it and came into no body was overlap."""
        core, who = self._core, (header.index, header.incarnation)
        is_open = any(body.key.fragment == header.fragment for body in core.inbox.of(*who))
        if header.token_clock > core.control.ledger.fragment_tokens(*who)[header.fragment].covered and not is_open:
            core.journal.record(NothingRecord(*who, header.fragment, header.token_clock))
        core.feed(AnsweredNothing(header.index, header.incarnation, header.fragment, header.turn))
        return pb.Settlement(fragment=header.fragment, sequence=header.sequence, outcome=pb.RECEIVED)

    def _body(self, header: pb.ContributionHeader, inspected: Inspected) -> pb.Settlement:
        """A new body: the guard first, then the round."""
        core, key = self._core, key_of(header)
        body = body_of(header, inspected)
        core.control.heard((key.index, key.incarnation), header.token_clock)
        norms = core.fragments[key.fragment].norms
        policy = core.run.policy
        carried = norms.norm_before(key.index, key.incarnation) if policy.error_feedback else 0.0
        verdict = guard.judge(policy.guard, norms, body.norm, body.c_steps, body.mean_lr, carried=carried)
        if inspected.problem or not verdict.ok:
            reason = RefusalReason.NON_FINITE if inspected.problem else verdict.reason
            assert reason is not None
            return self._refuse(body, reason, inspected.problem or verdict.message)
        core.inbox.add(body)
        core.feed(Contributed(key, turn=body.turn, base_version=body.base_version))
        known = self._known(header)
        assert known is not None, "a body is waiting or settled"
        return known

    def _refuse(self, body: Body, reason: RefusalReason, message: str) -> pb.Settlement:
        """Settle a body that no round hears of; its Learner has answered the turn without one."""
        core, key = self._core, body.key
        self._effects.refuse(body, reason, message)
        core.feed(AnsweredNothing(key.index, key.incarnation, key.fragment, body.turn))
        return settlement_of(core, key.index, key.incarnation, key.fragment)


def key_of(header: pb.ContributionHeader) -> Key:
    """The contribution a header names."""
    return Key(header.index, header.incarnation, header.fragment, header.sequence)


def body_of(header: pb.ContributionHeader, inspected: Inspected) -> Body:
    """The body that came with a header."""
    return Body(
        key=key_of(header),
        turn=header.turn,
        base_version=header.base_version,
        stage_step=header.stage_step,
        token_clock=header.token_clock,
        c_tokens=header.c_tokens,
        c_steps=header.c_steps,
        mean_lr=header.mean_lr,
        norm=inspected.norm,
        checksum=header.checksum,
        data=inspected.data,
    )

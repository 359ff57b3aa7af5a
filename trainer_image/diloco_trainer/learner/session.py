"""Everything a Learner says to the Synchronizer, from Join to Leave, on one event loop.

Heartbeats, the stream of turns, leases and the training thread's messages each have a task; payload is `transfers`.
When the Synchronizer has given this incarnation up, all of it starts anew with a Join. No tensors are touched here,
and nothing is decided about rounds.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import aclosing

from diloco_api.run_config import RunConfig
from diloco_trainer.learner.account import Account
from diloco_trainer.learner.heartbeat import Self, heartbeat
from diloco_trainer.learner.leases import Leases
from diloco_trainer.learner.messages import (
    AdoptionDone,
    Depart,
    Drained,
    FirstStep,
    Installed,
    LeaseWanted,
    PhaseIs,
    Staged,
    ToExchange,
    ToTraining,
    TurnSeen,
    Voided,
)
from diloco_trainer.learner.patience import JoinAgain, Patience
from diloco_trainer.learner.tape import Tape
from diloco_trainer.learner.transfers import Transfers
from diloco_trainer.wire.errors import SynchronizerUnavailable, WireError
from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from diloco_trainer.wire.protocol import PROTOCOL_VERSION
from diloco_trainer.wire.service import Synchronizer

logger = logging.getLogger(__name__)


class Departed(Exception):
    """The Learner has left; the session is over."""


class Session:
    """One connection's worth of conversation; `run` returns once the Learner has left."""

    def __init__(
        self,
        client: Synchronizer,
        run: RunConfig,
        me: Self,
        *,
        account: Account,
        tape: Tape,
        patience: Patience,
        make_transfers: "Callable[[Callable[[Coroutine[None, None, None]], asyncio.Task[None]]], Transfers]",
        tell: Callable[[ToTraining], None],
    ) -> None:
        self._client = client
        self._run = run
        self._me = me
        self._account = account
        self._tape = tape
        self._patience = patience
        self._tell = tell
        self._transfers = make_transfers(self._spawn)
        self._transfers.on_change = self._check_drained
        self._leases = Leases(
            client, run, me.identity, account=account, patience=patience, tell=tell, on_answer=self._check_drained
        )
        self.mail: asyncio.Queue[ToExchange] = asyncio.Queue()
        self._group: asyncio.TaskGroup | None = None
        self._leaving = False
        self._reset()

    def _reset(self) -> None:
        self._phase: int = pb.PHASE_UNSPECIFIED
        self._joined = False
        self._installed = False
        self._started = asyncio.Event()
        self._beat_now = asyncio.Event()
        self._training = Drained(False, 0)
        self._said_drained = False
        self._turns_seen = [0 for _ in range(self._run.policy.num_fragments)]
        self._turns_since_adoption = [0 for _ in range(self._run.policy.num_fragments)]
        self._early_turns: dict[int, pb.Turn] = {}
        self._leases.reset()

    async def run(self) -> None:
        """Join, take part, leave. Raises Orphaned or the WireError that ended it."""
        while True:
            try:
                async with asyncio.TaskGroup() as group:
                    self._group = group
                    self._spawn(self._take_part())
                    self._spawn(self._read_mail())
            except BaseExceptionGroup as group_error:
                error = _first(group_error)
                # A call that the goodbye has overtaken is told to join again; that is over.
                if isinstance(error, Departed) or (self._leaving and isinstance(error, JoinAgain)):
                    self._tape.flush()
                    return
                if not isinstance(error, JoinAgain):
                    raise error from None
                self._reset()
                self._tell(Voided())

    def _spawn(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        assert self._group is not None, "tasks start inside a session"
        return self._group.create_task(work)

    # --- joining and leaving --------------------------------------------------------------------------------------

    async def _take_part(self) -> None:
        reply = await self._join()
        self._joined = True
        versions = f"{min(reply.versions, default=0)} to {max(reply.versions, default=0)}"
        logger.info("joined in epoch %d at job step %d, versions %s", reply.epoch, reply.job_step, versions)
        if reply.started:
            self._started.set()
        self._spawn(self._beat_for_ever(reply.heartbeat_seconds or self._run.timeouts.heartbeat_seconds))
        self._spawn(self._listen_for_ever())
        await self._started.wait()
        await self._transfers.restore(reply)
        self._installed = True
        for turn in self._early_turns.values():
            self._on_turn(turn)

    def _begin_leasing(self) -> None:
        """The training thread is done with whatever came before this Join: its clock and its stock are known."""
        self._training = Drained(False, 0)
        self._leases.reset()
        self._spawn(self._leases.run())
        self._leases.wanted()

    async def _join(self) -> pb.JoinReply:
        identity, site, digest = self._me.identity, self._me.site, self._me.layout_digest
        request = pb.JoinRequest(protocol_version=PROTOCOL_VERSION, job_uid=self._run.job_uid, site=site)
        request.index, request.incarnation, request.layout_digest = identity.index, identity.incarnation, digest
        attempt = 0
        while True:
            try:
                reply = await self._client.join(request)
            except SynchronizerUnavailable as error:
                await self._patience.pause(attempt, error.message)
                attempt += 1
            else:
                self._patience.heard()
                return reply

    async def _depart(self, message: Depart) -> None:
        """Deliver what is open, say goodbye; neither holds the process up for longer than it may.

        A Synchronizer that is away is given a moment only: work that is not handed over is leased again.
        """
        moment = self._run.timeouts.failed_goodbye_seconds
        seconds = message.within_seconds if self._patience.answered else min(message.within_seconds, moment)
        await self._transfers.delivered(0.7 * seconds)
        if self._joined:
            identity = self._me.identity
            request = pb.LeaveRequest(
                index=identity.index, incarnation=identity.incarnation, reason=message.reason, totals=self._heartbeat()
            )
            self._leaving = True
            try:
                async with asyncio.timeout(0.3 * seconds):
                    await self._client.leave(request)
            except (WireError, TimeoutError):
                pass  # an incarnation that cannot say goodbye is found out by its silence
        raise Departed

    # --- heartbeats -----------------------------------------------------------------------------------------------

    async def _beat_for_ever(self, interval_seconds: float) -> None:
        while True:
            self._beat_now.clear()
            await self._beat()
            self._tape.flush()
            try:
                async with asyncio.timeout(interval_seconds):
                    await self._beat_now.wait()
            except TimeoutError:
                pass

    async def _beat(self) -> None:
        try:
            reply = await self._client.heartbeat(self._heartbeat())
        except SynchronizerUnavailable as error:
            await self._patience.pause(0, error.message)
            return
        except WireError as error:
            self._patience.refused(error)
            return
        self._patience.heard()
        if reply.lease_available:
            self._leases.available()
        self._leases.top_up()
        self._on_phase(reply.phase)

    def _heartbeat(self) -> pb.HeartbeatRequest:
        self._said_drained = self._is_drained()
        return heartbeat(self._me, self._account.report(forget_losses=True), drained=self._said_drained)

    def _is_drained(self) -> bool:
        """Nothing left to train on, nothing under way: only the closing rounds are waited for."""
        has_seen_grants = self._training.num_grants == self._leases.num_grants and not self._leases.under_way
        return self._installed and self._training.drained and has_seen_grants and self._transfers.uplink.is_quiet

    def _check_drained(self) -> None:
        if self._is_drained() != self._said_drained:
            self._beat_now.set()

    # --- notices --------------------------------------------------------------------------------------------------

    async def _listen_for_ever(self) -> None:
        attempt = 0
        while True:
            try:
                async with aclosing(self._client.turns()) as notices:
                    subscribed = False
                    async for notice in notices:
                        self._patience.heard()
                        attempt = 0
                        if not subscribed and self._installed:
                            self._transfers.resend_open()
                        subscribed = True
                        self._on_notice(notice)
            except SynchronizerUnavailable:
                await self._patience.pause(attempt)
                attempt += 1
            except WireError as error:
                self._patience.refused(error)

    def _on_notice(self, notice: pb.Notice) -> None:
        match notice.WhichOneof("kind"):
            case "phase":
                self._on_phase(notice.phase)
            case "turn" if self._installed:
                self._on_turn(notice.turn)
            case "turn":
                self._early_turns[notice.turn.fragment] = notice.turn
            case "settlement" if self._installed:
                self._transfers.settled(notice.settlement)

    def _on_turn(self, turn: pb.Turn) -> None:
        if turn.number > self._turns_seen[turn.fragment]:
            self._turns_seen[turn.fragment] = turn.number
            self._turns_since_adoption[turn.fragment] += 1
            self._account.stale_by(max(self._turns_since_adoption))
        needs_stage = self._transfers.asked(turn.number, turn.fragment)
        self._tell(TurnSeen(turn.number, turn.fragment, turn.interval_seconds, needs_stage))

    def _on_phase(self, phase: int) -> None:
        if phase not in (pb.PHASE_UNSPECIFIED, pb.WAITING):
            self._started.set()
        if phase != self._phase:
            self._phase = phase
            self._tell(PhaseIs(phase))

    # --- the training thread --------------------------------------------------------------------------------------

    async def _read_mail(self) -> None:
        while True:
            message = await self.mail.get()
            match message:
                case Depart():
                    await self._depart(message)
                case Drained():
                    self._training = message
                    self._check_drained()
                case Installed() if self._installed and message.generation == self._transfers.uplink.generation:
                    self._begin_leasing()
                case FirstStep():
                    self._beat_now.set()
                case LeaseWanted():
                    self._leases.wanted()
                case Staged() if self._installed:
                    self._transfers.staged(message)
                case AdoptionDone() if self._installed:
                    self._turns_since_adoption[message.fragment] = 0
                    self._account.stale_by(max(self._turns_since_adoption))
                    self._transfers.adoption_done(message.fragment)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that ended a session: leaving counts most, joining again least."""
    flat: list[BaseException] = []
    for error in group.exceptions:
        flat.append(_first(error) if isinstance(error, BaseExceptionGroup) else error)
    ranks = (Departed, WireError, Exception, JoinAgain)
    return min(flat, key=lambda error: _rank(error, ranks))


def _rank(error: BaseException, ranks: tuple[type[BaseException], ...]) -> int:
    if isinstance(error, JoinAgain):
        return len(ranks)
    return next((place for place, kind in enumerate(ranks) if isinstance(error, kind)), 0)

"""Asking for work: a grant is asked for before the last one runs out, and at heartbeats to keep a good stock.

The Synchronizer decides how much. A request is repeated under its number until it is answered, so that no grant is
lost or given twice. Runs on the exchange thread's event loop.
"""

import asyncio
from collections.abc import Callable

from diloco_api.run_config import RunConfig
from diloco_api.tokens import Identity
from diloco_trainer.learner.account import Account
from diloco_trainer.learner.messages import Granted, ToTraining
from diloco_trainer.learner.patience import Patience
from diloco_trainer.learner.work import Range
from diloco_trainer.wire.errors import SynchronizerUnavailable, WireError
from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from diloco_trainer.wire.service import Synchronizer

_ASK_AGAIN_SECONDS = 0.05
_ASK_AGAIN_AT_MOST_SECONDS = 1.0


class Leases:
    """The lease of one incarnation."""

    def __init__(
        self,
        client: Synchronizer,
        run: RunConfig,
        identity: Identity,
        *,
        account: Account,
        patience: Patience,
        tell: Callable[[ToTraining], None],
        on_answer: Callable[[], None],
    ) -> None:
        self._client = client
        self._identity = identity
        self._batch = run.train.batch.sequences
        self._want = run.policy.max_steps_ahead * self._batch
        self._account = account
        self._patience = patience
        self._tell = tell
        self._on_answer = on_answer
        self._request_number = 0
        self.reset()

    def reset(self) -> None:
        """After a Join nothing is leased. Call it again when nothing leased before is being trained any more."""
        self._asking = asyncio.Event()
        self._under_way = False
        self._exhausted = False
        self._granted = 0
        self._taken_before = self._account.report().taken_sequences
        self.num_grants = 0
        """Grants with work since."""

    @property
    def under_way(self) -> bool:
        """A request is being answered: what comes of it is not known yet."""
        return self._under_way

    def wanted(self) -> None:
        """Work will run out soon."""
        self._asking.set()

    def available(self) -> None:
        """The pool has work for this Learner again."""
        self._exhausted = False

    def top_up(self) -> None:
        """A heartbeat: ask for more when half of what may be held is gone."""
        if 2 * self._remaining() < self._want:
            self._asking.set()

    async def run(self) -> None:
        """Ask whenever it is time to; ends with its session."""
        pause = _ASK_AGAIN_SECONDS
        while True:
            await self._asking.wait()
            self._asking.clear()
            if self._exhausted:
                continue
            self._under_way = True
            reply = await self._ask()
            self._under_way = False
            ranges = [Range(getattr(part, "pass"), part.start, part.stop) for part in reply.ranges]
            self._granted += sum(part.num_sequences for part in ranges)
            self._exhausted = reply.exhausted
            self.num_grants += bool(ranges)
            self._tell(Granted(ranges, reply.exhausted))
            self._on_answer()
            if ranges or reply.exhausted:
                pause = _ASK_AGAIN_SECONDS
                continue
            await asyncio.sleep(pause)
            if self._remaining() < self._batch:
                pause = min(2 * pause, _ASK_AGAIN_AT_MOST_SECONDS)
                self._asking.set()

    async def _ask(self) -> pb.LeaseReply:
        self._request_number += 1
        request = pb.LeaseRequest(
            index=self._identity.index,
            incarnation=self._identity.incarnation,
            remaining_sequences=self._remaining(),
            batch_sequences=self._batch,
            want_sequences=self._want,
            request_number=self._request_number,
            token_clock=self._account.report().token_clock,
        )
        attempt = 0
        while True:
            try:
                reply = await self._client.lease(request)
            except SynchronizerUnavailable:
                await self._patience.pause(attempt)
                attempt += 1
            except WireError as error:
                self._patience.refused(error)
            else:
                self._patience.heard()
                return reply

    def _remaining(self) -> int:
        """Leased and not yet taken for training; what is on its way to the training thread counts."""
        return self._granted - (self._account.report().taken_sequences - self._taken_before)

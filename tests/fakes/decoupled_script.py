"""Decoupled rounds whose every move is written down: late bodies, refused ones, fencing joins, goodbyes.

Round r merges fragment r mod 2. Learner 0 answers its turn and so closes it; what the others deliver is late and held
for the next round. Every move depends on r alone, and repeating those of a round before its merge changes nothing, so
a script can be taken up wherever the versions are: a dry run puts everybody where r rounds have left them.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

import torch
from torch import Tensor

from diloco_api.policy import Rounding
from diloco_api.run_config import RunConfig
from diloco_api.tokens import make_token
from diloco_trainer.algorithm.codec import make_codec
from diloco_trainer.synchronizer.assembly import EPOCH, Synchronizer
from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from diloco_trainer.wire.memory import MemorySynchronizer
from fakes.scripted_learner import Part, ScriptedLearner
from fakes.sync_jobs import KEY, UID, decoupled, run_config, toy_layout

PERIOD = 12
"""Rounds from one fencing, and one goodbye, to the next."""
STEP_SECONDS = 0.002


def decoupled_job() -> RunConfig:
    policy = decoupled({"grace": {"kind": "Fixed", "seconds": 0}, "guard": {"factor": 10.0, "min_samples": 4}})
    # What is held waits for Learner 0, however long it is away.
    patient = {"timeouts": {"answer_patience_seconds": 600.0}}
    return run_config(policy, budget_tokens=10_000_000, replicas=3, changes=patient)


@dataclass
class Script:
    """One run. `pause` lets a little time pass; `tell` takes down what a Learner was told, as a line of JSON."""

    synchronizer: Synchronizer
    orderly: bool
    """Nobody is fenced or leaves while a body of theirs is open, so that a kill loses nothing that would be merged."""
    pause: Callable[[], Awaitable[None]]
    tell: Callable[[str], None]
    run: RunConfig = field(default_factory=decoupled_job)
    cast: dict[int, ScriptedLearner] = field(default_factory=dict)
    """By index."""
    turns: dict[int, int] = field(default_factory=dict)
    """By fragment, the newest turn Learner 0 was told of and has not answered."""
    round: int = 0
    dry: bool = False

    async def play(self, rounds: int | None) -> None:
        """Go on from where the versions are, until so many rounds are over or for ever."""
        await self._take_up(sum(state.version for state in self.synchronizer.engine.fragments))
        if 0 not in self.cast:
            await self._enter(0, 1)
        listener = asyncio.ensure_future(self._listen())
        await self.cast[0].heartbeat(step_seconds=STEP_SECONDS)
        try:
            while rounds is None or self.round < rounds:
                await self._play_round()
        finally:
            listener.cancel()

    async def _take_up(self, rounds: int) -> None:
        """Put everybody where so many rounds have left them; they send again what was open."""
        self.dry = True
        while self.round < rounds:
            await self._play_round()
        self.dry = False
        control = self.synchronizer.engine.control
        for learner in self.cast.values():
            who = (learner.index, learner.incarnation)
            known = control.enrolled[who]
            if known.gone or known.departing or control.newest[learner.index] > learner.incarnation:
                for part in learner.parts:  # it has ended: nobody sends these again
                    part.open = None
                continue
            await learner.join()
            for fragment, part in enumerate(learner.parts):
                if part.open is not None:
                    assert (await learner.resend(fragment)).outcome == pb.HELD

    async def _listen(self) -> None:
        async with aclosing(self.cast[0].wire.turns()) as notices:
            async for notice in notices:
                if notice.HasField("turn"):
                    self.turns[notice.turn.fragment] = notice.turn.number

    async def _play_round(self) -> None:
        place, fragment, period = self.round % PERIOD, self.round % 2, self.round // PERIOD
        if self.round == 0 and self.dry:
            await self._enter(0, 1)
        if place in (1, 2):
            await self._enter(place, 1 + period)
        if place in (5, 8):
            await self._send_sick(fragment, self._outlier(fragment) if period % 2 else None)
        if place == (9 if self.orderly else 8) and 2 in self.cast:
            await self._leave(self.cast.pop(2))
        await self._merge(fragment)
        self.round += 1
        for learner in self.cast.values():
            if self._is_late(learner.index, place):
                await self._send_late(learner, 1 - fragment)

    def _is_late(self, index: int, place: int) -> bool:
        """Not for every round, so that bases fall behind; not for one before which it ends, if orderly."""
        if index == 1:
            return place in (2, 3, 6, 9) or (place == 0 and not self.orderly)
        return index == 2 and place in (3, 6, 7)

    async def _enter(self, index: int, incarnation: int) -> None:
        """Join, fencing the one before, and lease enough for a life."""
        token = make_token(KEY, UID, index, incarnation)
        wire = MemorySynchronizer(self.synchronizer.backend, key=KEY, job_uid=UID, token=token)
        learner = ScriptedLearner(self.run, toy_layout(self.run), wire, index, incarnation, epoch=EPOCH)
        self.cast[index] = learner
        learner.parts = [Part(torch.empty(0), self._version(fragment)) for fragment in range(2)]
        if not self.dry:
            await learner.join()
            await learner.lease(want=100_000 if index == 0 else 200)
            self._told(learner, joined=True)

    async def _leave(self, learner: ScriptedLearner) -> None:
        if not self.dry:
            await learner.wire.leave(pb.LeaveRequest(index=learner.index, incarnation=learner.incarnation))
            self._told(learner, left=True)

    async def _send_sick(self, fragment: int, delta: Tensor | None) -> None:
        """Learner 0 sends what the guard refuses: a body far too long, or one that is not finite (None)."""
        learner = self.cast[0]
        learner.train(1)
        if not self.dry:
            payload = self._encoded(delta) if delta is not None else b"\xff" * self._size(fragment)
            header = learner.header(fragment, 0, learner.parts[fragment].sequence + 1, payload)
            settled = await learner.send(header, payload)
            assert settled.reason == ("NonFinite" if delta is None else "NormOutlier"), settled
            self._tell_settled(learner, settled)
        self._adopt(learner, fragment, self._version(fragment))

    async def _merge(self, fragment: int) -> None:
        """Learner 0 answers the turn; with it everything held is merged."""
        learner, version = self.cast[0], self._version(fragment) + 1
        learner.train(2)
        if not self.dry:
            while fragment not in self.turns:
                await self.pause()
            await learner.contribute(fragment, self.turns.pop(fragment))
            while (settled := await learner.resend(fragment)).outcome == pb.RECEIVED:
                await self.pause()
            assert (settled.outcome, settled.version) == (pb.MERGED, version), settled
            self._tell_settled(learner, settled)
        self._adopt(learner, fragment, version)
        for other in self.cast.values():
            if other.parts[fragment].open is None:
                continue
            if not self.dry:
                settled = await other.resend(fragment)
                assert (settled.outcome, settled.version) == (pb.MERGED, version), settled
                self._tell_settled(other, settled)
            self._adopt(other, fragment, version)

    async def _send_late(self, learner: ScriptedLearner, fragment: int) -> None:
        learner.train(2)
        part = learner.parts[fragment]
        payload = self._encoded(learner.delta(fragment, part.sequence + 1))
        part.open = (learner.header(fragment, 0, part.sequence + 1, payload), payload)
        if not self.dry:
            assert (await learner.resend(fragment)).outcome == pb.HELD

    def _adopt(self, learner: ScriptedLearner, fragment: int, version: int) -> None:
        part = learner.parts[fragment]
        part.sequence, part.open, part.version = part.sequence + 1, None, version
        part.adopted_clock, part.adopted_step = learner.clock, learner.step

    def _version(self, fragment: int) -> int:
        """Of a fragment after so many rounds."""
        return (self.round + 1 - fragment) // 2

    def _outlier(self, fragment: int) -> Tensor:
        learner = self.cast[0]
        return 1000 * learner.delta(fragment, learner.parts[fragment].sequence + 1)

    def _encoded(self, delta: Tensor) -> bytes:
        return bytes(make_codec(self.run.policy.encode_up).encode(delta, Rounding.NEAREST, None).numpy())

    def _size(self, fragment: int) -> int:
        return self.synchronizer.backend.expectation(fragment).size_bytes

    def _tell_settled(self, learner: ScriptedLearner, settled: pb.Settlement) -> None:
        outcome = "merged" if settled.outcome == pb.MERGED else settled.reason
        self._told(learner, settled=[settled.fragment, settled.sequence, settled.version, outcome])

    def _told(self, learner: ScriptedLearner, **what: object) -> None:
        self.tell(json.dumps({"who": [learner.index, learner.incarnation], **what}) + "\n")

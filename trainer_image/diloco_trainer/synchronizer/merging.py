"""Merges from decision to visibility: compute on the worker, record, sync, publish, settle.

A fragment's tensors belong to the worker from the start of its merge until its record is durable; whoever else wants
them (raw pulls, snapshots) waits for that. Other fragments and all other events go on meanwhile.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from diloco_trainer.algorithm.events import Merge, MergeDone
from diloco_trainer.synchronizer.core import Core
from diloco_trainer.synchronizer.frames import Buffer
from diloco_trainer.synchronizer.merge_exec import Body, Made, merge_bodies, smaller_payload, take_step
from diloco_trainer.synchronizer.records import Contributor, MergeRecord
from diloco_trainer.synchronizer.runner import Worker
from diloco_trainer.synchronizer.state import Version
from diloco_trainer.wire.gen import synchronizer_pb2 as pb


@dataclass(frozen=True, slots=True)
class _Computed:
    """What the worker hands back."""

    made: Made
    branch: str
    payload: Literal["bodies", "delta"]
    blobs: list[Buffer]
    seconds: float


class Merger:
    """Belongs to the engine thread."""

    def __init__(
        self, core: Core, worker: Worker, on_crash: Callable[[BaseException], None], replayed_seconds: float
    ) -> None:
        self._core = core
        self._worker = worker
        self._on_crash = on_crash
        self._waiting: deque[tuple[Merge, float]] = deque()
        self._merging: set[int] = set()
        self._lent: set[int] = set()
        self._when_idle: dict[int, list[Callable[[], None]]] = {}
        self.held_back = False
        """Merges wait: the log has outgrown its limit."""
        self.merge_seconds = replayed_seconds
        """Time of all merges in the log and since: what replaying them would take."""

    @property
    def idle(self) -> bool:
        """Whether no merge is waiting, running or being synced."""
        return not self._waiting and not self._merging

    def begin(self, effect: Merge) -> None:
        """Do a merge as soon as its fragment's tensors are free."""
        self._waiting.append((effect, self._core.now()))
        self.pump()

    def lend(self, fragment: int, action: Callable[[], None]) -> None:
        """Run `action` when the fragment's tensors are at rest; merges of it wait until `give_back`."""

        def take() -> None:
            self._lent.add(fragment)
            action()

        self.when_idle(fragment, take)

    def give_back(self, fragment: int) -> None:
        self._lent.discard(fragment)
        self.pump()

    def when_idle(self, fragment: int, action: Callable[[], None]) -> None:
        """Run `action` when the fragment's tensors are those of its visible version."""
        if fragment in self._merging:
            self._when_idle.setdefault(fragment, []).append(action)
        else:
            action()

    def pump(self) -> None:
        """Start the merges that can be started."""
        if self.held_back:
            return
        for item in list(self._waiting):
            effect, began_at = item
            if effect.fragment not in self._lent and effect.fragment not in self._merging:
                self._waiting.remove(item)
                self._start(effect, began_at)

    def _start(self, effect: Merge, began_at: float) -> None:
        core = self._core
        self._merging.add(effect.fragment)
        state = core.fragments[effect.fragment]
        bodies = [core.inbox.get(key) for key in effect.contributions]
        contributors = tuple(core.context.contributor(body) for body in bodies)
        version = Version(
            number=effect.version,
            digest="",
            stamp=core.control.ledger.trained / core.run.budget_tokens,
            tokens_per_second=core.tokens_per_second(),
            stage_step=max(body.stage_step for body in bodies),
            turn=effect.turn,
        )

        def work() -> _Computed:
            started_at = core.now()
            encoded = [body.data for body in bodies]
            delta, branch = merge_bodies(core.context, state, contributors, encoded)
            made = take_step(core.context, state, version, delta, contributors)
            payload, blobs = smaller_payload(encoded, delta)
            return _Computed(made, branch, payload, blobs, core.now() - started_at)

        def done(computed: _Computed) -> None:
            self._computed(effect, contributors, computed, began_at)

        self._worker.submit(work, done, self._on_crash)

    def _computed(
        self, effect: Merge, contributors: tuple[Contributor, ...], computed: _Computed, began_at: float
    ) -> None:
        core = self._core
        version = computed.made.retained.version
        self.merge_seconds += computed.seconds
        record = MergeRecord(
            fragment=effect.fragment,
            turn=effect.turn,
            version=effect.version,
            reason=effect.reason,
            contributors=contributors,
            branch=computed.branch,
            payload=computed.payload,
            theta_crc=computed.made.theta_crc,
            momentum_crc=computed.made.momentum_crc,
            digest=version.digest,
            stamp=version.stamp,
            tokens_per_second=version.tokens_per_second,
            stage_step=version.stage_step,
            seconds=computed.seconds,
            wall=core.clock.wall(),
        )
        core.journal.record(record, computed.blobs)
        core.journal.when_durable(lambda: self._publish(effect, computed.made, began_at))

    def _publish(self, effect: Merge, made: Made, began_at: float) -> None:
        """The record is on disk: from here on everyone may know."""
        core = self._core
        now = core.now()
        state = core.fragments[effect.fragment]
        base = state.version
        state.publish(made.retained, made.norms)
        self._merging.discard(effect.fragment)
        core.uptime.merged(now)
        core.measures.outer_step(now - began_at, len(effect.contributions))
        for key in effect.contributions:
            body = core.inbox.drop(key)
            assert body is not None, "bodies stay until they are settled"
            self._settled(body, effect.version, base)
        for action in self._when_idle.pop(effect.fragment, []):
            action()
        core.feed(MergeDone(effect.fragment, effect.version, merged=effect.contributions, seconds=now - began_at))
        self.pump()

    def _settled(self, body: Body, version: int, base: int) -> None:
        core, key = self._core, body.key
        who = (key.index, key.incarnation)
        core.measures.merged(core.control.enrolled[who].site, base - body.base_version)
        settlement = pb.Settlement(fragment=key.fragment, sequence=key.sequence, outcome=pb.MERGED, version=version)
        core.notices.tell(who, pb.Notice(settlement=settlement))

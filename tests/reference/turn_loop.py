"""Learners of different speeds and phases under turns, and the naive alternative, as a small event loop on fake time.

`under_turns` lets the product's pure `sync_round.step` decide (who is asked, when a round closes, who is late) and
takes all tensors from the plain writings in `decoupled`; `on_own_clocks` is what not to do: every Learner pushes each
fragment every H steps of its own, and the Synchronizer merges whatever came alone (K = 1).
"""

import heapq
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from diloco_trainer.algorithm import events, sync_round
from diloco_trainer.algorithm.round_state import RoundConfig, RoundState, initial_state
from reference.decoupled import Contribution, Learner, Rules, Synchronizer
from reference.inner import Inner


@dataclass
class Cadence:
    """When a Learner's step boundaries fall, in seconds."""

    step_seconds: float
    phase: float


@dataclass
class Timeline:
    """Things that will happen, in order of time; equal times in order of entry."""

    queue: list[tuple[float, int, Any]] = field(default_factory=list)
    number: Any = field(default_factory=itertools.count)

    def put(self, time: float, what: Any) -> None:
        heapq.heappush(self.queue, (time, next(self.number), what))


class UnderTurns:
    """One run; `latency` draws the seconds a message needs."""

    def __init__(
        self,
        inners: Sequence[Inner],
        rules: Rules,
        config: RoundConfig,
        cadences: Sequence[Cadence],
        latency: random.Random,
    ) -> None:
        fragments = range(len(inners[0].shapes))
        start = [inners[0].read(f) for f in fragments]
        self.synchronizer = Synchronizer(start, inners[0].shapes, rules)
        self.learners = [Learner(inner, rules, list(start), [0 for _ in fragments]) for inner in inners]
        self.state: RoundState = initial_state(config, 0.0)
        self.cadences, self.random, self.timeline = cadences, latency, Timeline()
        self.bodies: dict[events.Key, Contribution] = {}
        self.sequences = [[0 for _ in fragments] for _ in inners]
        self.arrived: list[list[int]] = [[] for _ in inners]  # per Learner: fragments to adopt at its next boundary
        self.merges: list[int] = []  # contributors of every merge
        self.held = 0
        self.tick = 0

    def run(self, until: float) -> Synchronizer:
        for m, cadence in enumerate(self.cadences):
            self.tell(events.Joined(m, 1), 0.0)
            self.timeline.put(cadence.phase + cadence.step_seconds, ("boundary", m))
        while self.timeline.queue:
            now, _, (kind, what) = heapq.heappop(self.timeline.queue)
            if now > until:
                break
            if kind == "boundary":
                self.boundary(what, now)
            elif kind == "tick" and what == self.tick:  # not one put off meanwhile
                self.tell(events.Tick(), now)
            elif kind == "event":
                self.tell(what, now)
            elif kind == "turn":
                self.answer(*what, now)
            elif kind == "arrival":
                self.arrived[what[0]].append(what[1])
        return self.synchronizer

    def boundary(self, m: int, now: float) -> None:
        """One inner step ends; what has arrived meanwhile is adopted."""
        learner, cadence = self.learners[m], self.cadences[m]
        learner.step()
        for f in self.arrived[m]:
            newest = self.synchronizer.newest(f)
            learner.adopt(f, newest.version, newest.published, learner.settle(f, "merged").stage)
        self.arrived[m] = []
        self.tell(events.Heard(m, 1, cadence.step_seconds, drained=False), now)
        self.timeline.put(now + cadence.step_seconds, ("boundary", m))

    def answer(self, m: int, turn: int, f: int, now: float) -> None:
        """Asked in mid-step: the answer is the fragment as it was at the last boundary."""
        learner = self.learners[m]
        if f in learner.open:
            return
        event: events.Event = events.AnsweredNothing(m, 1, f, turn)
        if learner.c_steps[f] > 0:
            self.sequences[m][f] += 1
            key = events.Key(m, 1, f, self.sequences[m][f])
            self.bodies[key] = contribution = learner.contribute(learner.stage(f))
            event = events.Contributed(key, turn, contribution.base)
        self.timeline.put(now + self.delay(m), ("event", event))

    def delay(self, m: int) -> float:
        return self.random.uniform(0.0, 0.5) * self.cadences[m].step_seconds

    def tell(self, event: events.Event, now: float) -> None:
        self.state, effects = sync_round.step(self.state, event, now)
        for effect in effects:
            if isinstance(effect, events.Announce):
                for m in range(len(self.learners)):
                    self.timeline.put(now, ("turn", (m, effect.turn, effect.fragment)))
            elif isinstance(effect, events.Merge):
                self.merge(effect, now)
            elif isinstance(effect, events.Hold):
                self.held += 1
            assert not isinstance(effect, events.Refuse | events.MarkDead), effect
        deadline = sync_round.next_deadline(self.state, now)
        self.tick += 1
        if deadline is not None:
            self.timeline.put(now + deadline + 1e-9, ("tick", self.tick))

    def merge(self, effect: events.Merge, now: float) -> None:
        self.synchronizer.merge(effect.fragment, [self.bodies.pop(key) for key in effect.contributions])
        self.merges.append(len(effect.contributions))
        done = events.MergeDone(effect.fragment, effect.version, effect.contributions, 0.01)
        self.timeline.put(now + 0.01, ("event", done))
        for key in effect.contributions:
            self.timeline.put(now + self.delay(key.index), ("arrival", (key.index, effect.fragment)))


def on_own_clocks(
    inners: Sequence[Inner], rules: Rules, cadences: Sequence[Cadence], *, sync_every: int, until: float, rebase: bool
) -> Synchronizer:
    """Every Learner pushes fragment p when its own step count says so, is merged alone, and adopts a step later.

    `rebase`: measure its delta against the Synchronizer's present value instead of the one it started from.
    """
    fragments = range(len(inners[0].shapes))
    start = [inners[0].read(f) for f in fragments]
    synchronizer = Synchronizer(start, inners[0].shapes, rules)
    learners = [Learner(inner, rules, list(start), [0 for _ in fragments]) for inner in inners]
    timeline = Timeline()
    for m, cadence in enumerate(cadences):
        timeline.put(cadence.phase + cadence.step_seconds, m)
    while timeline.queue[0][0] <= until:
        now, _, m = heapq.heappop(timeline.queue)
        learner = learners[m]
        learner.step()
        for f in list(learner.open):
            newest = synchronizer.newest(f)
            learner.adopt(f, newest.version, newest.published, learner.settle(f, "merged").stage)
        for f in fragments:
            if (learner.step_count - f * sync_every // len(fragments)) % sync_every == 0 and learner.c_steps[f] > 0:
                contribution = learner.contribute(learner.stage(f))
                base = contribution.base if rebase else synchronizer.newest(f).version
                synchronizer.merge(f, [contribution._replace(base=base)])
        timeline.put(now + cadences[m].step_seconds, m)
    return synchronizer

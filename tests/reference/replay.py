"""Replays the tape of a free Decoupled run: the log says what was merged, the Learners' tapes what they did.

The tape holds decisions only (rates, data, when a fragment was staged, sent and adopted, which contributions a merge
took); every number is computed anew by `decoupled`. What the tape records besides is checked on the way: c_tokens,
c_steps and sha256 of each body, losses, how versions were adopted. No clock, no messages: an event happens as soon as
what it needs (a version, a contribution) is there.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from reference.decoupled import Contribution, Learner, Rules, Stage, Synchronizer
from reference.inner import Inner

Key = tuple[int, int, int, int]
"""(index, incarnation, fragment, sequence) of a contribution."""
Event = dict[str, Any]
GUARD_REASONS = ("NonFinite", "NormOutlier")


class Merge(NamedTuple):
    """One outer step as logged."""

    fragment: int
    version: int
    contributions: list[Key]


class Incarnation:
    """One Learner process, event by event."""

    def __init__(
        self,
        tape: Sequence[Event],
        make_inner: Callable[[Iterable[tuple[float, Any]]], Inner],
        rules: Rules,
        synchronizer: Synchronizer,
        ready: dict[Key, Contribution],
    ) -> None:
        (self.join,) = [event for event in tape if event["kind"] == "join"]
        self.events = [event for event in tape if event["kind"] in ("step", "adoption")]
        self.outcomes = {(e["fragment"], e["sequence"]): e for e in tape if e["kind"] == "settlement"}
        fragments = range(len(synchronizer.shapes))
        sent = [event for event in tape if event["kind"] == "contribution"]
        self.sent = [[event for event in sent if event["fragment"] == f] for f in fragments]
        self.under_way = [0 for _ in fragments]  # sequence of the newest contribution
        self.work = [(e["lr"], e["ranges"]) for e in self.events if e["kind"] == "step"]
        self.make_inner, self.rules, self.synchronizer, self.ready = make_inner, rules, synchronizer, ready
        self.learner: Learner | None = None
        self.done = 0

    def go_on(self) -> bool:
        """Do the next event if it can happen yet."""
        if self.learner is None:
            return self._begin()
        if self.done == len(self.events):
            return False
        event, learner = self.events[self.done], self.learner
        if event["kind"] == "step":
            learner.step()
            assert learner.step_count == event["step"]
            assert learner.inner.losses[-1] == event["loss"]  # type: ignore[attr-defined]
        elif not self._adopt(event, learner):
            return False
        self.done += 1
        self._contribute(learner)
        return True

    def _begin(self) -> bool:
        versions = self.join["versions"]
        if any(self._published(f, version) is None for f, version in enumerate(versions)):
            return False
        anchors = [self.synchronizer.versions[f][version].published for f, version in enumerate(versions)]
        self.learner = Learner(self.make_inner(iter(self.work)), self.rules, anchors, list(versions))
        self.learner.step_count = self.join["step"]
        return True

    def _published(self, fragment: int, version: int) -> Tensor | None:
        versions = self.synchronizer.versions[fragment]
        return versions[version].published if version < len(versions) else None

    def _adopt(self, event: Event, learner: Learner) -> bool:
        f, published = event["fragment"], self._published(event["fragment"], event["version"])
        if published is None:
            return False
        if f in learner.open:
            stage = learner.settle(f, _outcome(self.outcomes[f, self.under_way[f]])).stage
        else:  # it caught up with versions it had no part in: not a step since its adoption, at the stage
            assert learner.c_steps[f] == learner.step_count - event["stage_step"]
            stage = Stage(f, learner.anchors[f], event["stage_step"], 0, 0)
        assert (learner.step_count, stage.step) == (event["step"], event["stage_step"])
        assert event["how"] == ("timely" if learner.step_count - stage.step <= self.rules.sync_delay else "late")
        learner.adopt(f, event["version"], published, stage)
        return True

    def _contribute(self, learner: Learner) -> None:
        """Stage and send what the tape says was staged at this boundary."""
        for f, events in enumerate(self.sent):
            following = next((event for event in events if event["sequence"] > self.under_way[f]), None)
            if following is None or f in learner.open or following["stage_step"] != learner.step_count:
                continue
            if following["base_version"] != learner.bases[f]:
                continue  # it caught up at this very boundary before: that adoption comes next
            contribution = learner.contribute(learner.stage(f))
            assert contribution.stage.c_tokens == following["c_tokens"]
            assert contribution.stage.c_steps == following["c_steps"]
            assert hashlib.sha256(contribution.body).hexdigest() == following["checksum"], "other bytes on the wire"
            self.under_way[f] = following["sequence"]
            self.ready[self.join["index"], self.join["incarnation"], f, following["sequence"]] = contribution


def _outcome(settlement: Event) -> str:
    """A settlement of the tape as what `Learner.settle` calls it."""
    if settlement["outcome"] == "MERGED":
        return "merged"
    return "guard" if settlement["reason"] in GUARD_REASONS else "lost"


def replay(
    tapes: Sequence[Sequence[Event]],
    merges: Sequence[Merge],
    make_inner: Callable[[Iterable[tuple[float, Any]]], Inner],
    rules: Rules,
    start: Sequence[Tensor],
) -> tuple[Synchronizer, list[Incarnation]]:
    """All tapes against the log's merges in their order; every event must find its place."""
    synchronizer = Synchronizer(start, make_inner(iter(())).shapes, rules)
    ready: dict[Key, Contribution] = {}
    incarnations = [Incarnation(tape, make_inner, rules, synchronizer, ready) for tape in tapes]
    left = list(merges)
    moving = True
    while moving:
        moving = False
        for incarnation in incarnations:
            while incarnation.go_on():
                moving = True
        while left and all(key in ready for key in left[0].contributions):
            merge = left.pop(0)
            made = synchronizer.merge(merge.fragment, [ready.pop(key) for key in merge.contributions])
            assert made.version == merge.version
            moving = True
    assert not left, f"{len(left)} merges cannot be replayed, the first is {left[0]}"
    for incarnation in incarnations:
        assert incarnation.done == len(incarnation.events), f"stuck at {incarnation.events[incarnation.done]}"
    return synchronizer, incarnations

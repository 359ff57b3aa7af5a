"""Decides which signal goes to which process when, and notices when what was killed has been replaced.

Pure: time and what is seen of the run are arguments, signals are returned. A drill strikes only a Learner that trains
(or a Synchronizer that serves); until it does, it waits. One that never struck has no `struck_seconds`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal

from diloco_cli.drills import Drill, DrillKind

KILLS = (DrillKind.KILL_LEARNER, DrillKind.KILL_SYNCHRONIZER)
SLOW_PERIOD_SECONDS = 0.6
SLOW_SHARE = 1 / 3
"""Share of a period in which a slowed Learner runs."""

SignalName = Literal["SIGKILL", "SIGSTOP", "SIGCONT"]


@dataclass(frozen=True, slots=True)
class ProcessSeen:
    """One process of the job as the run sees it now."""

    pid: int
    incarnation: int
    working: bool
    """A Learner: this incarnation was heard and has taken a step. The Synchronizer: it answers."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a drill needs to know of the run."""

    started: bool
    """The first outer step of this run has been taken."""
    learners: Mapping[int, ProcessSeen]
    synchronizer: ProcessSeen | None


@dataclass(frozen=True, slots=True)
class Signal:
    """To be sent now."""

    pid: int
    name: SignalName
    why: str = ""
    """For people; empty for the many of a slow-down."""


class Stage(Enum):
    WAITING = "waiting"
    LASTING = "lasting"
    RECOVERING = "recovering"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class DrillState:
    """One drill on its way."""

    drill: Drill
    stage: Stage = Stage.WAITING
    victim: ProcessSeen | None = None
    struck_at: float = 0.0
    """Time of the strike on the run's clock."""
    stopped: bool = False
    struck_seconds: float | None = None
    """When it struck, from the first outer step."""
    replaced_after_seconds: float | None = None
    """From the strike until the victim's successor worked."""


@dataclass
class DrillPlan:
    """All drills of one run; `advance` is called often, `release` once at the end."""

    states: list[DrillState]
    _first_step_at: float | None = field(default=None)

    @classmethod
    def of(cls, drills: list[Drill]) -> "DrillPlan":
        return cls([DrillState(drill) for drill in drills])

    def advance(self, seen: Seen, now: float) -> list[Signal]:
        """Signals to send now; `now` is a monotonic clock in seconds."""
        if self._first_step_at is None and seen.started:
            self._first_step_at = now
        if self._first_step_at is None:
            return []
        signals: list[Signal] = []
        for number, state in enumerate(self.states):
            if state.stage is Stage.WAITING and not self._may_strike(state.drill, _target(state.drill, seen)):
                continue
            self.states[number], sent = _advance(state, seen, now, now - self._first_step_at)
            signals += sent
        return signals

    def _may_strike(self, drill: Drill, target: ProcessSeen | None) -> bool:
        """A process dies once, and is frozen or slowed by one drill at a time; later ones wait for their turn."""
        on_it = {
            state.stage
            for state in self.states
            if state.victim is not None and target is not None and state.victim.pid == target.pid
        }
        return Stage.RECOVERING not in on_it and (drill.kind in KILLS or Stage.LASTING not in on_it)

    def release(self, seen: Seen) -> list[Signal]:
        """Let everything run again that is still stopped."""
        return [
            Signal(state.victim.pid, "SIGCONT")
            for state in self.states
            if state.stopped and state.victim is not None and _still_there(state, seen)
        ]


def _advance(state: DrillState, seen: Seen, now: float, since_start: float) -> tuple[DrillState, list[Signal]]:
    if state.stage is Stage.WAITING:
        target = _target(state.drill, seen)
        if since_start < state.drill.at_seconds or target is None or not target.working:
            return state, []
        return _strike(replace(state, victim=target, struck_at=now, struck_seconds=since_start))
    if state.stage is Stage.LASTING:
        return _last(state, seen, now - state.struck_at)
    if state.stage is Stage.RECOVERING:
        return _recover(state, seen, now - state.struck_at), []
    return state, []


def _strike(state: DrillState) -> tuple[DrillState, list[Signal]]:
    drill, victim = state.drill, state.victim
    assert victim is not None
    who = "Synchronizer" if drill.target is None else f"Learner {drill.target}"
    if drill.kind in KILLS:
        why = f"drill: {who} killed (SIGKILL to process {victim.pid})"
        return replace(state, stage=Stage.RECOVERING), [Signal(victim.pid, "SIGKILL", why)]
    verb = "frozen" if drill.kind is DrillKind.FREEZE_LEARNER else "slowed to a third"
    why = f"drill: {who} {verb} for {drill.lasts_seconds:g} s"
    return replace(state, stage=Stage.LASTING, stopped=True), [Signal(victim.pid, "SIGSTOP", why)]


def _last(state: DrillState, seen: Seen, elapsed: float) -> tuple[DrillState, list[Signal]]:
    victim = state.victim
    assert victim is not None
    if not _still_there(state, seen):
        return replace(state, stage=Stage.RECOVERING, stopped=False), []
    if elapsed >= state.drill.lasts_seconds:
        why = f"drill: Learner {state.drill.target} runs freely again"
        return replace(state, stage=Stage.OVER, stopped=False), [Signal(victim.pid, "SIGCONT", why)]
    stop = state.drill.kind is DrillKind.FREEZE_LEARNER or _in_stopped_part(elapsed)
    if stop == state.stopped:
        return state, []
    return replace(state, stopped=stop), [Signal(victim.pid, "SIGSTOP" if stop else "SIGCONT")]


def _in_stopped_part(elapsed: float) -> bool:
    """A period begins with its stopped part, as the strike itself stops the process."""
    return elapsed % SLOW_PERIOD_SECONDS < SLOW_PERIOD_SECONDS * (1 - SLOW_SHARE)


def _recover(state: DrillState, seen: Seen, elapsed: float) -> DrillState:
    successor, victim = _target(state.drill, seen), state.victim
    assert victim is not None
    if successor is None or not successor.working or successor.pid == victim.pid:
        return state
    return replace(state, stage=Stage.OVER, replaced_after_seconds=elapsed)


def _still_there(state: DrillState, seen: Seen) -> bool:
    target = _target(state.drill, seen)
    return target is not None and state.victim is not None and target.pid == state.victim.pid


def _target(drill: Drill, seen: Seen) -> ProcessSeen | None:
    return seen.synchronizer if drill.target is None else seen.learners.get(drill.target)


def announcements(before: list[DrillState], after: list[DrillState]) -> Iterator[str]:
    """One line for each drill whose victim was found replaced between the two."""
    for old, new in zip(before, after, strict=True):
        if old.replaced_after_seconds is None and new.replaced_after_seconds is not None:
            who = "Synchronizer" if new.drill.target is None else f"Learner {new.drill.target}"
            yield f"drill: {who} replaced and at work {new.replaced_after_seconds:.1f} s after the strike"

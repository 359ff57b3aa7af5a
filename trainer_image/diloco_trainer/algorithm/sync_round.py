"""The decisions of the Synchronizer as one pure function: `step(state, event, now) -> (state, effects)`.

It knows who takes part, which rounds are open, who answered, when a round closes and when the job ends. It knows no
tensors, sockets, files or clocks; the engine executes the effects and reports back through events. Running an event
twice is harmless.

The engine's part: effects are executed in order, and what they cause at once (`PoolChanged` after `MarkGone` or
`Refuse`) is stepped before any event from outside, since the end of the job is judged from it. A Turns stream that has
just been opened is told `open_turns`. `RejectJoin` with `newest` equal to the asking incarnation means "not yet": its
earlier bodies are still settling.

Rounds follow DiLoCo (arXiv 2311.08105) and Streaming DiLoCo (2501.18512) where everyone is expected, and Decoupled
DiLoCo (2604.21428) where turns ask and a quorum answers.
"""

from collections.abc import Iterator
from dataclasses import replace

from diloco_trainer.algorithm import membership, quorum, turns
from diloco_trainer.algorithm.events import (
    Announce,
    AnsweredNothing,
    Contributed,
    DrainRequested,
    Effect,
    Event,
    GoneReason,
    Heard,
    Hold,
    Joined,
    Left,
    Listening,
    Merge,
    MergeDone,
    PoolChanged,
    RefusalReason,
    Refuse,
    Tick,
    Void,
)
from diloco_trainer.algorithm.round_state import MEMORY, Answer, FragmentRound, RoundState, Stage, published


def step(state: RoundState, event: Event, now: float) -> tuple[RoundState, tuple[Effect, ...]]:
    """The next state and what is to be done. `state` is left as it was; `now` never decreases."""
    state = state.copy()
    effects = [*_handle(state, event, now), *_let_time_pass(state, now)]
    return state, tuple(effects)


def next_deadline(state: RoundState, now: float) -> float | None:
    """Seconds until a `Tick` may change something by itself; None when only events can."""
    times = [state.next_turn_at] if state.next_turn_at is not None else []
    for member in state.members.values():
        if member.going is None:
            limit = state.config.dead_after if member.alive else state.config.stall_timeout
            times.append(member.last_heard + limit)
    for current in state.rounds:
        if _is_open(state, current):
            look_again_at = quorum.judge(state, current, now).look_again_at
            if look_again_at is not None:
                times.append(look_again_at)
    if state.stage == Stage.WAITING and state.config.synchronous:
        times.append(state.began_at + state.config.scheduling_timeout)
    reunion_ends = turns.reunion_ends(state)
    if reunion_ends is not None and reunion_ends > now:
        times.append(reunion_ends)
    return max(0.0, min(times) - now) if times else None


def open_turns(state: RoundState) -> tuple[Announce, ...]:
    """Turns still open: what a Learner whose stream has just been (re)opened must be told."""
    interval = state.interval_seconds() or 0.0
    return tuple(
        Announce(current.open_turn, fragment, current.closing, interval)
        for fragment, current in enumerate(state.rounds)
        if current.open_turn is not None and not current.merging
    )


def _handle(state: RoundState, event: Event, now: float) -> Iterator[Effect]:
    match event:
        case Joined():
            yield from membership.join(state, event, now)
        case Heard():
            yield from membership.hear(state, event, now)
        case Listening():
            membership.listen(state, event)
        case Left():
            membership.depart(state, (event.index, event.incarnation), GoneReason.LEFT)
        case Contributed():
            yield from _contributed(state, event, now)
        case AnsweredNothing():
            _answered_nothing(state, event)
        case MergeDone():
            _merge_done(state, event, now)
        case PoolChanged():
            state.has_work, state.exhausted_reason = event.has_work, event.exhausted_reason
        case DrainRequested():
            state.draining = True
        case Tick():
            pass


def _let_time_pass(state: RoundState, now: float) -> Iterator[Effect]:
    yield from membership.expire(state, now)
    yield from membership.start_if_due(state, now)
    yield from turns.take_turns(state, now)
    # Closing a round can end the job, and ending it opens rounds that may close at once.
    for _ in range(2):
        for fragment in range(state.config.num_fragments):
            yield from _close_if_due(state, fragment, now)
        yield from turns.end_if_due(state, now)
    yield from membership.release(state)


def _contributed(state: RoundState, event: Contributed, now: float) -> Iterator[Effect]:
    key, who = event.key, (event.key.index, event.key.incarnation)
    current = state.rounds[key.fragment]
    member = state.members.get(who)
    if any(answer.key == key for answer in current.answers):
        return
    if member is None or member.going is not None or current.closed_for_good:
        yield Refuse(key, RefusalReason.GONE)
        return
    yield from membership.hear(state, Heard(*who, member.step_seconds, member.drained), now)
    late = event.turn <= current.last_turn
    if late and state.config.synchronous and not current.merging and who not in current.last_expected:
        yield Refuse(key, RefusalReason.JOINING)
        return
    if late and state.config.drop_late:
        yield Refuse(key, RefusalReason.DROPPED)
        return
    state.rounds[key.fragment] = replace(
        current,
        answers=(*current.answers, Answer(key, event.turn, event.base_version, counted=not late)),
        nothings=current.nothings - {who},
        first_at=now if current.first_at is None and not late else current.first_at,
    )
    if late:
        yield Hold(key)


def _answered_nothing(state: RoundState, event: AnsweredNothing) -> None:
    who = (event.index, event.incarnation)
    current = state.rounds[event.fragment]
    asked = current.open_turn if current.open_turn is not None else current.version + 1
    if who in state.members and event.turn == asked and who not in current.answered:
        state.rounds[event.fragment] = replace(current, nothings=current.nothings | {who})


def _is_open(state: RoundState, current: FragmentRound) -> bool:
    """A synchronous round is always open but while it is merged; a Decoupled one from its turn on."""
    if current.merging or current.closed_for_good or state.stage not in (Stage.RUNNING, Stage.CLOSING):
        return False
    return current.open_turn is not None or state.config.synchronous


def _close_if_due(state: RoundState, fragment: int, now: float) -> Iterator[Effect]:
    current = state.rounds[fragment]
    if not _is_open(state, current):
        return
    if current.quorum_at is None and current.num_counted >= quorum.quorum_of(state):
        current = state.rounds[fragment] = replace(current, quorum_at=now)
    verdict = quorum.judge(state, current, now)
    if not verdict.close:
        return
    turn = current.open_turn if current.open_turn is not None else current.version + 1
    oldest = current.version - state.config.retained_versions
    stale = [answer for answer in current.answers if answer.base_version < oldest]
    usable = [answer for answer in current.answers if answer.base_version >= oldest]
    for answer in stale:
        yield Refuse(answer.key, RefusalReason.BASE_TOO_OLD)
    closed = replace(
        current,
        open_turn=None,
        closed_for_good=current.closing and not usable,
        last_expected=current.expected,
        nothings=frozenset(),
        quorum_at=None,
        answers=tuple(usable),
    )
    if not usable:
        state.rounds[fragment] = replace(closed, first_at=None)
        state.voids += 1
        yield Void(fragment, turn, verdict.reason)
        return
    state.rounds[fragment] = replace(closed, merging=True, last_turn=max(turn, current.last_turn))
    keys = tuple(sorted(answer.key for answer in usable))
    yield Merge(fragment, turn, current.version + 1, keys, verdict.reason)


def _merge_done(state: RoundState, event: MergeDone, now: float) -> None:
    current = state.rounds[event.fragment]
    if not current.merging or event.version != current.version + 1:
        return
    first_at = current.first_at
    merged = event.merged
    published(state, event.fragment, event.version, current.last_turn, merged, now)
    done = state.rounds[event.fragment]
    rounds = (*done.round_seconds, now - first_at) if first_at is not None else done.round_seconds
    state.rounds[event.fragment] = replace(
        done,
        first_at=None,
        quorum_at=None,
        closed_for_good=done.closing,
        round_seconds=rounds[-MEMORY:],
        merge_seconds=(*done.merge_seconds, event.seconds)[-MEMORY:],
    )

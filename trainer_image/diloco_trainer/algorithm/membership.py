"""Who takes part: admission, fencing, death and departure of Learners, as changes to a `RoundState`.

*Dead* is unheard for `dead_after`: out of quorum, medians and Expected, and welcome back. *Gone* is final for the
incarnation: it left, was fenced by a newer one, or stayed unheard for `stall_timeout`. Bodies it had delivered settle
first; only then is it reported gone, so that its frontier counts them.
"""

from collections.abc import Iterator
from dataclasses import replace

from diloco_trainer.algorithm.events import (
    Admit,
    Effect,
    GoneReason,
    Heard,
    Joined,
    Listening,
    MarkAlive,
    MarkDead,
    MarkGone,
    RejectJoin,
    Start,
)
from diloco_trainer.algorithm.round_state import (
    RoundState,
    Stage,
    Who,
    admit,
    expect_where_nobody_is,
    has_open_body,
    remove,
    start,
    unexpect,
)


def join(state: RoundState, event: Joined, now: float) -> Iterator[Effect]:
    """Admit an incarnation, fencing every older one of its index. A repeated Join changes nothing."""
    newest = state.newest.get(event.index, -1)
    if event.incarnation < newest:
        yield RejectJoin(event.index, event.incarnation, newest)
        return
    present = state.members.get((event.index, event.incarnation))
    if present is not None and present.going is None:
        yield from hear(state, Heard(event.index, event.incarnation, present.step_seconds, present.drained), now)
        return
    if present is not None:
        # It was about to be given up and has come back: what it had delivered settles under the old life first.
        yield RejectJoin(event.index, event.incarnation, newest)
        return
    for who in [who for who in state.members if who[0] == event.index]:
        depart(state, who, GoneReason.FENCED)
    admit(state, event.index, event.incarnation, now)
    yield Admit(event.index, event.incarnation)


def hear(state: RoundState, event: Heard, now: float) -> Iterator[Effect]:
    """A heartbeat (or any other sign of life) of an admitted incarnation."""
    member = state.members.get((event.index, event.incarnation))
    if member is None or member.going is not None:
        return
    if not member.alive:
        yield MarkAlive(member.index, member.incarnation)
    state.members[member.who] = replace(
        member, last_heard=now, alive=True, step_seconds=event.step_seconds, drained=event.drained
    )
    if not member.alive:
        expect_where_nobody_is(state, member.who)


def listen(state: RoundState, event: Listening) -> None:
    """An admitted incarnation can be asked for its answers."""
    member = state.members.get((event.index, event.incarnation))
    if member is not None:
        state.members[member.who] = replace(member, restored=False)


def depart(state: RoundState, who: Who, reason: GoneReason) -> None:
    """Nobody waits for this incarnation any longer; `release` reports it once its bodies have settled."""
    member = state.members.get(who)
    if member is not None and member.going is None:
        state.members[who] = replace(member, going=reason)
        unexpect(state, who)


def expire(state: RoundState, now: float) -> Iterator[Effect]:
    """Declare the unheard dead, and the long dead gone."""
    for member in list(state.members.values()):
        unheard = now - member.last_heard
        if member.live and unheard > state.config.dead_after:
            state.members[member.who] = replace(member, alive=False)
            unexpect(state, member.who)
            yield MarkDead(member.index, member.incarnation)
        elif member.going is None and unheard > state.config.stall_timeout:
            depart(state, member.who, GoneReason.UNHEARD)


def release(state: RoundState) -> Iterator[Effect]:
    """Report departed incarnations none of whose bodies is waiting or being merged."""
    for member in list(state.members.values()):
        if member.going is not None and not has_open_body(state, member.who):
            remove(state, member.who)
            yield MarkGone(member.index, member.incarnation, member.going)


def start_if_due(state: RoundState, now: float) -> Iterator[Effect]:
    """Hand out version 0: Decoupled to the first Learner, synchronous once `replicas` (later: `min`) are admitted."""
    if state.stage != Stage.WAITING:
        return
    num_live = len(state.live())
    if state.config.synchronous:
        late = now >= state.began_at + state.config.scheduling_timeout
        due = num_live >= state.config.replicas or (late and num_live >= state.config.min_learners)
    else:
        due = num_live > 0
    if due:
        start(state)
        yield Start()

"""When the Synchronizer asks: the turns of a Decoupled policy, and the closing rounds that end or drain a job."""

from collections.abc import Iterator
from dataclasses import replace

from diloco_trainer.algorithm.events import Announce, Effect, Finish, SkipTurn
from diloco_trainer.algorithm.round_state import FragmentRound, RoundState, Stage
from diloco_trainer.algorithm.schedule import count_turn, turn_fragment


def take_turns(state: RoundState, now: float) -> Iterator[Effect]:
    """Announce the turn that is due, or skip it when its fragment's round is still open (never both, never two)."""
    interval = state.interval_seconds()
    if state.stage != Stage.RUNNING or interval is None or not _reunited(state, now):
        state.next_turn_at = None
        return
    if state.next_turn_at is None:
        state.next_turn_at = now + interval
    if now < state.next_turn_at:
        return
    # A pause of the process must not be followed by a burst of turns.
    state.next_turn_at = max(state.next_turn_at + interval, now)
    turn, fragment = state.next_turn, turn_fragment(state.next_turn, state.config.num_fragments)
    state.next_turn += 1
    current = state.rounds[fragment]
    skipped = current.open_turn is not None or current.merging
    state.pace = count_turn(state.pace, skipped)
    if skipped:
        yield SkipTurn(turn, fragment, "merge running" if current.merging else f"turn {current.open_turn} is open")
        return
    state.rounds[fragment] = open_round(current, turn, now)
    yield Announce(turn, fragment, closing=False, interval_seconds=interval)


def reunion_ends(state: RoundState) -> float | None:
    """Until when turns wait, after a restart, for Learners that do not listen again yet; None: for nobody.

    Without it the first one back makes outer steps alone, and another finds itself versions behind a moment later, its
    stretch lost. Nothing stands still meanwhile but the turns.
    """
    missing = any(member.restored for member in state.live())
    return state.began_at + state.config.reunion if missing else None


def _reunited(state: RoundState, now: float) -> bool:
    ends = reunion_ends(state)
    return ends is None or now >= ends


def open_round(current: FragmentRound, turn: int, now: float) -> FragmentRound:
    """A round is asked for; bodies kept from before are already answers to it."""
    return replace(
        current,
        open_turn=turn,
        opened_at=now,
        quorum_at=None,
        first_at=None,
        nothings=frozenset(),
    )


def end_if_due(state: RoundState, now: float) -> Iterator[Effect]:
    """Begin the closing rounds, go through them, and finish once every fragment had its own."""
    if state.stage == Stage.WAITING and state.draining:
        # Version 0 was never handed out: nobody has anything to close with.
        state.rounds = [replace(current, closed_for_good=True) for current in state.rounds]
        state.stage = Stage.CLOSING
    if state.stage == Stage.RUNNING and _all_drained(state):
        if not state.draining and any(member.going is not None for member in state.members.values()):
            yield from _settle_departed(state, now)
            return
        state.stage = Stage.CLOSING
    if state.stage != Stage.CLOSING:
        return
    for fragment, current in enumerate(state.rounds):
        if not (current.closing or current.closed_for_good or current.merging or current.open_turn is not None):
            yield _announce_closing(state, fragment, now)
    if all(current.closed_for_good for current in state.rounds):
        state.stage = Stage.FINISHED
        yield Finish(None if state.draining else state.exhausted_reason)


def _settle_departed(state: RoundState, now: float) -> Iterator[Effect]:
    """Bodies left behind hold up the end: only once they are merged it is known which work has to be done again.

    With everyone drained no step time makes turns, so their fragments' rounds are opened here.
    """
    for fragment, current in enumerate(state.rounds):
        if current.answers and current.open_turn is None and not current.merging and not state.config.synchronous:
            turn = state.next_turn
            state.next_turn += 1
            state.rounds[fragment] = open_round(current, turn, now)
            yield Announce(turn, fragment, closing=False, interval_seconds=0.0)


def _announce_closing(state: RoundState, fragment: int, now: float) -> Announce:
    current = state.rounds[fragment]
    turn = current.version + 1 if state.config.synchronous else state.next_turn
    state.next_turn = max(state.next_turn, turn) + 1
    state.rounds[fragment] = replace(open_round(current, turn, now), closing=True, expected=state.live_whos())
    return Announce(turn, fragment, closing=True, interval_seconds=0.0)


def _all_drained(state: RoundState) -> bool:
    """No live Learner is still training, and no dead one may hold work that has to be leased again first."""
    staying = [member for member in state.members.values() if member.going is None]
    if state.draining:
        return all(member.drained for member in staying if member.alive)
    return not state.has_work and all(member.drained for member in staying)

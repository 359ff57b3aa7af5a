"""When fragments are exchanged: the step schedule of synchronous policies and the turns of Decoupled ones.

Pure and torch-free. Streaming DiLoCo (arXiv 2501.18512, algorithm 2) sends fragment p when (t - t_p) mod H = 0 with
offsets spread evenly over H; here t_p = floor(p * H / P), and nothing is sent at t = 0.
"""

from dataclasses import dataclass, replace

SKIP_WINDOW_TURNS = 100
SKIPPED_SHARE_LIMIT = 0.05
PACE_STEP = 1.25
MAX_PACE_FACTOR = 8.0
CALM_TURNS = 20
"""Turns in a row without a skipped one after which the pace shortens again by a step."""


def offset(fragment: int, sync_every: int, num_fragments: int) -> int:
    """t_p, the offset of a fragment within H inner steps."""
    return fragment * sync_every // num_fragments


def due_fragments(step: int, sync_every: int, num_fragments: int) -> tuple[int, ...]:
    """Fragments that a synchronous Learner stages after its inner step number `step` (the first step is 1)."""
    if step <= 0:
        return ()
    return tuple(p for p in range(num_fragments) if (step - offset(p, sync_every, num_fragments)) % sync_every == 0)


def turn_fragment(turn: int, num_fragments: int) -> int:
    """Fragment a turn asks for (turns count from 1)."""
    return turn % num_fragments


def likely_fragments(
    next_turn: int, num_fragments: int, step_seconds: float, interval_seconds: float
) -> tuple[int, ...]:
    """Fragments that may be asked for before the Learner's next boundary: what it stages at this one.

    One more turn than fits into a step, since a turn may fall at the very end of it; never more than all fragments.
    """
    if interval_seconds <= 0:
        return (turn_fragment(next_turn, num_fragments),)
    num_turns = min(num_fragments, int(step_seconds / interval_seconds) + 2)
    return tuple(turn_fragment(next_turn + ahead, num_fragments) for ahead in range(num_turns))


@dataclass(frozen=True, slots=True)
class Pace:
    """Pace of turns and the memory it needs: skipped turns lengthen it, a window without any shortens it again."""

    factor: float = 1.0
    announced: int = 0
    skipped: int = 0
    window_turns: int = 0
    window_skipped: int = 0
    calm_turns: int = 0

    @property
    def lengthened(self) -> bool:
        """Whether turns come less often than H / P asks for."""
        return self.factor > 1.0


def count_turn(pace: Pace, skipped: bool) -> Pace:
    """Count a turn; more than 5 % skipped ones in 100 turns lengthen the pace by a quarter, 20 calm ones undo that."""
    pace = replace(
        pace,
        announced=pace.announced + (not skipped),
        skipped=pace.skipped + skipped,
        window_turns=pace.window_turns + 1,
        window_skipped=pace.window_skipped + skipped,
        calm_turns=0 if skipped else pace.calm_turns + 1,
    )
    if pace.window_skipped > SKIPPED_SHARE_LIMIT * SKIP_WINDOW_TURNS:
        return replace(pace, factor=min(MAX_PACE_FACTOR, pace.factor * PACE_STEP), window_turns=0, window_skipped=0)
    if pace.calm_turns >= CALM_TURNS:
        pace = replace(pace, factor=max(1.0, pace.factor / PACE_STEP), calm_turns=0)
    if pace.window_turns >= SKIP_WINDOW_TURNS:
        pace = replace(pace, window_turns=0, window_skipped=0)
    return pace


def turn_interval(sync_every: int, num_fragments: int, median_step_seconds: float, pace: Pace) -> float:
    """Seconds between two turns: H / P median step times, longer where turns had to be skipped."""
    return sync_every / num_fragments * median_step_seconds * pace.factor

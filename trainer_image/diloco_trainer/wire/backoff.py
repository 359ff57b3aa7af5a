"""How long to wait before the next attempt; pure."""

import random

_FIRST_SECONDS = 0.1
_LONGEST_SECONDS = 3.0


def backoff_seconds(attempt: int, rng: random.Random) -> float:
    """Wait after failed attempt number `attempt` (from 0): doubles from 0.1 s to 3 s, the upper half of it by chance.

    Chance keeps the Learners of a job from coming back in step; the cap finds a restarted Synchronizer within seconds.
    """
    longest = min(_LONGEST_SECONDS, _FIRST_SECONDS * 2.0 ** min(attempt, 16))
    return longest * (0.5 + 0.5 * rng.random())

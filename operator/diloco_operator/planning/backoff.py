"""How long a Learner that failed waits for its next incarnation (0, 10, 20, 40 ... s, at most 6 minutes).

One that was at work and was taken away by somebody else has not failed: the next one does not wait (`learners`).
The jitter comes from a hash of who waits, so that a repeated decision is the same one and several Learners that failed
together do not start together.
"""

from hashlib import sha256

from diloco_operator.planning.types import OperatorPolicy

JITTER = 0.2
"""At most this share is taken off a wait."""


def backoff_seconds(failures: int, who: str, policy: OperatorPolicy) -> float:
    """Wait after the `failures`-th failure in a row (from 1). The first replacement is immediate."""
    if failures <= 1:
        return 0.0
    full = min(policy.backoff_cap_seconds, policy.first_backoff_seconds * 2.0 ** min(failures - 2, 32))
    part = int.from_bytes(sha256(f"{who}/{failures}".encode()).digest()[:4], "big") / 2**32
    return full * (1 - JITTER * part)


def failures_in_a_row(before: int, ran_seconds: float, policy: OperatorPolicy) -> int:
    """The count after one more failure; a long healthy run begins it anew."""
    return 1 if ran_seconds >= policy.healthy_after_seconds else before + 1

import random

from hypothesis import given
from hypothesis import strategies as st

from diloco_trainer.wire.backoff import backoff_seconds


@given(attempt=st.integers(0, 10_000), seed=st.integers())
def test_waits_double_up_to_three_seconds_and_never_vanish(attempt: int, seed: int) -> None:
    longest = min(3.0, 0.1 * 2 ** min(attempt, 10))
    assert longest / 2 <= backoff_seconds(attempt, random.Random(seed)) <= longest


def test_two_learners_do_not_come_back_in_step() -> None:
    one, two = random.Random(1), random.Random(2)
    assert all(backoff_seconds(attempt, one) != backoff_seconds(attempt, two) for attempt in range(10))

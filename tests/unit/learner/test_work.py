"""Leased ranges to batches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diloco_trainer.learner.work import Range, Work

RANGES = st.lists(
    st.builds(lambda p, a, n: Range(p, a, a + n), st.integers(0, 2), st.integers(0, 99), st.integers(1, 9))
)


def positions(ranges: list[Range]) -> list[tuple[int, int]]:
    return [(part.pass_index, position) for part in ranges for position in range(part.start, part.stop)]


@given(RANGES, st.integers(1, 7))
def test_batches_take_everything_once_in_order_and_only_the_last_is_short(ranges: list[Range], size: int) -> None:
    work = Work()
    work.add(ranges)
    assert work.num_sequences == len(positions(ranges))
    batches = []
    while batch := work.take(size):
        batches.append(positions(batch))
    assert [place for batch in batches for place in batch] == positions(ranges)
    assert all(len(batch) == size for batch in batches[:-1])
    assert work.num_sequences == 0


def test_a_batch_may_span_passes() -> None:
    work = Work()
    work.add([Range(0, 8, 10), Range(1, 0, 5)])
    assert work.take(4) == [Range(0, 8, 10), Range(1, 0, 2)]
    assert work.num_sequences == 3


def test_a_void_lease_leaves_nothing() -> None:
    work = Work()
    work.add([Range(0, 0, 5)])
    work.clear()
    assert work.take(1) == []


def test_an_empty_range_is_an_error() -> None:
    with pytest.raises(ValueError, match="is empty"):
        Work().add([Range(0, 5, 5)])

"""Leased ranges of sequences, consumed into batches. Pure.

A range is (pass, start, stop): positions in the order of that pass. A batch takes from the front and may span ranges
and passes; the last one of all may be short.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Range:
    """Positions [start, stop) of the order of one pass."""

    pass_index: int
    start: int
    stop: int

    @property
    def num_sequences(self) -> int:
        return self.stop - self.start


class Work:
    """What is leased and not yet trained."""

    def __init__(self) -> None:
        self._ranges: deque[Range] = deque()
        self.num_sequences = 0
        self.full = 0
        """Sequences there were after the last grant."""

    def add(self, ranges: Iterable[Range]) -> None:
        """Append a grant."""
        for part in ranges:
            if part.num_sequences < 1:
                raise ValueError(f"{part} is empty")
            self._ranges.append(part)
            self.num_sequences += part.num_sequences
        self.full = self.num_sequences

    def take(self, num_sequences: int) -> list[Range]:
        """Up to `num_sequences` from the front, in order; fewer when there are no more."""
        taken: list[Range] = []
        missing = num_sequences
        while missing and self._ranges:
            first = self._ranges.popleft()
            cut = min(first.stop, first.start + missing)
            taken.append(Range(first.pass_index, first.start, cut))
            missing -= cut - first.start
            if cut < first.stop:
                self._ranges.appendleft(Range(first.pass_index, cut, first.stop))
        self.num_sequences -= num_sequences - missing
        return taken

    def clear(self) -> None:
        """The lease is void."""
        self._ranges.clear()
        self.num_sequences = self.full = 0

"""Stretches of the data as plain values. A span counts positions through all passes; a `WorkRange` is in one pass."""

from collections.abc import Iterable
from dataclasses import dataclass

Span = tuple[int, int]
"""Positions [start, stop), counted through all passes."""


@dataclass(frozen=True, slots=True)
class WorkRange:
    """Positions [start, stop) in the order of one pass."""

    pass_number: int
    start: int
    stop: int


def length(spans: Iterable[Span]) -> int:
    """Positions in some spans."""
    return sum(stop - start for start, stop in spans)


def cut(spans: Iterable[Span], count: int) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """The first `count` positions of some spans, and the rest; all of them when there are fewer."""
    head: list[Span] = []
    rest: list[Span] = []
    for start, stop in spans:
        middle = min(stop, start + count)
        count -= middle - start
        if start < middle:
            head.append((start, middle))
        if middle < stop:
            rest.append((middle, stop))
    return tuple(head), tuple(rest)


def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The same positions in the same order with neighbours made one."""
    result: list[Span] = []
    for start, stop in spans:
        if result and result[-1][1] == start:
            result[-1] = (result[-1][0], stop)
        elif start < stop:
            result.append((start, stop))
    return tuple(result)


def by_pass(spans: Iterable[Span], pass_length: int) -> tuple[WorkRange, ...]:
    """Spans as ranges that each lie in one pass."""
    ranges: list[WorkRange] = []
    for start, stop in spans:
        while start < stop:
            number = start // pass_length
            end = min(stop, (number + 1) * pass_length)
            ranges.append(WorkRange(number, start - number * pass_length, end - number * pass_length))
            start = end
    return tuple(ranges)

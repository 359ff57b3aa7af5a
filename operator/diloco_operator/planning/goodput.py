"""Goodput: training time, accepted work and uptime, as shares of what was wanted.

Where every second went is `accounting`'s; here the totals of all Learners and of the job are carried on in the status,
so that they survive restarts of operator, Synchronizer and Learners, and the shares are taken of them. What a killed
operator has not written is made up for by what Synchronizer and Learners have counted themselves.
accepted <= capacity <= 1 holds by construction: nothing is cut off. See docs/goodput.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from diloco_api.progress import LearnerProgress, LearnerState, Progress
from diloco_api.states import GoodputState
from diloco_api.status import GoodputStatus, HeardTimeStatus, LearnerStatus, LearnerTimeStatus
from diloco_operator.planning.accounting import Book, Look, Passed, account
from diloco_operator.planning.clock import to_seconds, to_text
from diloco_operator.planning.weights import CPU, Weight

_MAD_FACTOR = 3.0
LEAST_TRAINING_SECONDS = 5.0
"""A rate taken over less than this says little."""


@dataclass(frozen=True)
class Period:
    """From the last accounting to now."""

    now: float
    running: bool
    """The time since then was the job's."""
    excluded: bool
    """Else: it was stopped, or there was nobody to run it."""
    before: Mapping[int, LearnerStatus]
    """Rows as last committed."""
    after: Mapping[int, LearnerStatus]
    """Rows as this pass leaves them."""
    wanted: frozenset[int]
    """Indices that were wanted since then."""
    weights: Mapping[int, Weight]
    """Of these, and of all with a row."""
    heartbeat_seconds: float
    final: bool = False
    """The run is over with this pass."""


@dataclass(frozen=True)
class Totals:
    """What the shares are made of."""

    window: float
    uptime: float
    wanted: float
    training: float


def goodput_status(before: GoodputStatus, progress: Progress | None, step_tokens: int, period: Period) -> GoodputStatus:
    """The new totals and shares; `step_tokens`: tokens of one inner step of one Learner."""
    books = read_books(before, period.wanted)
    passed = _passed(before, progress, period)
    heard = _by_index(progress)
    new: dict[int, Book] = {}
    training, wanted = _seconds(before.training_seconds), _wanted_before(before, period)
    for index in sorted({*books, *period.wanted, *period.before, *period.after}):
        known = books.get(index, Book())
        look = Look(
            period.before.get(index), period.after.get(index), heard.get(index, ()), progress is not None,
            round(1000 * period.heartbeat_seconds), 0 if period.final else round(1000 * (period.now % 1.0)),
            period.final,
        )  # fmt: skip
        here = passed if index in period.wanted else Passed()
        new[index] = account(known, look, here)
        weight = period.weights.get(index, Weight(1, CPU)).devices
        wanted += weight * (here.seen_ms + here.unwritten_ms) / 1000
        training += weight * (new[index].of(GoodputState.TRAINING) - known.of(GoodputState.TRAINING)) / 1000
    totals = Totals(
        window=_seconds(before.window_seconds) + (passed.seen_ms + passed.unwritten_ms) / 1000,
        uptime=max(_seconds(before.uptime_seconds), progress.uptime_seconds if progress else 0.0),
        wanted=wanted,
        training=training,
    )
    return _written(before, new, totals, progress, step_tokens, period)


def _written(
    before: GoodputStatus,
    books: Mapping[int, Book],
    totals: Totals,
    progress: Progress | None,
    step_tokens: int,
    period: Period,
) -> GoodputStatus:
    counted = {
        "window_seconds": f"{totals.window:.3f}",
        "uptime_seconds": f"{totals.uptime:.3f}",
        "wanted_seconds": f"{totals.wanted:.3f}",
        "training_seconds": f"{totals.training:.3f}",
        "accounted_time": to_text(period.now),
        "learner_times": [
            LearnerTimeStatus(index=index, site=site, milliseconds=states)
            for index, book in books.items()
            for site, states in sorted(_by_site(book).items())
        ],
        "heard_times": [
            HeardTimeStatus(
                index=index,
                incarnation=book.incarnation,
                milliseconds=dict(sorted(book.counted.items())),
                open_milliseconds=book.open_ms,
            )
            for index, book in books.items()
            if book != Book()
        ],
    }
    if progress is None and not period.final:  # what Learners do now is told later
        return before.model_copy(update=counted)
    capacity = _share(totals.training, totals.wanted)
    shares = {"capacity": _text(capacity), "uptime": _text(_share(totals.uptime, totals.window))}
    if progress is not None and capacity is not None:
        possible = possible_tokens(progress, step_tokens, totals.training, period)
        shares["accepted"] = _text(_share(progress.tokens.merged * capacity, possible))
        if totals.training > 0:
            shares["ideal_tokens_per_second"] = f"{possible / totals.training:.6g}"
    return before.model_copy(update={**counted, **shares})


def possible_tokens(progress: Progress, step_tokens: int, training_seconds: float, period: Period) -> float:
    """What undisturbed Learners would have trained in the (weighted) time that was spent training.

    A Learner's rate is what it trained over the time it spent training, both as of its last heartbeat, per unit of
    weight. What was merged, or trained, was possible.
    """
    rates = [
        learner.step * step_tokens / _training(learner) / period.weights.get(learner.index, Weight(1, CPU)).devices
        for learner in progress.learners
        if _training(learner) >= LEAST_TRAINING_SECONDS
    ]
    trained = float(sum(learner.step for learner in progress.learners) * step_tokens)
    return max((ideal_rate(rates) or 0.0) * training_seconds, trained, progress.tokens.merged)


def ideal_rate(rates: list[float]) -> float | None:
    """Mean of the rates but those slower than the median by 3 MAD."""
    if not rates:
        return None
    middle = median(rates)
    spread = median(abs(rate - middle) for rate in rates)
    near = [rate for rate in rates if rate >= middle - _MAD_FACTOR * spread]
    return sum(near) / len(near)


def read_books(status: GoodputStatus, wanted: frozenset[int]) -> dict[int, Book]:
    """From the status. What an operator without books has counted is open: Learners tell what they did in it."""
    times: dict[int, dict[tuple[str, str], int]] = {row.index: {} for row in status.heard_times}
    for row in status.learner_times:
        for state, milliseconds in row.milliseconds.items():
            times.setdefault(row.index, {})[row.site, state] = milliseconds
    if not times:
        return {index: Book(open_ms=round(1000 * _seconds(status.window_seconds))) for index in sorted(wanted)}
    heard = {row.index: row for row in status.heard_times}
    books = {}
    for index, booked in sorted(times.items()):
        known = heard.get(index, HeardTimeStatus(index=index))
        books[index] = Book(booked, known.open_milliseconds, known.incarnation, known.milliseconds)
    return books


def _passed(before: GoodputStatus, progress: Progress | None, period: Period) -> Passed:
    """Whole seconds, as their end is written, but for the last ones. The window is at least as long as the job was
    served.
    """
    since = 0
    if before.accounted_time is not None:
        until = period.now if period.final else int(period.now)
        since = max(0, round(1000 * (until - to_seconds(before.accounted_time))))
    seen = since if period.running else 0
    served = max(progress.total_served_seconds, progress.uptime_seconds) if progress else 0.0
    unwritten = max(0, round(1000 * (served - _seconds(before.window_seconds))) - seen)
    return Passed(seen, unwritten, since if period.excluded else 0)


def _wanted_before(before: GoodputStatus, period: Period) -> float:
    """An operator without books knew no weights."""
    if before.learner_times or before.heard_times:
        return _seconds(before.wanted_seconds)
    return _seconds(before.window_seconds) * sum(period.weights[index].devices for index in period.wanted)


def _by_index(progress: Progress | None) -> dict[int, list[LearnerProgress]]:
    found: dict[int, list[LearnerProgress]] = {}
    for learner in progress.learners if progress else ():
        found.setdefault(learner.index, []).append(learner)
    return found


def _by_site(book: Book) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (site, state), milliseconds in sorted(book.booked.items()):
        found.setdefault(site, {})[state] = milliseconds
    return found


def _training(learner: LearnerProgress) -> float:
    return learner.state_seconds.get(LearnerState.TRAINING, 0.0)


def _seconds(text: str) -> float:
    return float(text or 0)


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _text(share: float | None) -> str:
    return "" if share is None else f"{share:.4f}"

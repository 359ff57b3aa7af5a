"""Where the tokens went: per incarnation and fragment, trained = merged + overlap + discarded + in flight.

The token clock of an incarnation counts the tokens it has trained and never goes back. Each fragment has a mark,
`covered`, up to which the clock is accounted for; settling a contribution staged at clock T of c tokens books the
stretch (covered, T - c] as overlap (trained between an earlier stage and the adoption that overwrote it), (T - c, T]
as merged or discarded, and moves the mark to T. What lies beyond the mark is in flight. Nothing here
knows tensors; job totals weight each fragment by its share of the parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from diloco_api.progress import TokenTotals


@dataclass
class FragmentTokens:
    """One fragment at one incarnation; all in tokens."""

    covered: int = 0
    merged: int = 0
    overlap: int = 0
    discarded: dict[str, int] = field(default_factory=dict)
    gap_reason: str | None = None
    """Why the stretch before the next contribution is lost: the incarnation had been given up. None: overlap."""
    recent: list[tuple[int, int]] = field(default_factory=list)
    """Merged stretches (start, stop] of the token clock that reach beyond the incarnation's frontier."""

    def discard(self, reason: str, tokens: int) -> None:
        if tokens:
            self.discarded[reason] = self.discarded.get(reason, 0) + tokens


@dataclass
class LearnerTokens:
    """One incarnation."""

    fragments: list[FragmentTokens]
    clock: int = 0
    gone: bool = False

    @property
    def frontier(self) -> int:
        """Token clock up to which every fragment is settled."""
        return min(fragment.covered for fragment in self.fragments)


class TokenLedger:
    """The books of one job. `fragment_numels`: elements of each fragment."""

    def __init__(self, fragment_numels: Sequence[int]) -> None:
        if not fragment_numels or sum(fragment_numels) <= 0:
            raise ValueError("a ledger needs fragments with parameters")
        self._numels = tuple(fragment_numels)
        self._learners: dict[tuple[int, int], LearnerTokens] = {}
        self._repeated = [0] * len(self._numels)

    def admitted(self, index: int, incarnation: int) -> None:
        """Open the books of an incarnation, or reopen them after it was given up. Repeating it changes nothing."""
        learner = self._learners.setdefault(
            (index, incarnation), LearnerTokens([FragmentTokens() for _ in self._numels])
        )
        if learner.gone:
            learner.gone = False
            for fragment in learner.fragments:
                fragment.gap_reason = "Gone"

    def heard(self, index: int, incarnation: int, clock: int) -> None:
        """The incarnation has trained `clock` tokens so far; an older reading is ignored, as is one of a gone one."""
        learner = self._learner(index, incarnation)
        if not learner.gone:
            learner.clock = max(learner.clock, clock)

    def merged(self, index: int, incarnation: int, fragment: int, clock_at_stage: int, c_tokens: int) -> None:
        """A contribution staged at that token clock, of the last `c_tokens` tokens, is in a version."""
        books = self._settle(index, incarnation, fragment, clock_at_stage, c_tokens)
        books.merged += c_tokens
        if c_tokens:
            books.recent.append((clock_at_stage - c_tokens, clock_at_stage))
        self._prune(self._learner(index, incarnation))

    def discarded(
        self,
        index: int,
        incarnation: int,
        fragment: int,
        clock_at_stage: int,
        c_tokens: int,
        reason: str,
        limit: int | None = None,
    ) -> int:
        """A contribution staged at that token clock was refused; its tokens are lost. Returns how many that makes.

        No clock is believed beyond `limit`: what is said to lie there is booked, as lost for the same reason, once a
        later contribution shows that it was trained.
        """
        clock = clock_at_stage if limit is None else min(clock_at_stage, limit)
        tokens = max(0, clock - (clock_at_stage - c_tokens))
        books = self._settle(index, incarnation, fragment, clock, tokens)
        books.discard(reason, tokens)
        if clock < clock_at_stage:
            books.gap_reason = reason
        self._prune(self._learner(index, incarnation))
        return tokens

    def gone(self, index: int, incarnation: int, reason: str, *, leased_again: bool = True) -> int:
        """Discard all in flight of an incarnation that was given up; its accepted bodies have settled before.

        Returns its frontier (token clock), from where its work is leased again; what fragments had merged beyond is
        counted as repeated, unless nobody will do it again. A second call changes nothing.
        """
        learner = self._learner(index, incarnation)
        frontier = learner.frontier
        if learner.gone:
            return frontier
        for place, books in enumerate(learner.fragments):
            if leased_again:
                self._repeated[place] += sum(stop - max(start, frontier) for start, stop in books.recent)
            books.discard(reason, learner.clock - books.covered)
            books.covered = learner.clock
            books.recent.clear()
        learner.gone = True
        return frontier

    def frontier(self, index: int, incarnation: int) -> int:
        """Least token clock, over fragments, at the stage of the last settled contribution."""
        return self._learner(index, incarnation).frontier

    def fragment_tokens(self, index: int, incarnation: int) -> tuple[FragmentTokens, ...]:
        """The books of one incarnation, fragment by fragment; to be read only."""
        return tuple(self._learner(index, incarnation).fragments)

    def clock(self, index: int, incarnation: int) -> int:
        """Tokens the incarnation has trained, as last heard."""
        return self._learner(index, incarnation).clock

    @property
    def trained(self) -> int:
        """Tokens trained by all incarnations ever admitted; cheap, unlike `totals`."""
        return sum(learner.clock for learner in self._learners.values())

    def totals(self) -> TokenTotals:
        """Totals of the job in tokens, fragments weighted by parameters."""
        whole = sum(self._numels)
        merged = overlap = in_flight = 0
        discarded: dict[str, int] = {}
        for learner in self._learners.values():
            for numel, books in zip(self._numels, learner.fragments, strict=True):
                merged += numel * books.merged
                overlap += numel * books.overlap
                in_flight += numel * (learner.clock - books.covered)
                for reason, tokens in books.discarded.items():
                    discarded[reason] = discarded.get(reason, 0) + numel * tokens
        repeated = sum(numel * tokens for numel, tokens in zip(self._numels, self._repeated, strict=True))
        return TokenTotals(
            trained=float(self.trained),
            merged=merged / whole,
            overlap=overlap / whole,
            discarded={reason: tokens / whole for reason, tokens in sorted(discarded.items())},
            in_flight=in_flight / whole,
            repeated=repeated / whole,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data for a snapshot; `from_json` gives the same ledger back."""
        return {
            "numels": list(self._numels),
            "repeated": list(self._repeated),
            "learners": [
                {
                    "index": index,
                    "incarnation": incarnation,
                    "clock": learner.clock,
                    "gone": learner.gone,
                    "fragments": [
                        {
                            "covered": books.covered,
                            "merged": books.merged,
                            "overlap": books.overlap,
                            "discarded": dict(books.discarded),
                            "gap_reason": books.gap_reason,
                            "recent": [list(stretch) for stretch in books.recent],
                        }
                        for books in learner.fragments
                    ],
                }
                for (index, incarnation), learner in self._learners.items()
            ],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "TokenLedger":
        ledger = cls(data["numels"])
        ledger._repeated = list(data["repeated"])
        for entry in data["learners"]:
            fragments = [
                FragmentTokens(
                    covered=books["covered"],
                    merged=books["merged"],
                    overlap=books["overlap"],
                    discarded=dict(books["discarded"]),
                    gap_reason=books["gap_reason"],
                    recent=[(start, stop) for start, stop in books["recent"]],
                )
                for books in entry["fragments"]
            ]
            ledger._learners[entry["index"], entry["incarnation"]] = LearnerTokens(
                fragments, entry["clock"], entry["gone"]
            )
        return ledger

    def _learner(self, index: int, incarnation: int) -> LearnerTokens:
        learner = self._learners.get((index, incarnation))
        if learner is None:
            raise ValueError(f"incarnation {incarnation} of Learner {index} was never admitted")
        return learner

    def _settle(self, index: int, incarnation: int, fragment: int, clock: int, c_tokens: int) -> FragmentTokens:
        """Book the gap before a contribution and move the mark; the caller books its tokens."""
        learner = self._learner(index, incarnation)
        if learner.gone:
            raise ValueError(f"incarnation {incarnation} of Learner {index} was given up; its books are closed")
        books = learner.fragments[fragment]
        gap = clock - c_tokens - books.covered
        if c_tokens < 0 or gap < 0:
            raise ValueError(
                f"Learner {index}, fragment {fragment}: {c_tokens} tokens at token clock {clock} reach back "
                f"before {books.covered}, which is settled"
            )
        if books.gap_reason is None:
            books.overlap += gap
        else:
            books.discard(books.gap_reason, gap)
            books.gap_reason = None
        books.covered = clock
        learner.clock = max(learner.clock, clock)
        return books

    def _prune(self, learner: LearnerTokens) -> None:
        frontier = learner.frontier
        for books in learner.fragments:
            books.recent = [stretch for stretch in books.recent if stretch[1] > frontier]

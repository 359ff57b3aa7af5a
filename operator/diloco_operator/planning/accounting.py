"""Where the time of one wanted Learner goes: every millisecond in exactly one `GoodputState`, or open.

Learners count their own seconds, the operator sees what they cannot: no pod, a gate, a death, a site out of reach.
While a Learner is at work its time stays open until its own count is heard; so what passes while operator or
Synchronizer are away is told afterwards by whoever was there. What is open is closed by the operator once it is known
that no count will come: its incarnation is over, its site is lost, or it is heard and its clock has stood still
meanwhile. A count that comes all the same finds no time left. Nothing booked is taken back. Pure; whole milliseconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from diloco_api.progress import LearnerProgress
from diloco_api.states import GoodputState, LearnerPhase
from diloco_api.status import LearnerStatus
from diloco_operator.planning.classify import FailureClass
from diloco_operator.planning.rows import ACTIVE, RESUMED, SITE_SILENT
from diloco_operator.planning.site_state import REFUSED
from diloco_operator.planning.waiting import GATED

Place = tuple[str, str]
"""(site, state)."""
SLACK_MS = 3000
"""Clocks of operator and Learner, and the whole seconds of the status, differ by less than this."""
MAX_SITES_PER_LEARNER = 4
"""In the status; the least of more than these is counted under no site's name."""
_QUOTA = "QuotaExceeded"
_AT_WORK = frozenset({LearnerPhase.STARTING, LearnerPhase.RUNNING, LearnerPhase.STALLED, LearnerPhase.UNKNOWN})
"""Rows whose Learner may be counting."""


@dataclass(frozen=True)
class Book:
    """What is known of the time of one Learner index."""

    booked: Mapping[Place, int] = field(default_factory=dict)
    open_ms: int = 0
    incarnation: int = 0
    """The newest that was heard."""
    counted: Mapping[str, int] = field(default_factory=dict)
    """What that one had counted by state when it was last heard."""

    @property
    def total_ms(self) -> int:
        return self.open_ms + sum(self.booked.values())

    def of(self, state: GoodputState) -> int:
        """Milliseconds booked to a state, over all sites."""
        return sum(value for (_, name), value in self.booked.items() if name == state.value)

    def book(self, place: Place, milliseconds: int, *, opened: bool = False) -> "Book":
        """Time to one state; `opened`: of what is open."""
        if milliseconds <= 0:
            return self
        booked = {**self.booked, place: self.booked.get(place, 0) + milliseconds}
        return replace(self, booked=booked, open_ms=self.open_ms - milliseconds if opened else self.open_ms)


@dataclass(frozen=True)
class Look:
    """What one pass knows of one Learner index."""

    before: LearnerStatus | None
    """Its row as last committed: what it was doing until now."""
    after: LearnerStatus | None
    """As this pass leaves it."""
    heard: Sequence[LearnerProgress]
    """Its incarnations, as the Synchronizer tells of them now."""
    answered: bool
    """The Synchronizer was heard in this pass."""
    heartbeat_ms: int
    fraction_ms: int = 0
    """By which now is beyond the whole second up to which time has passed."""
    final: bool = False
    """Nothing more will be heard: the run is over."""


@dataclass(frozen=True)
class Passed:
    """Milliseconds since the time of a Learner was accounted for last."""

    seen_ms: int = 0
    """Wanted, and the row of the status says what it was doing."""
    unwritten_ms: int = 0
    """Wanted before that, but lost with an operator that could not write it any more."""
    excluded_ms: int = 0
    """In which the job was stopped."""


def account(book: Book, look: Look, passed: Passed) -> Book:
    """The book after more time has passed. What was open before is for older incarnations to tell of, too."""
    row = look.before
    newest = 0 if row is None else row.incarnation + (row.state not in ACTIVE)
    book = book.book((_site(row), GoodputState.EXCLUDED.value), passed.excluded_ms)
    book = replace(book, open_ms=book.open_ms + passed.unwritten_ms)
    book = _with_counts(book, [each for each in look.heard if each.incarnation < newest])
    book = _closed_old(book, look)
    book = replace(book, open_ms=book.open_ms + passed.seen_ms)
    book = _with_counts(book, [each for each in look.heard if each.incarnation >= newest])
    return _few_sites(_closed(book, look))


def present_state(row: LearnerStatus | None, heard: LearnerProgress | None) -> GoodputState:
    """What a wanted Learner is doing now, for eyes; its seconds may be told later to have been something else."""
    if row is None or not _is_at_work(row):
        return waiting_state(row)
    if row.state == LearnerPhase.UNKNOWN:
        return GoodputState.SITE_UNREACHABLE
    if row.state == LearnerPhase.STALLED or (heard is not None and not heard.live):
        return GoodputState.STALLED
    return GoodputState(heard.state.value) if heard is not None else GoodputState.INIT


def waiting_state(row: LearnerStatus | None) -> GoodputState:
    """Of a wanted Learner that has no process at work."""
    if row is None:
        return GoodputState.PENDING
    if row.state == LearnerPhase.PENDING:
        return GoodputState.QUEUED if row.reason == GATED else GoodputState.PENDING
    if row.state == LearnerPhase.SUCCEEDED:
        return GoodputState.DRAIN
    if row.state == LearnerPhase.BACK_OFF and row.reason == _QUOTA:
        return GoodputState.QUEUED
    placed_nowhere = row.reason in REFUSED or row.reason == RESUMED
    if row.state == LearnerPhase.STOPPED or (row.state == LearnerPhase.BACK_OFF and placed_nowhere):
        return GoodputState.PENDING
    return GoodputState.LOST


def _is_at_work(row: LearnerStatus | None) -> bool:
    return row is not None and row.state in _AT_WORK


def _site(row: LearnerStatus | None) -> str:
    return row.site if row is not None else ""


# --- what Learners have counted ---------------------------------------------------------------------------------------


def _with_counts(book: Book, heard: Sequence[LearnerProgress]) -> Book:
    """Open time becomes what the Learners say they have spent it on."""
    told = sorted((each for each in heard if each.incarnation >= book.incarnation), key=lambda one: one.incarnation)
    claims: dict[Place, int] = {}
    for learner in told:
        known = book.counted if learner.incarnation == book.incarnation else {}
        for state, count in _milliseconds(learner).items():
            new = count - known.get(state, 0)
            if new > 0:
                claims[learner.site, state] = claims.get((learner.site, state), 0) + new
    if not claims:
        return book
    newest = told[-1]
    counted = _milliseconds(newest)
    if newest.incarnation == book.incarnation:  # totals of a Synchronizer that was restarted may be older
        counted = {
            state: max(counted.get(state, 0), book.counted.get(state, 0)) for state in {**counted, **book.counted}
        }
    total = sum(claims.values())
    taken = _cut(claims, book.open_ms)
    surplus = total - sum(taken.values())
    if 0 < surplus <= SLACK_MS:  # it is early, not wrong: to be booked with the next count
        state = max(counted, key=lambda name: counted[name])
        counted[state] -= min(surplus, counted[state])
    book = replace(book, incarnation=newest.incarnation, counted=counted)
    for place, milliseconds in taken.items():
        book = book.book(place, milliseconds, opened=True)
    return book


def _milliseconds(learner: LearnerProgress) -> dict[str, int]:
    return {state.value: round(1000 * seconds) for state, seconds in learner.state_seconds.items() if seconds > 0}


def _cut(claims: Mapping[Place, int], limit: int) -> dict[Place, int]:
    """No more than `limit` of all claims; training gives way first, then the largest."""
    surplus, found = sum(claims.values()) - limit, dict(claims)
    for place in sorted(claims, key=lambda place: (place[1] != GoodputState.TRAINING, -claims[place], place)):
        less = min(max(0, surplus), claims[place])
        found[place] -= less
        surplus -= less
    return found


# --- what the operator closes -----------------------------------------------------------------------------------------


def _closed_old(book: Book, look: Look) -> Book:
    """What is still open of incarnations before that of a row that has none at work."""
    if _is_at_work(look.before) or not (look.answered or look.final):
        return book
    return book.book((_site(look.before), GoodputState.LOST.value), book.open_ms, opened=True)


def _closed(book: Book, look: Look) -> Book:
    """Open time of which no count will come, to what the operator saw."""
    row, after = look.before, look.after
    known = next((each for each in look.heard if row is not None and each.incarnation == row.incarnation), None)
    if not _is_at_work(row):
        begun = row is not None and row.state == LearnerPhase.PENDING and _is_at_work(after)
        if begun and not look.answered and not look.final:
            return book
        young = _since_heartbeat(known, look) if begun else 0
        return book.book((_site(row), waiting_state(row).value), book.open_ms - young, opened=True)
    assert row is not None, "it is at work"
    if not (look.answered or look.final):
        return book
    left = after is None or after.incarnation != row.incarnation or after.state not in ACTIVE
    if left or look.final:
        return _ended(book, row, after, known, look)
    if row.state == LearnerPhase.UNKNOWN:
        return book.book((row.site, GoodputState.SITE_UNREACHABLE.value), book.open_ms, opened=True)
    if row.state == LearnerPhase.STALLED and row.reason == SITE_SILENT:
        return book.book((row.site, GoodputState.STALLED.value), book.open_ms, opened=True)
    if row.state == LearnerPhase.STARTING:
        young = _since_heartbeat(known, look)
        return book.book((row.site, GoodputState.INIT.value), book.open_ms - young, opened=True)
    if known is not None and not known.gone:  # what is open beyond its last word its clock did not see
        young = _since_heartbeat(known, look) + SLACK_MS
        return book.book((row.site, GoodputState.STALLED.value), book.open_ms - young, opened=True)
    return book


def _since_heartbeat(known: LearnerProgress | None, look: Look) -> int:
    """Time of which one that is heard will tell with its next word."""
    if known is None or known.gone:
        return 0
    return max(0, round(1000 * known.heartbeat_age_seconds) - look.fraction_ms)


def _ended(
    book: Book, row: LearnerStatus, after: LearnerStatus | None, known: LearnerProgress | None, look: Look
) -> Book:
    """Its incarnation is over. Until it was due to be heard again it did what it had last said."""
    if known is not None and row.state == LearnerPhase.RUNNING:
        unseen = book.open_ms - round(1000 * known.heartbeat_age_seconds) + look.fraction_ms - SLACK_MS
        book = book.book((row.site, GoodputState.STALLED.value), unseen, opened=True)
        over_well = after is not None and after.state in (LearnerPhase.STOPPED, LearnerPhase.SUCCEEDED)
        worked = book.open_ms
        if worked > look.heartbeat_ms + SLACK_MS and not over_well:
            worked = look.heartbeat_ms // 2
        book = book.book((row.site, known.state.value), worked, opened=True)
    return book.book((row.site, _cause(row, after).value), book.open_ms, opened=True)


def _cause(row: LearnerStatus, after: LearnerStatus | None) -> GoodputState:
    if row.state == LearnerPhase.STARTING:
        return GoodputState.INIT
    if row.state == LearnerPhase.UNKNOWN:
        return GoodputState.SITE_UNREACHABLE
    if after is not None and after.reason == FailureClass.STALLED.value:
        return GoodputState.STALLED
    return GoodputState.LOST


def _few_sites(book: Book) -> Book:
    """So that a status stays small: the site with least time is counted under no name."""
    sites: dict[str, int] = {}
    for (site, _), milliseconds in book.booked.items():
        sites[site] = sites.get(site, 0) + milliseconds
    if len(sites) <= MAX_SITES_PER_LEARNER:
        return book
    least = min((site for site in sites if site), key=lambda site: (sites[site], site))
    booked: dict[Place, int] = {}
    for (site, state), milliseconds in book.booked.items():
        place = ("" if site == least else site, state)
        booked[place] = booked.get(place, 0) + milliseconds
    return replace(book, booked=booked)

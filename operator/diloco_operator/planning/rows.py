"""Rows of `status.learnerStatuses`: what is asked of them, and the changes that more than one policy makes.

Nothing is decided here.
"""

from collections.abc import Sequence

from diloco_api.progress import LearnerProgress, Progress
from diloco_api.states import LearnerPhase
from diloco_api.status import LearnerStatus
from diloco_operator.planning.clock import to_seconds
from diloco_operator.planning.redact import redacted
from diloco_operator.planning.types import OperatorPolicy

ACTIVE = frozenset(
    {
        LearnerPhase.PENDING.value,
        LearnerPhase.STARTING.value,
        LearnerPhase.RUNNING.value,
        LearnerPhase.STALLED.value,
        LearnerPhase.UNKNOWN.value,
    }
)
"""Rows whose incarnation has, or shall have, a pod."""
RESUMED = "Resumed"
SITE_SILENT = "SiteSilent"
"""Reason of a Stalled row: no Learner of its site is heard, which is not its fault."""


def is_due(row: LearnerStatus, now: float) -> bool:
    """A waiting row whose wait is over."""
    waiting = row.state in (LearnerPhase.BACK_OFF.value, LearnerPhase.STOPPED.value)
    return waiting and (row.not_before is None or to_seconds(row.not_before) <= now)


def heard(row: LearnerStatus, progress: Progress | None) -> LearnerProgress | None:
    """What the Synchronizer knows of exactly this incarnation."""
    for learner in progress.learners if progress else ():
        if (learner.index, learner.incarnation) == (row.index, row.incarnation):
            return learner
    return None


def stopped_row(row: LearnerStatus, reason: str) -> LearnerStatus:
    """Ended by our own wish: nothing is counted."""
    if row.state in (LearnerPhase.SUCCEEDED.value, LearnerPhase.PARKED.value):
        return row
    update = {"state": LearnerPhase.STOPPED.value, "reason": reason, "message": "", "not_before": None}
    return row.model_copy(update=update)


def resumed_row(row: LearnerStatus) -> LearnerStatus:
    """After a start in which every process of before has ended: due at once, uncounted."""
    if row.state in (LearnerPhase.SUCCEEDED.value, LearnerPhase.PARKED.value):
        return row
    update = {"state": LearnerPhase.BACK_OFF.value, "reason": RESUMED, "message": "", "not_before": None, "failures": 0}
    return row.model_copy(update=update)


def waits_for_a_site(row: LearnerStatus, reason: str, message: str) -> LearnerStatus:
    """Due as soon as a site takes it; nothing it did is the cause, so nothing is counted."""
    update = {"state": LearnerPhase.BACK_OFF.value, "reason": reason[:63], "not_before": None, "reason_since": None}
    return row.model_copy(update={**update, "message": redacted(message)[:256]})


def silent_sites(rows: Sequence[LearnerStatus], progress: Progress | None, policy: OperatorPolicy) -> frozenset[str]:
    """Sites with a known Learner and no live one. On one machine the network is not to blame: none.

    A Learner that is gone without having been silent for long has left, or was fenced: no silence.
    """
    if policy.loopback or progress is None:
        return frozenset()
    known: dict[str, bool] = {}
    for row in rows:
        learner = heard(row, progress)
        if learner is None or (learner.gone and learner.heartbeat_age_seconds < policy.timeouts.stall_timeout_seconds):
            continue
        if row.state in ACTIVE:
            known[row.site] = known.get(row.site, False) or learner.live
    return frozenset(site for site, any_live in known.items() if not any_live)

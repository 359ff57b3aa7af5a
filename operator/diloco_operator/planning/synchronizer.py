"""How the Synchronizer is doing: the condition SynchronizerReady, and when the job cannot be helped.

Pending: not heard yet since this start. RestoringState: was heard, is away, is being restarted. A user's mistake (exit
codes 64 to 69) fails the job with the Synchronizer's own words; nothing else it does restarts or ends a Learner.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from diloco_api.exit_codes import ExitCode
from diloco_api.names import Role
from diloco_api.states import ConditionType, Reason
from diloco_api.status import JobStatus
from diloco_operator.planning.classify import USER_MISTAKES, error_line
from diloco_operator.planning.clock import to_seconds
from diloco_operator.planning.conditions import find
from diloco_operator.planning.redact import redacted
from diloco_operator.planning.starts import HEARD
from diloco_operator.planning.types import Ended, Observed, PodView
from diloco_operator.planning.waiting import IMAGE_WORDS

PATIENCE_SECONDS = 60.0
"""A Synchronizer that was heard before may be restarting this long before that is called a crash loop."""
MAX_FIRST_RESTARTS = 10
"""Restarts of a Synchronizer that was never heard, before the job fails."""


@dataclass(frozen=True)
class SynchronizerState:
    ready: bool
    reason: Reason
    message: str = ""
    fatal: Reason | None = None
    """Reason with which the job must fail."""


def synchronizer_state(status: JobStatus, observed: Observed, now: float, pending: str = "") -> SynchronizerState:
    """From what was heard of it and what its pod shows. `pending`: what Learners of other sites wait for."""
    if observed.progress is not None:
        return SynchronizerState(False, Reason.ADDRESS_PENDING, pending) if pending else _READY
    pod = _newest(pod for site in observed.sites for pod in site.pods if pod.role == Role.SYNCHRONIZER)
    ended = (pod.ended or pod.last_ended) if pod else None
    condition = find(status.conditions, ConditionType.SYNCHRONIZER_READY)
    was_ready = condition is not None and condition.reason in HEARD
    message = error_line(ended) if ended else ""
    if ended is not None:
        fatal = _fatal(ended, pod.restarts if pod else 0, was_ready)
        if fatal is not None:
            return SynchronizerState(False, Reason.CRASH_LOOP, message, fatal)
    looping = pod is not None and pod.waiting == "CrashLoopBackOff"
    if was_ready:
        away = now - to_seconds(condition.last_transition_time) if condition and condition.status == "False" else 0.0
        if not (looping and away > PATIENCE_SECONDS):
            return SynchronizerState(False, Reason.RESTORING_STATE, message)
        return SynchronizerState(False, Reason.CRASH_LOOP, message)
    if looping or (condition is not None and condition.reason == Reason.CRASH_LOOP and ended is not None):
        return SynchronizerState(False, Reason.CRASH_LOOP, message)
    return _not_there(pod, observed)


_READY = SynchronizerState(True, Reason.READY)


def _not_there(pod: PodView | None, observed: Observed) -> SynchronizerState:
    """It has not been heard since this start: what its pod waits for, or why there is none."""
    if pod is not None:
        if pod.waiting in IMAGE_WORDS:
            return SynchronizerState(False, Reason.IMAGE_PULL_FAILED, redacted(pod.waiting_message or pod.waiting))
        return SynchronizerState(False, Reason.PENDING, pod.unscheduled_message or pod.waiting_message)
    refused = [view.problem for (kind, _), view in observed.sites[0].objects.items() if kind == "Deployment"]
    refused += [
        f"{kind}: {refusal.reason}: {refusal.message}"
        for (kind, _), refusal in observed.sites[0].object_refusals.items()
        if kind in ("Deployment", "PersistentVolumeClaim", "Secret", "Service")
    ]
    problem = next((problem for problem in refused if problem), "")
    if "PodSecurity" in problem:
        return SynchronizerState(False, Reason.POD_SECURITY_DENIED, problem)
    if "exceeded quota" in problem or "QuotaExceeded" in problem:
        return SynchronizerState(False, Reason.QUOTA_EXCEEDED, problem)
    return SynchronizerState(False, Reason.PENDING, problem)


def _newest(pods: Iterable[PodView]) -> PodView | None:
    ranked = sorted(pods, key=lambda pod: (pod.live, -pod.age_seconds))
    return ranked[-1] if ranked else None


def _fatal(ended: Ended, restarts: int, was_ready: bool) -> Reason | None:
    if ended.exit_code == ExitCode.STATE_CORRUPT:
        return Reason.STATE_LOST
    if ended.exit_code == ExitCode.PORT_IN_USE and was_ready:
        return None  # its predecessor's port may take a moment to become free
    if ended.exit_code in USER_MISTAKES:
        return Reason.FATAL_EXIT_CODE
    if restarts > MAX_FIRST_RESTARTS and not was_ready:
        return Reason.RESTART_BUDGET_EXHAUSTED
    return None

"""Why a pod is not running yet, in our words, and for how long that is put up with.

The kubelet's words for one trouble alternate (ErrImagePull, ImagePullBackOff) and their texts count; ours stay as they
are until the trouble is another one, so that waiting writes nothing.
"""

from dataclasses import dataclass

from diloco_api.states import LearnerPhase, Reason
from diloco_api.status import MAX_MESSAGE, LearnerStatus
from diloco_api.timeouts import Timeouts
from diloco_operator.planning.clock import to_seconds, to_text
from diloco_operator.planning.redact import redacted
from diloco_operator.planning.types import PodView

UNSCHEDULABLE = "Unschedulable"
GATED = "SchedulingGated"
IMAGE = "ImagePullFailed"
CONFIG = "ConfigError"
CREATING = "ContainerCreating"
NOT_CREATED = "NotCreated"
"""The site answers, but not to the creation of the pod: a webhook of it is down, say."""
IMAGE_WORDS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
) | {"RegistryUnavailable", "SignatureValidationFailed"}
CONFIG_WORDS = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError", "PreStartHookError"}
)


@dataclass(frozen=True)
class Mark:
    """What is held against a site (or one of its node pools)."""

    site: str
    pool: str
    reason: Reason
    """Of its condition Eligible."""
    message: str


def waiting_row(row: LearnerStatus, pod: PodView, now: float) -> LearnerStatus:
    """The row of a pod that is not running yet."""
    return _waits(row, *_reason(pod), now)


def not_created(row: LearnerStatus, message: str, now: float) -> LearnerStatus:
    """The row of a pod whose creation the site does not answer, or answers by an error of its own."""
    return _waits(row, NOT_CREATED, message, now)


def _waits(row: LearnerStatus, reason: str, message: str, now: float) -> LearnerStatus:
    same = row.state == LearnerPhase.PENDING and row.reason == reason
    update = {
        "state": LearnerPhase.PENDING.value,
        "reason": reason[:63],
        "message": row.message if same else redacted(message)[:MAX_MESSAGE],
        "reason_since": (row.reason_since if same else to_text(now)) if reason in _TIMED else None,
    }
    return row.model_copy(update=update)


def overdue(row: LearnerStatus, timeouts: Timeouts, now: float) -> Mark | None:
    """What a row that has waited for too long is held against its site; None: it has not."""
    if row.state != LearnerPhase.PENDING or row.reason_since is None:
        return None
    patience = {
        UNSCHEDULABLE: timeouts.scheduling_timeout_seconds,
        IMAGE: timeouts.config_timeout_seconds,
        CONFIG: timeouts.config_timeout_seconds,
        CREATING: timeouts.stall_timeout_seconds,
        NOT_CREATED: timeouts.config_timeout_seconds,
    }[row.reason]
    if now - to_seconds(row.reason_since) < patience:
        return None
    where = f"pool {row.pool}: " if row.reason == UNSCHEDULABLE else ""
    return Mark(row.site, row.pool, _TIMED[row.reason], where + row.message)


_TIMED = {
    UNSCHEDULABLE: Reason.NO_FIT,
    IMAGE: Reason.IMAGE_PULL_FAILED,
    CONFIG: Reason.CONFIG_ERROR,
    CREATING: Reason.CONFIG_ERROR,
    NOT_CREATED: Reason.CONFIG_ERROR,
}
"""Reasons a row may wait for, but not for ever; the site's reason then. A gate is somebody's queue: no limit."""


def _reason(pod: PodView) -> tuple[str, str]:
    if pod.unscheduled in (UNSCHEDULABLE, GATED):
        return pod.unscheduled, pod.unscheduled_message
    if pod.waiting in IMAGE_WORDS:
        return IMAGE, pod.waiting_message or pod.waiting
    if pod.waiting in CONFIG_WORDS:
        return CONFIG, f"{pod.waiting}: {pod.waiting_message}"
    return pod.waiting or "PodPending", pod.waiting_message

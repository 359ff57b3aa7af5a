"""Closed sets of what may stand in a label `reason` or `phase`; everything else is `Other`.

So that no message, name or number of a cluster ever becomes a series.
"""

from diloco_api.states import Reason
from diloco_operator.planning.classify import DISRUPTIONS, PLACEMENTS, FailureClass
from diloco_operator.planning.rows import RESUMED, SITE_SILENT
from diloco_operator.planning.site_state import REFUSED
from diloco_operator.planning.types import PodView
from diloco_operator.planning.waiting import (
    CONFIG,
    CONFIG_WORDS,
    CREATING,
    GATED,
    IMAGE,
    IMAGE_WORDS,
    NOT_CREATED,
    UNSCHEDULABLE,
)

OTHER = "Other"
PHASES = frozenset({"Pending", "Running", "Succeeded", "Failed", "Unknown"})
LOSSES = (
    frozenset(kind.value for kind in FailureClass)
    | frozenset(REFUSED)
    | frozenset(reason.value for reason in Reason)
    | {RESUMED, SITE_SILENT, UNSCHEDULABLE, GATED, IMAGE, CONFIG, CREATING, NOT_CREATED, "Unheard", "NameConflict"}
)
"""Why an incarnation was lost, failed or moved."""
_ENDS = frozenset({"Completed", "Error", "OOMKilled", "ContainerCannotRun", "DeadlineExceeded", "StartError"})
_WAITS = IMAGE_WORDS | CONFIG_WORDS | {CREATING, "PodInitializing", "CrashLoopBackOff", UNSCHEDULABLE, GATED}
TERMINATING, NODE_SILENT = "Terminating", "NodeSilent"
POD_REASONS = _ENDS | _WAITS | DISRUPTIONS | PLACEMENTS | {TERMINATING, NODE_SILENT, ""}
"""Why a pod is as it is; empty: it simply runs, or waits for its turn."""


def one_of(word: str, allowed: frozenset[str]) -> str:
    """The word, or `Other`."""
    return word if word in allowed else OTHER


def pod_reason(pod: PodView) -> str:
    """The most telling word there is of a pod."""
    if pod.deleting:
        return TERMINATING
    if pod.node_silent:
        return NODE_SILENT
    ended = pod.ended.reason if pod.ended is not None else ""
    return one_of(pod.pod_reason or ended or pod.waiting or pod.unscheduled, POD_REASONS)

"""Names and numbers of incarnations: the next one of an index, and the identity labels of what belongs to it.

An incarnation is committed in status before its pod is created, and never used twice, also when the status was lost.
"""

from collections.abc import Iterable

from diloco_api import names
from diloco_api.progress import Progress
from diloco_api.states import LearnerPhase
from diloco_api.status import LearnerStatus
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.planning.types import PodView

CREATING = "Creating"
"""Reason of a Pending row whose pod has not been seen yet."""


def newest_known(index: int, row: LearnerStatus | None, pods: Iterable[PodView], progress: Progress | None) -> int:
    """The highest incarnation of an index that status, pods or Synchronizer know of; 0 when there is none."""
    known = [pod.incarnation for pod in pods if pod.index == index]
    known += [learner.incarnation for learner in progress.learners if learner.index == index] if progress else []
    return max([row.incarnation if row else 0, *known])


def begin(
    job: DiLoCoJob, index: int, incarnation: int, spot: tuple[str, str], row: LearnerStatus | None
) -> LearnerStatus:
    """The row of a new incarnation, or of one that is tried again, at a (site, node pool). Counters live on."""
    site, pool = spot
    fields = {
        "index": index,
        "site": site,
        "pool": pool,
        "incarnation": incarnation,
        "pod_name": names.learner_name(job.metadata.name, job.metadata.uid, index, incarnation),
        "state": LearnerPhase.PENDING.value,
        "reason": CREATING,
        "message": "",
        "reason_since": None,
        "not_before": None,
        "running_since": None,
        "restarts": row.restarts + (incarnation > row.incarnation) if row else 0,
    }
    return row.model_copy(update=fields) if row else LearnerStatus.model_validate(fields)

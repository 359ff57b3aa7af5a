"""What one Learner counts for in goodput: its devices; 1 on the CPU and on one machine, whatever it has there."""

from dataclasses import dataclass

from diloco_api.sites import NodePoolSpec
from diloco_api.status import LearnerStatus
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.planning.sites import site_refs

CPU = "cpu"


@dataclass(frozen=True)
class Weight:
    """Of one Learner."""

    devices: int
    device: str
    """Resource name of its devices, or `cpu`."""


def weight(job: DiLoCoJob, row: LearnerStatus | None, on_clusters: bool) -> Weight:
    """By the node pool it is, or was last, placed in; before that, by the first pool Learners may be in."""
    if not on_clusters:
        return Weight(1, CPU)
    refs = site_refs(job)
    here = next((ref for ref in refs if row is not None and ref.name == row.site), None)
    ref = here or next((ref for ref in refs if ref.takes_learners), refs[0])
    pool = next((pool for pool in ref.pools if row is not None and pool.name == row.pool), ref.pools[0])
    return _of_pool(pool, job.spec.learners.gpus)


def _of_pool(pool: NodePoolSpec, gpus: int) -> Weight:
    return Weight(gpus, pool.gpu_resource) if pool.device == "cuda" and gpus > 0 else Weight(1, CPU)

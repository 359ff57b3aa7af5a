"""What of the job's namespace is copied to its sites."""

from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.planning.types import ObjectKey


def propagated_keys(job: DiLoCoJob) -> tuple[ObjectKey, ...]:
    """What is to be copied."""
    wanted = job.spec.propagate
    return (*(("Secret", name) for name in wanted.secrets), *(("ConfigMap", name) for name in wanted.config_maps))

"""Accepting a job: every rule, then what is decided once and kept in `status.resolved`.

An operator upgrade or other configuration never changes an accepted job. A rule that is broken later by an edit stops
nothing: the job goes on as accepted and says Accepted=False.
"""

from diloco_api import names
from diloco_api.accept import Ports, problems, resolve_job
from diloco_api.errors import SpecError, spec_error
from diloco_api.status import PortsStatus, ResolvedStatus
from diloco_api.v1alpha1 import DiLoCoJob, LearnersSpec
from diloco_operator.planning.manifests.common import TEMPLATE_VERSION


def resolve_status(job: DiLoCoJob, offered: Ports) -> ResolvedStatus:
    """What the job will be run with; SpecError when it cannot be."""
    resolved = resolve_job(job)
    spec = job.spec.synchronizer
    return ResolvedStatus(
        policy=resolved.policy,
        budget_tokens=resolved.budget_tokens,
        budget_reason=resolved.budget_reason.value,
        template_version=TEMPLATE_VERSION,
        protocol_version=names.PROTOCOL_VERSION,
        replicas=resolved.replicas,
        ports=PortsStatus(
            synchronizer=spec.port or offered.synchronizer,
            admin=spec.admin_port or offered.admin,
            metrics=spec.metrics_port or offered.metrics,
        ),
    )


def learners_in_force(job: DiLoCoJob, resolved: ResolvedStatus | None) -> LearnersSpec:
    """How many Learners there shall be: a synchronous job never has more than it was accepted with.

    Its Synchronizer would refuse them, and that would end the job.
    """
    learners = job.spec.learners
    if resolved is None or not resolved.policy.synchronous or learners.replicas <= resolved.replicas:
        return learners
    return learners.model_copy(
        update={"replicas": resolved.replicas, "min": min(learners.min, resolved.replicas), "max": resolved.replicas}
    )


def broken_rule(job: DiLoCoJob) -> SpecError | None:
    """The first broken rule, in the words everyone uses."""
    found = problems(job)
    return spec_error(found) if found else None

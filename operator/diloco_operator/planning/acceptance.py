"""Accepting a job: every rule, then what is decided once and kept in `status.resolved`.

An operator upgrade or other configuration never changes an accepted job. A rule that is broken later by an edit stops
nothing: the job goes on as accepted and says Accepted=False.
"""

from diloco_api import names
from diloco_api.accept import Ports, problems, resolve_job
from diloco_api.errors import spec_error
from diloco_api.states import Reason
from diloco_api.status import ImagesStatus, PortsStatus, ResolvedStatus
from diloco_api.v1alpha1 import DiLoCoJob, LearnersSpec
from diloco_operator.planning.manifests.versions import TEMPLATE_VERSION
from diloco_operator.planning.propagation import propagated_keys
from diloco_operator.planning.sites import site_refs
from diloco_operator.planning.types import Observed


def resolve_status(job: DiLoCoJob, offered: Ports, image: str, origin: str = "") -> ResolvedStatus:
    """What the job will be run with; SpecError when it cannot be. `image`: of its pods."""
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
        images=ImagesStatus(trainer=image),
        origin=names.label_value(origin),
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


def refusal(job: DiLoCoJob, observed: Observed, tls: bool) -> tuple[Reason, str] | None:
    """Why the job is not accepted as it is, in the words everyone uses; None: it is.

    What a cluster run needs besides (credentials, what is to be propagated) is asked for once; later, what is missing
    is a trouble of a site.
    """
    found = problems(job)
    if found:
        return Reason.INVALID_SPEC, str(spec_error(found))
    if not tls or job.status.resolved is not None:
        return None
    for kind, name in propagated_keys(job):
        if (kind, name) not in observed.propagated:
            field = "secrets" if kind == "Secret" else "configMaps"
            return Reason.INVALID_SPEC, f"spec.propagate.{field}: {name}: there is no such {kind} to be propagated"
    return _without_credentials(job, observed)


def _without_credentials(job: DiLoCoJob, observed: Observed) -> tuple[Reason, str] | None:
    """No site for Learners has any that can be used."""
    views = {view.name: view for view in observed.sites}
    wanted = [views[ref.name] for ref in site_refs(job) if ref.takes_learners and ref.name in views]
    if not wanted or not all(view.credentials_problem for view in wanted):
        return None
    texts = [f"{view.name}: {view.credentials_problem}: {view.message}" for view in wanted]
    return Reason.CREDENTIALS_INVALID, "; ".join(texts)

"""The objects and pods a running job should have, at which site, and the actions that bring that about."""

from collections.abc import Iterable, Mapping, Sequence

from diloco_api.names import LearnerPhase
from diloco_api.status import JobStatus, LearnerStatus
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.planning.clean_up import differences, surplus_pods
from diloco_operator.planning.learners import ACTIVE
from diloco_operator.planning.manifests.config import address_map, run_config, run_config_map
from diloco_operator.planning.manifests.learner import learner_pod, learner_secret
from diloco_operator.planning.manifests.synchronizer import state_claim, synchronizer_deployment, synchronizer_secret
from diloco_operator.planning.types import Action, CreatePod, Manifest, ObjectKey, Observed, OperatorPolicy, SiteView


def object_actions(
    job: DiLoCoJob,
    status: JobStatus,
    policy: OperatorPolicy,
    observed: Observed,
    rows: Sequence[LearnerStatus],
    attempt: int,
) -> list[Action]:
    """Configuration and Secrets at every site, the Synchronizer at its own."""
    actions: list[Action] = []
    for number, site in enumerate(observed.sites):
        manifests = list(_of_site(job, status, policy))
        active = [row for row in rows if row.site == site.name and row.state in ACTIVE]
        manifests += [learner_secret(job, row, attempt, observed.key) for row in active]
        if number == 0:
            manifests += _synchronizer(job, status, policy, observed, site)
        actions += differences(site, _by_key(manifests))
    return actions


def pod_actions(
    job: DiLoCoJob, policy: OperatorPolicy, observed: Observed, rows: Mapping[int, LearnerStatus], attempt: int
) -> list[Action]:
    """Old incarnations go, new ones are created; committed ones without a pod only while the Synchronizer is heard.

    It would know an incarnation that ran and vanished unseen; that one must not come to life again.
    """
    committed = {row.index: row.incarnation for row in job.status.learner_statuses}
    active = frozenset(index for index, row in rows.items() if row.state in ACTIVE)
    done = frozenset(index for index, row in rows.items() if row.state == LearnerPhase.SUCCEEDED)
    actions: list[Action] = []
    for site in observed.sites:
        if site.unreachable:
            continue
        actions += surplus_pods(site, rows, active | done)
        present = {pod.name for pod in site.pods}
        for index in sorted(active):
            row = rows[index]
            may_create = observed.progress is not None or committed.get(index) != row.incarnation
            unseen = row.state == LearnerPhase.PENDING and row.pod_name not in present
            if row.site == site.name and unseen and may_create:
                pod = learner_pod(job, row, attempt, policy.image, policy.timeouts)
                actions.append(CreatePod(site.name, pod))
    return actions


def _of_site(job: DiLoCoJob, status: JobStatus, policy: OperatorPolicy) -> Iterable[Manifest]:
    assert status.resolved is not None, "only an accepted job has objects"
    ports = status.resolved.ports
    config = run_config(job, status.resolved, policy.timeouts, policy.ports.learner_metrics)
    yield run_config_map(job, config)
    yield address_map(job, policy.synchronizer_hosts, ports.synchronizer)


def _synchronizer(
    job: DiLoCoJob, status: JobStatus, policy: OperatorPolicy, observed: Observed, site: SiteView
) -> list[Manifest]:
    assert status.resolved is not None, "only an accepted job has objects"
    return [
        synchronizer_secret(job, observed.key),
        state_claim(job),
        synchronizer_deployment(job, status.resolved.ports, site.name, policy.image, policy.timeouts),
    ]


def _by_key(manifests: Iterable[Manifest]) -> dict[ObjectKey, Manifest]:
    return {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in manifests}

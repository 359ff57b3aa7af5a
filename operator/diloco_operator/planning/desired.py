"""The objects and pods a running job should have, at which site, and the actions that bring that about."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from diloco_api import names
from diloco_api.sites import NodePoolSpec
from diloco_api.states import LearnerPhase
from diloco_api.status import JobStatus, LearnerStatus, ResolvedStatus
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.planning.addresses import addresses
from diloco_operator.planning.clean_up import differences, surplus_pods
from diloco_operator.planning.clock import to_seconds
from diloco_operator.planning.credentials import Credentials
from diloco_operator.planning.manifests import synchronizer as of_synchronizer
from diloco_operator.planning.manifests.common import Home
from diloco_operator.planning.manifests.config import address_map, run_config, run_config_map
from diloco_operator.planning.manifests.learner import LearnerKit, learner_secret
from diloco_operator.planning.manifests.mirrors import mirror_names, mirrors
from diloco_operator.planning.manifests.protection import disruption_budget, learners_policy, synchronizer_policy
from diloco_operator.planning.manifests.versions import TEMPLATES, PodTemplates, templates_of
from diloco_operator.planning.rows import ACTIVE
from diloco_operator.planning.sites import SiteRef
from diloco_operator.planning.types import Action, CreatePod, Manifest, ObjectKey, Observed, OperatorPolicy, SiteView


@dataclass(frozen=True)
class Wanted:
    """What objects and pods follow from."""

    job: DiLoCoJob
    status: JobStatus
    policy: OperatorPolicy
    observed: Observed
    refs: Mapping[str, SiteRef]
    rows: Mapping[int, LearnerStatus]
    attempt: int
    now: float
    templates: Mapping[int, PodTemplates] = field(default_factory=lambda: TEMPLATES)
    """By version; all that this operator knows."""

    @property
    def pods(self) -> PodTemplates:
        """How the job's pods are written down: as when it was accepted."""
        return templates_of(self.resolved.template_version, self.templates)

    @property
    def resolved(self) -> ResolvedStatus:
        assert self.status.resolved is not None, "only an accepted job has objects"
        return self.status.resolved

    @property
    def image(self) -> str:
        return self.resolved.images.trainer or self.policy.image

    def home(self, ref: SiteRef) -> Home:
        policy = self.policy
        origin = self.resolved.origin or policy.origin
        return Home(self.job, ref.namespace, origin, policy.tls, ref.is_hub, policy.fs_group)

    def credentials(self) -> Credentials:
        assert self.status.start_time is not None, "an accepted job has begun"
        started = to_seconds(self.status.start_time)
        return Credentials(self.job.metadata.uid, self.observed.key, self.policy.tls, started, self.now)


def object_actions(wanted: Wanted) -> list[Action]:
    """Configuration and Secrets at every site that has Learners, the Synchronizer at the first one."""
    actions: list[Action] = []
    for number, site in enumerate(wanted.observed.sites):
        ref = wanted.refs.get(site.name)
        if ref is None:  # not named any more
            actions += differences(site, {}) if not site.pods else []
            continue
        manifests = _of_site(wanted, ref, site, with_synchronizer=number == 0)
        manifests += _synchronizer(wanted, ref) if number == 0 else []
        actions += differences(site, _by_key(manifests), keep=_follow_the_address(wanted.job) if site.pods else ())
    return actions


def pod_actions(wanted: Wanted) -> list[Action]:
    """Old incarnations go, new ones are created; committed ones without a pod only while the Synchronizer is heard.

    It would know an incarnation that ran and vanished unseen; that one must not come to life again.
    """
    rows, observed = wanted.rows, wanted.observed
    committed = {row.index: row.incarnation for row in wanted.job.status.learner_statuses}
    active = frozenset(index for index, row in rows.items() if row.state in ACTIVE)
    done = frozenset(index for index, row in rows.items() if row.state == LearnerPhase.SUCCEEDED)
    actions: list[Action] = []
    for site in observed.sites:
        if site.unreachable:
            continue
        actions += surplus_pods(site, rows, active | done)
        ref, present = wanted.refs.get(site.name), {pod.name for pod in site.pods}
        for index in sorted(active) if ref is not None else ():
            row = rows[index]
            may_create = observed.progress is not None or committed.get(index) != row.incarnation
            unseen = row.state == LearnerPhase.PENDING and row.pod_name not in present
            if row.site == site.name and unseen and may_create and ref is not None:
                actions.append(CreatePod(site.name, _pod(wanted, ref, row)))
    return actions


def _pod(wanted: Wanted, ref: SiteRef, row: LearnerStatus) -> Manifest:
    home, policy = wanted.home(ref), wanted.policy
    port = policy.ports.learner_metrics
    kit = LearnerKit(home, wanted.attempt, wanted.image, policy.timeouts, port, mirror_names(home))
    return wanted.pods.learner(kit, row, _pool(ref, row) if policy.tls else None)


def _pool(ref: SiteRef, row: LearnerStatus) -> NodePoolSpec:
    """The row's node pool; one that was taken out of the spec is replaced by the first that is there."""
    return next((pool for pool in ref.pools if pool.name == row.pool), ref.pools[0])


def _of_site(wanted: Wanted, ref: SiteRef, site: SiteView, with_synchronizer: bool) -> list[Manifest]:
    """What the pods of a site read, and what keeps them to themselves. A site without pods needs nothing."""
    active = [row for _, row in sorted(wanted.rows.items()) if row.site == ref.name and row.state in ACTIVE]
    learners = bool(active) or any(pod.role == "learner" for pod in site.pods) or not wanted.policy.tls
    if not (learners or with_synchronizer):
        return []
    home, policy, ports = wanted.home(ref), wanted.policy, wanted.resolved.ports
    found = [run_config_map(home, run_config(wanted.job, wanted.resolved, policy))]
    if not learners:
        return found
    where = addresses(wanted.job, ref, ports.synchronizer, policy, wanted.observed)
    if where is not None:
        found.append(address_map(home, where))
    if policy.tls and where is not None:
        spaces = policy.monitoring_namespace, policy.ports.learner_metrics
        found.append(learners_policy(home, ports, () if ref.is_hub else where, *spaces))
    credentials = wanted.credentials()
    found += [learner_secret(home, row, wanted.attempt, credentials.of_learner(row)) for row in active]
    if policy.tls:
        found += mirrors(home, wanted.observed.propagated)
    return found


def _follow_the_address(job: DiLoCoJob) -> frozenset[ObjectKey]:
    """What stays as it is while the Synchronizer's address is not known."""
    name, uid = job.metadata.name, job.metadata.uid
    return frozenset({("ConfigMap", names.address_name(name, uid)), ("NetworkPolicy", names.learners_name(name, uid))})


def _synchronizer(wanted: Wanted, ref: SiteRef) -> list[Manifest]:
    home, policy, ports = wanted.home(ref), wanted.policy, wanted.resolved.ports
    found = [
        of_synchronizer.synchronizer_secret(home, wanted.credentials().of_synchronizer()),
        of_synchronizer.state_claim(home),
    ]
    if policy.tls:
        exposure = wanted.job.spec.synchronizer.exposure.type
        found.append(of_synchronizer.internal_service(home, ports))
        if exposure in ("NodePort", "LoadBalancer"):
            found.append(of_synchronizer.external_service(home, ports))
        found.append(disruption_budget(home))
        exposed = exposure != "ClusterIP"
        spaces = policy.operator_namespace, policy.monitoring_namespace
        found.append(synchronizer_policy(home, ports, exposed, *spaces))
    found.append(wanted.pods.synchronizer(home, wanted.resolved, ref.name, wanted.image, policy.timeouts))
    return found


def _by_key(manifests: Iterable[Manifest]) -> dict[ObjectKey, Manifest]:
    return {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in manifests}

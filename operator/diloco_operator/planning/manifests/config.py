"""ConfigMaps of a job: the run config every process reads, and the Synchronizer's addresses."""

from collections.abc import Sequence

from diloco_api import names
from diloco_api.accept import Ports, Resolved, make_run_config
from diloco_api.model_size import gpt_shape
from diloco_api.run_config import RunConfig
from diloco_api.states import Reason
from diloco_api.status import ResolvedStatus
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.planning.acceptance import learners_in_force
from diloco_operator.planning.manifests.common import Home, finished_object, labels
from diloco_operator.planning.types import Manifest, OperatorPolicy


def run_config(job: DiLoCoJob, resolved: ResolvedStatus, policy: OperatorPolicy) -> RunConfig:
    """The accepted job as its processes see it: from what acceptance has fixed, not resolved again."""
    learners = learners_in_force(job, resolved)
    accepted = Resolved(
        policy=resolved.policy,
        budget_tokens=resolved.budget_tokens,
        budget_reason=Reason(resolved.budget_reason),
        shape=gpt_shape(job.spec.train),
        replicas=resolved.replicas,
        min_learners=learners.min,
        max_learners=learners.replicas if learners.max is None else learners.max,
    )
    ports = Ports(
        synchronizer=resolved.ports.synchronizer,
        admin=resolved.ports.admin,
        metrics=resolved.ports.metrics,
        learner_metrics=policy.ports.learner_metrics,
    )
    return make_run_config(job, accepted, ports, policy.timeouts, tls=policy.tls)


def run_config_map(home: Home, config: RunConfig) -> Manifest:
    """ConfigMap with `run.json`."""
    data = {names.FILE_RUN_CONFIG: config.model_dump_json(indent=2)}
    return finished_object(
        "v1", "ConfigMap", names.config_name(home.name, home.uid), home, labels(home), {"data": data}
    )


def address_map(home: Home, addresses: Sequence[str]) -> Manifest:
    """ConfigMap with one host:port a line; Learners read it again before each reconnect."""
    data = {names.FILE_ADDRESSES: "".join(f"{address}\n" for address in addresses)}
    return finished_object(
        "v1", "ConfigMap", names.address_name(home.name, home.uid), home, labels(home), {"data": data}
    )

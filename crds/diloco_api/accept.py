"""Acceptance of a job: every rule, then everything that is worked out once and holds for the job's life.

Used alike by operator and CLI. Pure: the caller chooses ports and writes the result to status and run config.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from diloco_api import names, pod_template, rules, sites, sync_policy, synchronizer, train
from diloco_api.errors import Problem, spec_error
from diloco_api.model_size import ModelShape, gpt_shape
from diloco_api.policy import SyncPolicy
from diloco_api.run_config import RunConfig
from diloco_api.states import Reason
from diloco_api.timeouts import Timeouts
from diloco_api.v1alpha1 import DiLoCoJob, JobSpec

TOKENS_PER_PARAMETER = 20
"""Default budget (arXiv 2203.15556)."""
MAX_BUDGET_TOKENS = 10**16


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports a job's processes bind; `learner_metrics` 0 lets each Learner bind any free one."""

    synchronizer: int = names.SYNCHRONIZER_PORT
    admin: int = names.ADMIN_PORT
    metrics: int = names.METRICS_PORT
    learner_metrics: int = names.METRICS_PORT


@dataclass(frozen=True, slots=True)
class Resolved:
    """What acceptance works out."""

    policy: SyncPolicy
    budget_tokens: int
    budget_reason: Reason
    """With which the job is Complete once the budget is merged."""
    shape: ModelShape
    replicas: int
    min_learners: int
    max_learners: int


def problems(job: DiLoCoJob) -> list[Problem]:
    """Every broken rule of a job, in the order of its fields; empty: it can be accepted, or go on as it was edited."""
    return [*_broken(job.spec, job.metadata.namespace), *_broken_edit(job)]


def resolve_job(job: DiLoCoJob) -> Resolved:
    """Work everything out; SpecError with the first problem when there is any."""
    found = problems(job)
    if found:
        raise spec_error(found)
    spec, shape = job.spec, gpt_shape(job.spec.train)
    policy = _policy(spec, shape)
    tokens, reason = _budget(spec, policy.sync_every, shape)
    return Resolved(
        policy=policy,
        budget_tokens=tokens,
        budget_reason=reason,
        shape=shape,
        replicas=spec.learners.replicas,
        min_learners=spec.learners.min,
        max_learners=_max_learners(spec),
    )


def make_run_config(
    job: DiLoCoJob, resolved: Resolved, ports: Ports, timeouts: Timeouts | None = None, *, tls: bool = False
) -> RunConfig:
    """What every process of the job is given."""
    return RunConfig(
        job_name=job.metadata.name,
        job_namespace=job.metadata.namespace,
        job_uid=job.metadata.uid,
        policy=resolved.policy,
        train=job.spec.train,
        budget_tokens=resolved.budget_tokens,
        budget_reason=resolved.budget_reason,
        replicas=resolved.replicas,
        min_learners=resolved.min_learners,
        timeouts=timeouts or Timeouts(),
        tls=tls,
        synchronizer_port=ports.synchronizer,
        admin_port=ports.admin,
        synchronizer_metrics_port=ports.metrics,
        learner_metrics_port=ports.learner_metrics,
    )


def _max_learners(spec: JobSpec) -> int:
    return spec.learners.replicas if spec.learners.max is None else spec.learners.max


def _policy(spec: JobSpec, shape: ModelShape) -> SyncPolicy:
    return sync_policy.resolve(
        spec.algorithm,
        replicas=spec.learners.replicas,
        max_learners=_max_learners(spec),
        shape=shape,
        max_passes=spec.train.data.max_passes,
    )


def _budget(spec: JobSpec, sync_every: int, shape: ModelShape) -> tuple[int, Reason]:
    """Tokens of the whole job and what reaching them is called."""
    step_tokens = spec.learners.replicas * spec.train.step_tokens
    if spec.budget.inner_steps is not None:
        return spec.budget.inner_steps * step_tokens, Reason.STEP_BUDGET_REACHED
    if spec.budget.outer_rounds is not None:
        return spec.budget.outer_rounds * sync_every * step_tokens, Reason.ROUND_BUDGET_REACHED
    default = TOKENS_PER_PARAMETER * shape.num_parameters
    return default if spec.budget.tokens is None else spec.budget.tokens, Reason.TOKEN_BUDGET_REACHED


def _broken(spec: JobSpec, namespace: str) -> Iterator[Problem]:
    shape = gpt_shape(spec.train)
    replicas, most = spec.learners.replicas, _max_learners(spec)
    yield from sync_policy.problems(spec.algorithm, replicas=replicas, max_learners=most, shape=shape)
    yield from train.problems(spec.train)
    yield from _broken_budget(spec, shape)
    if replicas < spec.learners.min:
        rule = f"{rules.REPLICAS_AT_LEAST_MIN} ({spec.learners.min})"
        yield Problem("spec.learners.replicas", f"{replicas}", rule)
    if replicas > most:
        yield Problem("spec.learners.replicas", f"{replicas}", f"{rules.REPLICAS_AT_MOST_MAX} ({most})")
    remote = any(not site.is_hub for site in spec.sites)
    yield from synchronizer.problems(spec.synchronizer, remote)
    yield from pod_template.problems(spec.synchronizer.template, "spec.synchronizer.template")
    yield from pod_template.problems(spec.learners.template, "spec.learners.template")
    yield from sites.problems(spec.sites, namespace, most, replicas)


def _broken_edit(job: DiLoCoJob) -> Iterator[Problem]:
    """What an accepted job cannot be changed to although the field is mutable."""
    resolved, replicas = job.status.resolved, job.spec.learners.replicas
    if resolved is not None and resolved.policy.synchronous and replicas > resolved.replicas:
        yield Problem("spec.learners.replicas", f"{replicas}", f"{rules.REPLICAS_FIXED} ({resolved.replicas})")


def _broken_budget(spec: JobSpec, shape: ModelShape) -> Iterator[Problem]:
    given = spec.budget.model_dump(by_alias=True, exclude_none=True)
    if len(given) > 1:
        yield Problem("spec.budget", ", ".join(f"{name} {value}" for name, value in given.items()), rules.ONE_BUDGET)
        return
    every = spec.algorithm.sync_every or sync_policy.PRESETS[spec.algorithm.preset].sync_every
    tokens, _ = _budget(spec, every, shape)
    if tokens > MAX_BUDGET_TOKENS:
        path = ".".join(["spec.budget", *given])
        yield Problem(path, f"{tokens} tokens", rules.BUDGET_TOO_LARGE)

"""The file every process of a job reads at start: the accepted job, resolved, and nothing that can change later.

The operator writes it into a ConfigMap (`run.json`); Learners and Synchronizer read the same text. Identity (index,
incarnation, site) and secrets come beside it, see `diloco_api.names`. An operator of another time may write it anew for
images of the job's time: fields unknown to a reader are ignored, and a new field has a default.
"""

from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from diloco_api.errors import SpecError, first_problem
from diloco_api.policy import SyncPolicy
from diloco_api.timeouts import Timeouts
from diloco_api.train import TrainSpec

RUN_CONFIG_VERSION: Final = 1


class RunConfig(BaseModel):
    """One job as its processes see it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    schema_version: Literal[1] = RUN_CONFIG_VERSION
    """Version of this file's layout; a process refuses another one."""
    job_name: str
    """`metadata.name` of the job."""
    job_namespace: str
    """`metadata.namespace` of the job."""
    job_uid: str
    """`metadata.uid` of the job; every message and token names it."""
    policy: SyncPolicy
    """The resolved synchronisation policy."""
    train: TrainSpec
    """What is trained, on what, how: the job's own `spec.train`."""
    budget_tokens: int = Field(gt=0)
    """Tokens of the whole job, a multiple of nothing in particular; the last batch may be short."""
    budget_reason: str = "TokenBudgetReached"
    """Reason with which the job is Complete once the budget is merged (data may run out before)."""
    replicas: int = Field(gt=0)
    """Learners wanted."""
    min_learners: int = Field(gt=0)
    """Least number of Learners with which a synchronous job may start."""
    timeouts: Timeouts = Timeouts()
    """All deadlines."""
    tls: bool = False
    """Learners and operator reach the Synchronizer by TLS, with the certificates in the credentials folders. False:
    everything is on one machine, and only loopback addresses are bound."""
    synchronizer_port: int = Field(ge=0, lt=65536)
    """gRPC port the Synchronizer binds (0 only in tests: any free one)."""
    admin_port: int = Field(ge=0, lt=65536)
    """HTTP port of `Admin` (progress, drain)."""
    synchronizer_metrics_port: int = Field(ge=0, lt=65536)
    """Plain HTTP port of the Synchronizer's `/metrics` and `/healthz`."""
    learner_metrics_port: int = Field(ge=0, lt=65536)
    """Plain HTTP port of a Learner's `/metrics`; 0 binds any free one (local runs)."""


def read_run_config(path: Path) -> RunConfig:
    """Parse `run.json`; raises SpecError naming file and field when it is not one of this version."""
    try:
        return RunConfig.model_validate_json(path.read_text(encoding="utf-8"), extra="ignore")
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise SpecError(f"{path}: {first_problem(error)}") from error

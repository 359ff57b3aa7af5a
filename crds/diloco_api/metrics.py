"""Every Prometheus series of the project, declared once: name, kind, labels, unit, and which process exposes it.

Operator, Synchronizer and Learners make their collectors from this table; docs/metrics.md is generated from it; rules
and dashboards are checked against it. `diloco_job` and `job_namespace` are called so because Prometheus itself adds
`job` and `namespace` to what it scrapes. Label values are identities or words of closed sets (`LABELS`), never a uid,
pod, node or message, but in the two `_info` series.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """As Prometheus has them."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Exposer(StrEnum):
    """The process at whose /metrics a series is found."""

    OPERATOR = "operator"
    SYNCHRONIZER = "synchronizer"
    LEARNER = "learner"


@dataclass(frozen=True)
class Series:
    """One row of the table."""

    name: str
    """As exposed: counters end in `_total`; a histogram is exposed as `_bucket`, `_sum` and `_count`."""
    kind: Kind
    exposer: Exposer
    labels: tuple[str, ...]
    help: str
    """What it counts, with the unit where the name does not say it."""
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram."""

    @property
    def sample_names(self) -> tuple[str, ...]:
        """Names a query may use."""
        if self.kind is Kind.HISTOGRAM:
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)

    @property
    def sample_labels(self) -> tuple[str, ...]:
        """Labels a query may use."""
        return (*self.labels, "le") if self.kind is Kind.HISTOGRAM else self.labels


JOB = ("diloco_job", "job_namespace")
"""The job pair: on every series of a job."""
LABELS: Mapping[str, str] = {
    "diloco_job": "name of the job",
    "job_namespace": "namespace of the job",
    "site": "name of a site of the job; `hub` is the hub itself",
    "from_site": "as `site`: where a Learner was",
    "to_site": "as `site`: where it is now",
    "learner": "index of a Learner; in `diloco_loss` also `global`, in `diloco_pod_status` empty for the Synchronizer",
    "role": "learner or synchronizer",
    "device": "resource name of the Learner's devices, such as `nvidia.com/gpu`; `cpu` where it has none",
    "state": "what a second of a Learner went into: a closed set, see docs/goodput.md",
    "condition": "type of a condition of the job",
    "status": "True, False or Unknown",
    "phase": "phase of a pod, Kubernetes' word",
    "reason": "one word of a closed set; `Other` stands for every word not in it",
    "counted": "true when it counts against `failurePolicy.maxRestarts`, else false",
    "direction": "up (Learner to Synchronizer) or down",
    "verb": "HTTP method",
    "code": "HTTP status; `none` when there was no answer",
    "result": "done or failed",
    "preset": "preset of the algorithm",
    "uid": "UID of the job",
    "pod": "name of a pod",
    "namespace": "namespace of that pod in its own cluster",
    "version": "version of the operator",
    "python": "version of Python",
    "kopf": "version of kopf",
    "le": "upper bound of a bucket",
}
"""Every label there is, and where its values come from."""

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_WAITS = (1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
_COUNTS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0, 128.0, 256.0)
_VERSIONS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0)
_COUNTER, _GAUGE, _HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
_OPERATOR, _SYNCHRONIZER, _LEARNER = Exposer.OPERATOR, Exposer.SYNCHRONIZER, Exposer.LEARNER
_SITE, _INDEX = (*JOB, "site"), (*JOB, "site", "learner")
_Row = tuple[str, Kind, tuple[str, ...], str] | tuple[str, Kind, tuple[str, ...], str, tuple[float, ...]]

_OF_OPERATOR: tuple[_Row, ...] = (
    ("diloco_build_info", _GAUGE, ("version", "python", "kopf"), "Always 1."),
    ("diloco_lease_held", _GAUGE, (), "1 while this process holds the Lease and looks after jobs, else 0."),
    ("diloco_reconcile_total", _COUNTER, ("result",), "Passes over jobs."),
    ("diloco_reconcile_seconds", _HISTOGRAM, (), "Duration of a pass that was done.", _SECONDS),
    ("diloco_queue_depth", _GAUGE, (), "Jobs with an unserved wake-up."),
    ("diloco_queue_oldest_seconds", _GAUGE, (), "Age of the oldest unserved wake-up."),
    (
        "diloco_watch_behind_seconds", _GAUGE, (),
        "For how long a list has shown of a job what the watch of jobs has not told; 0 when it has told everything.",
    ),
    ("diloco_job_info", _GAUGE, (*JOB, "uid", "preset"), "Always 1."),
    ("diloco_job_condition", _GAUGE, (*JOB, "condition", "status"), "1 for the status a condition has, else 0."),
    ("diloco_job_learners_desired", _GAUGE, JOB, "Learners wanted now; 0 while stopped or ended."),
    ("diloco_job_learners_min", _GAUGE, JOB, "`learners.min`."),
    ("diloco_job_learners_max", _GAUGE, JOB, "`learners.max`; absent where there is no limit."),
    ("diloco_job_learners", _GAUGE, (*_SITE, "state"), "Wanted Learners by what they are doing now."),
    (
        "diloco_learner_state_seconds_total", _COUNTER, (*_INDEX, "state"),
        "Seconds of wanted Learners, every one in exactly one state. The base of goodput.",
    ),
    ("diloco_learner_weight", _GAUGE, (*JOB, "learner", "device"), "Devices of a wanted Learner; 1 on the CPU."),
    (
        "diloco_job_wanted_seconds_total", _COUNTER, JOB,
        "Seconds of wanted Learners times their weight: those of which it is known what went into them.",
    ),
    (
        "diloco_job_window_seconds_total", _COUNTER, JOB,
        "Seconds the job was to run: stopped and suspended time is not in.",
    ),
    (
        "diloco_job_uptime_seconds_total", _COUNTER, JOB,
        "Part of the window in which outer steps came within their deadline.",
    ),
    (
        "diloco_job_ideal_tokens_per_second", _GAUGE, JOB,
        "Tokens a second of an undisturbed Learner, per unit of weight.",
    ),
    (
        "diloco_job_accepted_tokens_total", _COUNTER, JOB,
        "Tokens merged into the outer parameters, as accounted for goodput.",
    ),
    (
        "diloco_learner_restarts_total", _COUNTER, (*_SITE, "reason", "counted"),
        "Incarnations that were lost or failed.",
    ),
    (
        "diloco_learner_relocations_total", _COUNTER, (*JOB, "from_site", "to_site", "reason"),
        "Learners started on another site than before.",
    ),
    (
        "diloco_learner_replacement_seconds", _HISTOGRAM, (*JOB, "reason"),
        "From the loss of a Learner being seen until its successor trains.", _WAITS,
    ),
    (
        "diloco_pod_status", _GAUGE, (*JOB, "site", "role", "learner", "phase", "reason"),
        "Always 1: a pod of the job as the operator sees it, of its newest incarnation.",
    ),
    ("diloco_learner_pod_info", _GAUGE, (*_INDEX, "pod", "namespace"), "Always 1: which pod a Learner is."),
    ("diloco_site_reachable", _GAUGE, _SITE, "1 when the site answered in the last pass, else 0."),
    ("diloco_site_last_contact_timestamp_seconds", _GAUGE, _SITE, "When the site last answered, Unix time."),
    (
        "diloco_site_api_requests_total", _COUNTER, ("site", "verb", "code"),
        "Requests to the API server of a site.",
    ),
    (
        "diloco_site_api_request_seconds", _HISTOGRAM, ("site", "verb"),
        "Duration of requests to the API server of a site; watches until they begin.", _SECONDS,
    ),
    (
        "diloco_credentials_expiry_timestamp_seconds", _GAUGE, _SITE,
        "When the token or client certificate of a site's kubeconfig expires, Unix time; absent when it does not say.",
    ),
)  # fmt: skip

_OF_SYNCHRONIZER: tuple[_Row, ...] = (
    ("diloco_learner_tokens_total", _COUNTER, _INDEX, "Tokens a Learner index has trained on a site."),
    ("diloco_tokens_merged_total", _COUNTER, JOB, "Tokens whose progress is in the outer parameters."),
    ("diloco_tokens_discarded_total", _COUNTER, (*JOB, "reason"), "Tokens trained and thrown away."),
    (
        "diloco_tokens_overlap_total", _COUNTER, JOB,
        "Tokens trained between a stage and the adoption that overwrote them.",
    ),
    (
        "diloco_tokens_repeated_total", _COUNTER, JOB,
        "Tokens leased a second time although some fragments had merged them.",
    ),
    ("diloco_outer_steps_total", _COUNTER, JOB, "Outer steps of all fragments."),
    (
        "diloco_outer_step_seconds", _HISTOGRAM, JOB,
        "Duration of an outer step of a fragment: merge, step, durable record.", _SECONDS,
    ),
    ("diloco_outer_step_participants", _HISTOGRAM, JOB, "Contributions merged in an outer step.", _COUNTS),
    (
        "diloco_outer_step_deadline_seconds", _GAUGE, JOB,
        "Age of the last outer step up to which the job advances as it should.",
    ),
    (
        "diloco_last_outer_step_timestamp_seconds", _GAUGE, JOB,
        "When the last outer step was taken, Unix time; absent before it.",
    ),
    (
        "diloco_update_staleness_steps", _HISTOGRAM, _SITE,
        "Outer versions the base of a merged contribution was behind.", _VERSIONS,
    ),
    (
        "diloco_sync_bytes_total", _COUNTER, (*_SITE, "direction"),
        "Payload bytes from (up) and to (down) the Learners of a site.",
    ),
    (
        "diloco_sync_transfer_seconds", _HISTOGRAM, (*_SITE, "direction"),
        "Duration of the transfer of one fragment from (up) or to (down) a Learner of a site.", _SECONDS,
    ),
    ("diloco_fenced_updates_total", _COUNTER, _SITE, "Contributions of fenced incarnations, refused."),
    (
        "diloco_loss", _GAUGE, (*JOB,
        "learner"), "Last reported loss of a live Learner, of `global` the validation loss; nats per token.",
    ),
    ("diloco_turns_announced_total", _COUNTER, JOB, "Turns Learners were asked for."),
    ("diloco_turns_skipped_total", _COUNTER, JOB, "Turns skipped because a round was open."),
    ("diloco_turns_void_total", _COUNTER, JOB, "Turns that closed without a merge."),
)  # fmt: skip

_OF_LEARNER: tuple[_Row, ...] = (
    ("diloco_incarnation_steps_total", _COUNTER, _INDEX, "Inner steps of this incarnation."),
    ("diloco_incarnation_tokens_total", _COUNTER, _INDEX, "Tokens this incarnation has trained."),
    (
        "diloco_incarnation_state_seconds_total", _COUNTER, (*_INDEX, "state"),
        "Seconds this incarnation spent, by state.",
    ),
    (
        "diloco_incarnation_sync_bytes_total", _COUNTER, (*_INDEX, "direction"),
        "Payload bytes sent (up) and pulled (down).",
    ),
    (
        "diloco_incarnation_digest_mismatches_total", _COUNTER, _INDEX,
        "Parameters pulled again because of a wrong digest.",
    ),
    ("diloco_incarnation_job_step", _GAUGE, _INDEX, "Position in the job's learning-rate schedule, steps."),
    ("diloco_incarnation_learning_rate", _GAUGE, _INDEX, "Learning rate of the last inner step."),
    ("diloco_incarnation_staleness_steps", _GAUGE, _INDEX, "Outer versions the oldest fragment is behind."),
    ("diloco_incarnation_warmup_left_steps", _GAUGE, _INDEX, "Steps left of the ramp of a replacement."),
    ("diloco_incarnation_loss", _GAUGE, _INDEX, "Mean training loss, nats per token; absent before the first step."),
    ("diloco_incarnation_step_seconds", _GAUGE, _INDEX, "Median time of an inner step; absent before the first step."),
)  # fmt: skip


def _table() -> dict[str, Series]:
    rows = ((_OPERATOR, _OF_OPERATOR), (_SYNCHRONIZER, _OF_SYNCHRONIZER), (_LEARNER, _OF_LEARNER))
    return {
        row[0]: Series(row[0], row[1], exposer, row[2], row[3], row[4] if len(row) == 5 else ())
        for exposer, part in rows
        for row in part
    }


SERIES: Mapping[str, Series] = _table()
"""All of them by name."""


def series_of(exposer: Exposer) -> list[Series]:
    """What one kind of process exposes."""
    return [series for series in SERIES.values() if series.exposer is exposer]


def sample_names() -> dict[str, Series]:
    """Every name a query may use, with the row it belongs to."""
    return {name: series for series in SERIES.values() for name in series.sample_names}

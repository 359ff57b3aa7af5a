"""Histograms of what happens in the engine, for `/metrics`. Everything that is a total comes from `Progress` instead.

Names and labels: docs of the metrics; every series carries the job pair. One registry for each process.
"""

from prometheus_client import CollectorRegistry, Histogram

SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128)
VERSIONS = (0, 1, 2, 3, 4, 6, 8, 16, 32)
JOB_LABELS = ("diloco_job", "job_namespace")


class Measures:
    """Observations of one process; they start at zero with it, as Prometheus expects."""

    def __init__(self, job_name: str, job_namespace: str) -> None:
        self.registry = CollectorRegistry()
        self.job = (job_name, job_namespace)
        self._seconds = Histogram(
            "diloco_outer_step_seconds",
            "Time of an outer step of one fragment: merge, step and durable record.",
            JOB_LABELS,
            buckets=SECONDS,
            registry=self.registry,
        ).labels(*self.job)
        self._participants = Histogram(
            "diloco_outer_step_participants",
            "Contributions merged in one outer step.",
            JOB_LABELS,
            buckets=COUNTS,
            registry=self.registry,
        ).labels(*self.job)
        self._staleness = Histogram(
            "diloco_update_staleness_steps",
            "Outer versions a merged contribution's base was behind.",
            (*JOB_LABELS, "site"),
            buckets=VERSIONS,
            registry=self.registry,
        )

    def outer_step(self, seconds: float, participants: int) -> None:
        self._seconds.observe(seconds)
        self._participants.observe(participants)

    def merged(self, site: str, staleness: int) -> None:
        """A contribution from a site was merged, its base that many versions old."""
        self._staleness.labels(*self.job, site).observe(staleness)

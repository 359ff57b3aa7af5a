"""What is measured as it happens, for `/metrics`. What is a total of the job comes from `Progress` instead."""

from prometheus_client import CollectorRegistry

from diloco_trainer.wire.families import counter, histogram


class Measures:
    """Observations of one process; they start at zero with it, as Prometheus expects. Callable on any thread."""

    def __init__(self, job_name: str, job_namespace: str) -> None:
        self.registry = CollectorRegistry()
        self.job = (job_name, job_namespace)
        self._seconds = histogram("diloco_outer_step_seconds", self.registry).labels(*self.job)
        self._participants = histogram("diloco_outer_step_participants", self.registry).labels(*self.job)
        self._staleness = histogram("diloco_update_staleness_steps", self.registry)
        self._transfers = histogram("diloco_sync_transfer_seconds", self.registry)
        self._fenced = counter("diloco_fenced_updates_total", self.registry)

    def outer_step(self, seconds: float, participants: int) -> None:
        self._seconds.observe(seconds)
        self._participants.observe(participants)

    def merged(self, site: str, staleness: int) -> None:
        """A contribution from a site was merged, its base that many versions old."""
        self._staleness.labels(*self.job, site).observe(staleness)

    def transferred(self, site: str, direction: str, seconds: float) -> None:
        """A fragment went `up` from a Learner of a site, or `down` to one."""
        self._transfers.labels(*self.job, site, direction).observe(seconds)

    def fenced(self, site: str) -> None:
        """A contribution of a fenced incarnation was refused."""
        self._fenced.labels(*self.job, site).inc()

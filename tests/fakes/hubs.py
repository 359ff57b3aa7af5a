"""A hub in memory."""

from diloco_api.names import FINALIZER
from diloco_api.status import JobStatus
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.hub import FinalizerEdit, HubConflict, HubError, HubOutdated

KEY = b"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"


class FakeHub:
    """One job. `refuse` lets the next writes fail, `mute` all events; where the job is `changing`, somebody else writes
    it between our reading and our writing. `writes` and `events` are what happened.
    """

    def __init__(self, job: DiLoCoJob) -> None:
        self.job: DiLoCoJob | None = job.model_copy(
            update={"metadata": job.metadata.model_copy(update={"resource_version": "1", "generation": 1})}
        )
        self.writes: list[JobStatus] = []
        self.events: list[tuple[str, str, str]] = []
        self.finalizer_edits: list[str] = []
        self.refuse = 0
        self.drops = ""
        """What a CRD that is too old does."""
        self.trials: list[JobStatus] = []
        self.mute = False
        self.changing = False

    async def read_job(self) -> DiLoCoJob | None:
        return self.job

    async def read_key(self) -> bytes:
        """Asked for once the job was read."""
        if self.changing and self.job is not None:
            version = str(int(self.job.metadata.resource_version) + 1)
            metadata = self.job.metadata.model_copy(update={"resource_version": version})
            self.job = self.job.model_copy(update={"metadata": metadata})
        return KEY

    async def commit_status(self, job: DiLoCoJob, status: JobStatus) -> DiLoCoJob:
        if self.refuse:
            self.refuse -= 1
            raise HubError("made to fail")
        if self.job is None or self.job.metadata.resource_version != job.metadata.resource_version:
            raise HubConflict("has changed since it was read")
        version = str(int(self.job.metadata.resource_version) + 1)
        metadata = self.job.metadata.model_copy(update={"resource_version": version})
        self.job = self.job.model_copy(update={"status": status, "metadata": metadata})
        self.writes.append(status)
        if self.drops:
            raise HubOutdated(self.drops, self.job)
        return self.job

    async def would_drop(self, job: DiLoCoJob, status: JobStatus) -> str:
        self.trials.append(status)
        return self.drops

    async def edit_finalizer(self, job: DiLoCoJob, edit: FinalizerEdit) -> None:
        if self.job is None or self.job.metadata.resource_version != job.metadata.resource_version:
            raise HubConflict("has changed since it was read")
        self.finalizer_edits.append(edit)
        version = str(int(self.job.metadata.resource_version) + 1)
        finalizers = [FINALIZER] if edit == "add" else []
        changes = {"resource_version": version, "finalizers": finalizers}
        self.job = self.job.model_copy(update={"metadata": self.job.metadata.model_copy(update=changes)})

    async def emit_event(self, job: DiLoCoJob, kind: str, reason: str, message: str) -> None:
        if self.mute:
            raise HubError("no event can be told")
        self.events.append((kind, reason, message))

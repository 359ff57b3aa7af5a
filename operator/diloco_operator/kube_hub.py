"""One job on an API server: read, status, finalizer, Events, root key. Decides nothing about the job.

The status is a merge patch of what differs, nulls for what is gone, guarded by the resource version that was read;
fields of a newer operator are left alone. What the server then holds is compared with what was sent: a CRD older than
the operator drops fields silently, and acting on such a status would undo what it cannot remember.
"""

import base64
import logging
import secrets
import time
from collections.abc import Callable

from pydantic import ValidationError

from diloco_api import names
from diloco_api.states import ConditionType, Reason
from diloco_api.status import JobStatus
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.api import JSON_PATCH, MERGE_PATCH, Api, ApiError, Document, JobRef, core_path, find
from diloco_operator.event_log import EventLog
from diloco_operator.hub import FinalizerEdit, HubConflict, HubError, HubInvalid, HubOutdated
from diloco_operator.job_document import for_teardown, parse
from diloco_operator.planning.conditions import with_condition
from diloco_operator.status_patch import merge_patch, missing

log = logging.getLogger(__name__)

KEY_FIELD = "key"
BELIEVED_SECONDS = 4.0
"""Less than the time between two looks that nothing asked for."""
_KEY_BYTES = 32
_LET_GO = (
    "where its namespace is being deleted, the operator's Role there went first; to let the job go: "
    """kubectl patch dilocojob {ref.name} -n {ref.namespace} --type=merge -p '{{"metadata":{{"finalizers":null}}}}'"""
)


class KubeHub:
    """One job. Its key is kept in memory, since its Secret may go before the job does."""

    def __init__(
        self,
        api: Api,
        ref: JobRef,
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._now = now
        self._ref = ref
        self._clock = clock
        self._raw: Document = {}
        self._job: DiLoCoJob | None = None
        """As it was read or written last; None when it may be another by now."""
        self._read_at = 0.0
        self._changes = 0
        self._key = b""
        self._events = EventLog(api, ref)

    def changed(self) -> None:
        """Somebody has told of a change of the job; what is just being read or written may be older."""
        self._job = None
        self._changes += 1

    async def read_job(self) -> DiLoCoJob | None:
        """None also when a new job has taken the name. A job that cannot be read is told so in its status.

        Nobody having told of a change, what was read or written a moment ago holds: writes are guarded all the same.
        """
        if self._job is not None and self._clock() - self._read_at < BELIEVED_SECONDS:
            return self._job
        self._read_at, changes = self._clock(), self._changes
        try:
            found = await find(self._api, self._ref.path)
        except ApiError as error:
            if error.status == 403 and (
                not self._raw or names.FINALIZER in self._raw["metadata"].get("finalizers", [])
            ):
                raise HubError(f"job {self._ref}: {error}; {_LET_GO.format(ref=self._ref)}") from error
            raise
        if found is None or found["metadata"].get("uid") != self._ref.uid:
            return None
        self._raw = found
        try:
            job = parse(found)
            self._job = job if changes == self._changes else None
            return job
        except HubInvalid as error:
            if "deletionTimestamp" in found["metadata"]:
                return await self._read_for_teardown(found)
            await self._tell_invalid(str(error))
            raise

    async def read_key(self) -> bytes:
        """From the job's root Secret, POST-created once; empty when a job that is being deleted has none any more."""
        if self._key:
            return self._key
        path = core_path(self._ref.namespace, "secrets", self._secret_name)
        found = await find(self._api, path)
        if found is None:
            if "deletionTimestamp" in self._raw.get("metadata", {}):
                return b""
            found = await self._create_key(path)
        self._check_owner(found)
        self._key = base64.b64decode(found.get("data", {}).get(KEY_FIELD, ""))
        if len(self._key) < _KEY_BYTES:
            self._key = b""
            raise HubError(f"Secret {self._secret_name}: holds no key of the job")
        return self._key

    async def commit_status(self, job: DiLoCoJob, status: JobStatus) -> DiLoCoJob:
        """The job as written. HubConflict when it has changed; HubOutdated when the CRD dropped fields."""
        changes = self._changes
        written = await self._patch(f"{self._ref.path}/status", self._change(job, status), MERGE_PATCH)
        problem = _dropped(status, written)
        if problem:
            raise HubOutdated(problem, parse(written))
        committed, self._read_at = parse(written), self._clock()
        self._job = committed if changes == self._changes else None
        return committed

    async def would_drop(self, job: DiLoCoJob, status: JobStatus) -> str:
        """Asks the server for a dry run."""
        path, change = f"{self._ref.path}/status", self._change(job, status)
        answer = await self._api.request("PATCH", path, change, query={"dryRun": "All"}, content_type=MERGE_PATCH)
        return _dropped(status, answer)

    def _change(self, job: DiLoCoJob, status: JobStatus) -> Document:
        """The patch from the status that was read to this one."""
        same = self._raw.get("metadata", {}).get("resourceVersion") == job.metadata.resource_version
        stored = self._raw.get("status", {}) if same else {}
        return {
            "metadata": {"resourceVersion": job.metadata.resource_version},
            "status": merge_patch(stored, _dump(job.status), _dump(status)),
        }

    async def edit_finalizer(self, job: DiLoCoJob, edit: FinalizerEdit) -> None:
        """As the job was read, or HubConflict; other controllers' finalizers stay."""
        metadata = self._raw.get("metadata", {})
        if metadata.get("resourceVersion") != job.metadata.resource_version:
            raise HubConflict(f"job {self._ref}: has changed since it was read")
        present = metadata.get("finalizers", [])
        if (names.FINALIZER in present) == (edit == "add"):
            return
        change: Document = {"op": edit, "path": "/metadata/finalizers"}
        if edit == "remove":
            change["path"] += f"/{present.index(names.FINALIZER)}"
        elif present:
            change |= {"path": "/metadata/finalizers/-", "value": names.FINALIZER}
        else:
            change["value"] = [names.FINALIZER]
        version = {"op": "test", "path": "/metadata/resourceVersion", "value": job.metadata.resource_version}
        await self._patch(self._ref.path, [version, change], JSON_PATCH)

    async def emit_event(self, job: DiLoCoJob, kind: str, reason: str, message: str) -> None:
        await self._events.tell(kind, reason, message)

    async def _read_for_teardown(self, found: Document) -> DiLoCoJob:
        """Sites that cannot be read hold the end up no more than others that cannot be reached: they are told."""
        job, unreadable = for_teardown(found)
        label = f"{names.LABEL_JOB_UID}={self._ref.uid}"
        for name in unreadable:
            text = f"site {name} cannot be read in the spec: what the job has there stays (label {label})"
            try:
                await self._events.tell("Warning", "SiteLeftBehind", text)
            except HubError as error:
                log.warning("%s; it was: %s", error, text)
        return job

    async def _tell_invalid(self, problem: str) -> None:
        metadata = self._raw["metadata"]
        try:
            status = JobStatus.model_validate(self._raw.get("status", {}), extra="ignore")
        except ValidationError:
            status = JobStatus()
        conditions = with_condition(
            status.conditions, ConditionType.ACCEPTED, False, Reason.INVALID_SPEC,
            now=self._now(), generation=metadata.get("generation", 0), message=problem,
        )  # fmt: skip
        told = status.model_copy(update={"conditions": list(conditions)})
        if told == status:
            return
        patch = {
            "metadata": {"resourceVersion": metadata["resourceVersion"]},
            "status": merge_patch(self._raw.get("status", {}), _dump(status), _dump(told)),
        }
        await self._patch(f"{self._ref.path}/status", patch, MERGE_PATCH)

    @property
    def resource_version(self) -> str:
        """The newest that was read or written here."""
        return str(self._raw.get("metadata", {}).get("resourceVersion", ""))

    @property
    def _secret_name(self) -> str:
        return names.object_name(self._ref.name, self._ref.uid, "root")

    async def _create_key(self, path: str) -> Document:
        owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": self._ref.name, "uid": self._ref.uid}
        # No label job-uid: what carries it is planned for, and would be removed as surplus.
        labels = {names.LABEL_JOB_NAME: self._ref.name, "app.kubernetes.io/managed-by": "diloco-operator"}
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": self._secret_name, "labels": labels, "ownerReferences": [owner]},
            "data": {KEY_FIELD: base64.b64encode(secrets.token_hex(_KEY_BYTES).encode()).decode()},
        }
        try:
            return await self._api.request("POST", core_path(self._ref.namespace, "secrets"), secret)
        except ApiError as error:
            if error.status != 409:
                raise
        found = await find(self._api, path)  # another operator was quicker: its key is the job's
        if found is None:
            raise HubConflict(f"Secret {self._secret_name}: was made and removed at this moment")
        return found

    def _check_owner(self, secret: Document) -> None:
        """A Secret somebody laid down beforehand would be a key somebody knows."""
        owners = [owner.get("uid") for owner in secret["metadata"].get("ownerReferences", [])]
        if self._ref.uid not in owners:
            raise HubError(f"Secret {self._secret_name}: is not the job's own")

    async def _patch(self, path: str, patch: object, content_type: str) -> Document:
        self._job = None
        try:
            self._raw = await self._api.request("PATCH", path, patch, content_type=content_type)
            return self._raw
        except ApiError as error:
            # A failed `test` of a JSON patch is answered with 422.
            if error.status == 409 or (content_type == JSON_PATCH and error.status == 422):
                raise HubConflict(f"job {self._ref}: has changed since it was read") from error
            raise


def _dropped(status: JobStatus, written: Document) -> str:
    """What the server did to the first field it has not kept; empty: it has kept all."""
    first = next(missing(_dump(status), written.get("status", {})), None)
    return "" if first is None else f"drops {first}"


def _dump(status: JobStatus) -> Document:
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)

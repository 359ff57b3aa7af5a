"""From what an API server holds to a job; of a job that is being deleted, as much of it as removal needs.

A site that cannot be read in the spec may still be known by its row in the status. One that is in neither is named.
Fields of a newer CRD are ignored: an operator that has come back lets go of no job for one.
"""

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from diloco_api.errors import first_problem
from diloco_api.sites import SiteSpec
from diloco_api.status import JobStatus, SiteStatus
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.api import Document
from diloco_operator.hub import HubError, HubInvalid

_SITE_FIELDS = ("name", "kubeconfigSecretRef", "namespace")
_ROW_FIELDS = ("name", "clusterUID", "secretName", "namespace")
"""How a site is reached."""


def parse(found: Document) -> DiLoCoJob:
    """HubInvalid names the first field that cannot be read."""
    try:
        return DiLoCoJob.model_validate(found, extra="ignore")
    except ValidationError as error:
        raise HubInvalid(first_problem(error)) from error


def for_teardown(found: Document) -> tuple[DiLoCoJob, list[str]]:
    """A job that must go although it cannot be read, and the names of sites nobody can tell how to reach."""
    spec: Document = {"train": {"data": {"uri": "none"}}, "learners": {"replicas": 1}}
    sites, unreadable = _readable_sites(found)
    status = _readable_status(found.get("status"))
    known = {row.name for row in status.sites if row.secret_name}
    stand_in = {"spec": spec | {"sites": sites}, "status": status.model_dump(mode="json", by_alias=True)}
    try:
        job = parse({**found, **stand_in})
    except HubInvalid as error:
        raise HubError(f"a job that is being deleted cannot be read: {error}") from error
    return job, [name for name in unreadable if name not in known]


def _readable_sites(found: Document) -> tuple[list[Document], list[str]]:
    """(what can be used, names of the rest). One by one: a site that makes no sense does not hide the others."""
    spec = found.get("spec")
    listed = spec.get("sites") if isinstance(spec, dict) else None
    if listed is not None and not isinstance(listed, list):
        return [], ["(spec.sites is no list)"]
    sites, unreadable = [], []
    for number, site in enumerate(listed or []):
        try:
            reached = _parts(site, _SITE_FIELDS)
            SiteSpec.model_validate(reached, extra="ignore")
        except (ValidationError, TypeError):
            name = site.get("name") if isinstance(site, dict) else None
            unreadable.append(str(name or f"number {number}")[:63])
        else:
            sites.append(reached)
    return sites, unreadable


def _readable_status(status: Any) -> JobStatus:
    """All of it, or else of its sites how they are reached."""
    try:
        return JobStatus.model_validate(status or {}, extra="ignore")
    except ValidationError:
        rows = status.get("sites") if isinstance(status, dict) else None
        return JobStatus(sites=list(_readable_rows(rows if isinstance(rows, list) else [])))


def _readable_rows(rows: list[Any]) -> Iterator[SiteStatus]:
    for row in rows:
        try:
            yield SiteStatus.model_validate(_parts(row, _ROW_FIELDS), extra="ignore")
        except (ValidationError, TypeError):
            continue


def _parts(document: Any, fields: tuple[str, ...]) -> Document:
    """TypeError when it is no object."""
    if not isinstance(document, dict):
        raise TypeError("not an object")
    return {field: document[field] for field in fields if field in document}

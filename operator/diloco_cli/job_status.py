"""`diloco status`: jobs of a cluster as their status tells of them. Reads and draws; decides nothing."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from diloco_api import names
from diloco_api.states import ConditionType
from diloco_api.status import Condition, JobStatus
from diloco_cli import wording
from diloco_cli.cluster import BadCredentials, Cluster, ClusterError, Document
from diloco_cli.screen import STATE_STYLES

_PHASE_STYLES = {"Running": "green", "Complete": "bold green", "Degraded": "yellow", "Failed": "bold red",
                 "Rejected": "bold red"}  # fmt: skip
_BAD_WHEN_TRUE = {ConditionType.DEGRADED, ConditionType.FAILED}


def jobs_path(namespace: str | None, name: str = "") -> str:
    scope = f"/namespaces/{namespace}" if namespace is not None else ""
    return f"/apis/{names.API_VERSION}{scope}/{names.PLURAL}" + (f"/{name}" if name else "")


def read_job(hub: Cluster, namespace: str, name: str) -> Document:
    try:
        return hub.request("GET", jobs_path(namespace, name))
    except ClusterError as error:
        if error.status != 404:
            raise
        if "could not find the requested resource" in str(error) or "page not found" in str(error):
            raise ClusterError(f"{hub.server}: {names.KIND} is not installed there", 404) from error
        raise BadCredentials(f"there is no job {name} in namespace {namespace}") from error


def status_of_job(job: Document) -> JobStatus:
    return JobStatus.model_validate(job.get("status") or {}, extra="ignore")


def draw_jobs(jobs: Sequence[Document], with_namespace: bool) -> RenderableType:
    """A row per job."""
    titles = ("job", "phase", "progress", "Learners", "sites", "rounds", "left", "goodput")
    table = _table(*(["namespace"] if with_namespace else []), *titles)
    for job in sorted(jobs, key=lambda one: (one["metadata"]["namespace"], one["metadata"]["name"])):
        status, metadata = status_of_job(job), job["metadata"]
        progress = status.progress
        table.add_row(
            *([metadata["namespace"]] if with_namespace else []),
            metadata["name"],
            _phase(status),
            f"{progress.percent} %" if progress else "-",
            status.learners.summary or "-",
            status.site_summary or "-",
            str(progress.outer_rounds) if progress else "-",
            wording.duration(progress.eta_seconds if progress else None),
            _share(status.goodput.capacity),
        )
    return table


def draw_job(job: Document) -> RenderableType:
    """All there is to know of one job."""
    status = status_of_job(job)
    parts: list[RenderableType] = [Text.assemble((job["metadata"]["name"], "bold"), ": ", _phase(status))]
    if status.progress is not None:
        progress, goodput = status.progress, status.goodput
        parts.append(Text(
            f"{progress.percent} %, {wording.duration(progress.eta_seconds)} left; round {progress.outer_rounds}, "
            f"{progress.outer_steps} outer steps; {wording.count(progress.tokens)} tokens merged; goodput "
            f"{_share(goodput.capacity)} / {_share(goodput.accepted)} / {_share(goodput.uptime)}; "
            f"as of {progress.last_updated_time}"
        ))  # fmt: skip
    parts += [_condition(condition) for condition in status.conditions if _is_news(condition)]
    if status.sites:
        parts += [Text(), _sites(status)]
    if status.learner_statuses:
        parts += [Text(), _learners(status)]
    return Group(*parts)


def _sites(status: JobStatus) -> RenderableType:
    table = _table("site", "desired", "ready", "failed", "reason", "last contact", right=("desired", "ready", "failed"))
    for site in status.sites:
        reasons = [
            f"{one.type}={one.status} {one.reason}: {one.message}" for one in site.conditions if one.status != "True"
        ]
        reason = "; ".join(reasons) or site.reason
        table.add_row(site.name, str(site.desired), str(site.ready), str(site.failed),
                      Text(reason, style="red" if reason else ""), site.last_contact_time or "-")  # fmt: skip
    return table


def _learners(status: JobStatus) -> RenderableType:
    table = _table("Learner", "state", "site", "incarnation", "restarts", "pod", "",
                   right=("Learner", "incarnation", "restarts"))  # fmt: skip
    for row in status.learner_statuses:
        note = ": ".join(part for part in (row.reason, row.message) if part)
        table.add_row(str(row.index), Text(row.state, style=STATE_STYLES.get(row.state, "")), row.site,
                      str(row.incarnation), str(row.restarts), row.pod_name, Text(note, style="dim"))  # fmt: skip
    return table


def _is_news(condition: Condition) -> bool:
    """What is not as everybody would wish."""
    good = "False" if condition.type in _BAD_WHEN_TRUE else "True"
    return condition.status != good or condition.type == ConditionType.COMPLETE


def _condition(condition: Condition) -> Text:
    text = f"{condition.type}={condition.status} {condition.reason}"
    return Text(f"{text}: {condition.message}" if condition.message else text, style="yellow")


def _phase(status: JobStatus) -> Text:
    phase = status.phase or "not seen by an operator yet"
    return Text(phase, style=_PHASE_STYLES.get(phase, "yellow"))


def _share(ratio: str) -> str:
    return wording.share(float(ratio) if ratio else None)


def _table(*titles: str, right: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for title in titles:
        table.add_column(title, justify="right" if title in right else "left", overflow="fold")
    return table

"""The operator itself: who is at work, whether its passes succeed in time, whether its watch is alive."""

from grafana_foundation_sdk.builders import dashboard as builders

from dashboards.kit import GREEN, ORANGE, RED, PanelBuilder, Query, frame, lines, number, rows, states
from dashboards.words import YES_NO

UID = "diloco-operator"
_RATE = "[$__rate_interval]"


def build() -> builders.Dashboard:
    made = frame(UID, "Operator", __doc__, [])
    for row, panels in (("Now", [*_now(), *_processes()]), ("Passes", _passes()), ("Watch and requests", _watch())):
        made.with_row(builders.Row(row))
        for panel in panels:
            made.with_panel(panel)
    return made


def _now() -> list[PanelBuilder]:
    return [
        number(
            "At work",
            "A process holds the Lease.",
            Query("max(diloco_lease_held) or vector(0)"),
            names=YES_NO,
            steps=((None, RED), (1, GREEN)),
        ),
        number("Processes", "Scraped ones; those without the Lease wait.", Query("count(diloco_build_info)")),
        number(
            "Jobs",
            "That the operator looks after.",
            Query("count(max by (diloco_job, job_namespace) (diloco_job_info))"),
        ),
        number(
            "Failed passes, 1 h",
            "Each is tried again.",
            Query('sum(increase(diloco_reconcile_total{result="failed"}[1h])) or vector(0)'),
            steps=((None, GREEN), (1, ORANGE), (10, RED)),
        ),
        number(
            "Oldest wake-up",
            "Longest wait of a job for its next pass.",
            Query("max(diloco_queue_oldest_seconds)"),
            unit="s",
            steps=((None, GREEN), (5, ORANGE), (60, RED)),
        ),
        number(
            "Watch behind",
            "For how long a list has shown of a job what the watch of jobs has not told.",
            Query("max(diloco_watch_behind_seconds)"),
            unit="s",
            steps=((None, GREEN), (30, ORANGE), (60, RED)),
        ),
    ]


def _processes() -> list[PanelBuilder]:
    return [
        states(
            "Who holds the Lease",
            "By pod.",
            Query("max by (instance) (diloco_lease_held)", "{{instance}}"),
            names=YES_NO,
            width=12,
            height=5,
        ),
        rows(
            "Versions",
            "Of the processes that are scraped.",
            {" ": Query("max by (instance, version, python, kopf) (diloco_build_info)")},
            keys={"instance": "Process", "version": "Operator", "python": "Python", "kopf": "kopf"},
            width=12,
            height=5,
        ),
    ]


def _passes() -> list[PanelBuilder]:
    buckets = f"sum by (le) (rate(diloco_reconcile_seconds_bucket{_RATE}))"
    return [
        lines(
            "Passes",
            "Over jobs, by how they ended.",
            Query(f"sum by (result) (rate(diloco_reconcile_total{_RATE}))", "{{result}}"),
            unit="ops",
            colors={"done": GREEN, "failed": RED},
            width=8,
        ),
        lines(
            "Duration of a pass",
            "Of those that were done.",
            Query(f"histogram_quantile(0.5, {buckets})", "half of them below"),
            Query(f"histogram_quantile(0.95, {buckets})", "95 % below"),
            unit="s",
            width=8,
        ),
        lines(
            "Queue",
            "Jobs with an unserved wake-up, and how long the oldest waits.",
            Query("max(diloco_queue_depth)", "jobs"),
            Query("max(diloco_queue_oldest_seconds)", "oldest, seconds"),
            width=8,
        ),
    ]


def _watch() -> list[PanelBuilder]:
    buckets = f"sum by (le, site) (rate(diloco_site_api_request_seconds_bucket{_RATE}))"
    return [
        lines(
            "Watch of jobs behind",
            "A list of all jobs. At 90 s the operator fails its liveness probe.",
            Query("max(diloco_watch_behind_seconds)", "behind"),
            unit="s",
            width=8,
        ),
        lines(
            "Requests to sites that failed",
            "By site and answer.",
            Query(
                f'sum by (site, code) (rate(diloco_site_api_requests_total{{code!~"2.."}}{_RATE}))', "{{site}} {{code}}"
            ),
            unit="reqps",
            width=8,
        ),
        lines(
            "Duration of requests to sites",
            "95 % take less.",
            Query(f"histogram_quantile(0.95, {buckets})", "{{site}}"),
            unit="s",
            width=8,
        ),
    ]

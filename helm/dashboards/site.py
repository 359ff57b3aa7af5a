"""One site over all jobs: whether it answers and how fast, what its Learners do, what its link carries."""

from grafana_foundation_sdk.builders import dashboard as builders

from dashboards.kit import GREEN, ORANGE, RED, PanelBuilder, Query, choice, frame, lines, number, states
from dashboards.words import (
    API_OF_SITE,
    COLOR_OF_STATE,
    ONE_SITE,
    PAIR,
    SHARE_STEPS,
    YES_NO,
    happened,
    now,
    per_second,
    quantile,
)

UID = "diloco-site"
_NAME = "{{job_namespace}}/{{diloco_job}}"


def build() -> builders.Dashboard:
    made = frame(
        UID,
        "Site",
        __doc__,
        [
            choice("namespace", "Namespace", "label_values(diloco_job_info, job_namespace)", everything=True),
            choice("site", "Site", 'label_values(diloco_site_reachable{job_namespace=~"$namespace"}, site)'),
        ],
    )
    for row, panels in (
        ("Reachability", [*_reach(), _reach_over_time()]),
        ("API server", _requests()),
        ("Learners", _learners()),
    ):
        made.with_row(builders.Row(row))
        for panel in panels:
            made.with_panel(panel)
    return made


def _reach() -> list[PanelBuilder]:
    day = 86400
    return [
        number(
            "Reachable",
            "In the last pass of every job.",
            Query(f"min(diloco_site_reachable{{{ONE_SITE}}})"),
            names=YES_NO,
            steps=((None, RED), (1, GREEN)),
        ),
        number(
            "Last contact",
            "How long ago.",
            Query(f"time() - min({now('diloco_site_last_contact_timestamp_seconds', ONE_SITE, PAIR)})"),
            unit="s",
            steps=((None, GREEN), (60, ORANGE), (600, RED)),
        ),
        number(
            "Credentials end in",
            "Of the kubeconfig, where it says so.",
            Query(f"min(diloco_credentials_expiry_timestamp_seconds{{{ONE_SITE}}}) - time()"),
            unit="s",
            steps=((None, RED), (day, ORANGE), (7 * day, GREEN)),
        ),
        number(
            "Learners here", "Wanted ones.", Query(f"sum({now('diloco_job_learners', ONE_SITE, f'{PAIR}, state')})")
        ),
        number(
            "Goodput here, 1 h",
            "Share of the time of this site's devices that trained.",
            Query(
                f'sum(diloco:site_state_seconds:rate1h{{{ONE_SITE}, state="training"}})'
                f" / sum(diloco:site_state_seconds:rate1h{{{ONE_SITE}}})"
            ),
            unit="percentunit",
            steps=SHARE_STEPS,
        ),
        number(
            "Synchronizer traffic",
            "Payload both ways.",
            Query(f"sum(rate(diloco_sync_bytes_total{{{ONE_SITE}}}[5m]))"),
            unit="Bps",
        ),
    ]


def _reach_over_time() -> PanelBuilder:
    return states(
        "Reachable, by job",
        "As each job's passes found it.",
        Query(now("diloco_site_reachable", ONE_SITE, PAIR), _NAME),
        names=YES_NO,
        width=24,
        height=5,
    )


def _requests() -> list[PanelBuilder]:
    return [
        lines(
            "Requests by answer",
            "HTTP status; `none` where there was no answer.",
            Query(per_second("diloco_site_api_requests_total", API_OF_SITE, "code"), "{{code}}"),
            unit="reqps",
            width=8,
        ),
        lines(
            "Requests by verb",
            "HTTP method.",
            Query(per_second("diloco_site_api_requests_total", API_OF_SITE, "verb"), "{{verb}}"),
            unit="reqps",
            width=8,
        ),
        lines(
            "Duration of requests",
            "Watches count until they begin.",
            Query(quantile(0.5, "diloco_site_api_request_seconds", API_OF_SITE), "half of them below"),
            Query(quantile(0.95, "diloco_site_api_request_seconds", API_OF_SITE), "95 % below"),
            unit="s",
            width=8,
        ),
    ]


def _learners() -> list[PanelBuilder]:
    return [
        lines(
            "Goodput, by job",
            "Share of the time of each job's devices here that trained.",
            Query(f"diloco:site_goodput:ratio_rate5m{{{ONE_SITE}}}", _NAME),
            unit="percentunit",
        ),
        lines(
            "Where the capacity goes",
            "Devices of all jobs here by state.",
            Query(f"sum by (state) (diloco:site_state_seconds:rate5m{{{ONE_SITE}}}) > 0", "{{state}}"),
            stacked=True,
            colors=COLOR_OF_STATE,
        ),
        lines(
            "Pods by phase",
            "As the operator sees them.",
            Query(
                f"count by (phase) ({now('diloco_pod_status', ONE_SITE, f'{PAIR}, role, learner, phase')})", "{{phase}}"
            ),
            stacked=True,
            width=8,
        ),
        lines(
            "Learners that failed or were lost",
            "By reason.",
            Query(
                happened("diloco_learner_restarts_total", ONE_SITE, "reason"),
                "{{reason}}",
            ),
            bars=True,
            width=8,
        ),
        lines(
            "Bytes",
            "Payload from (up) and to (down) the Learners here.",
            Query(per_second("diloco_sync_bytes_total", ONE_SITE, "direction"), "{{direction}}"),
            unit="Bps",
            width=8,
        ),
    ]

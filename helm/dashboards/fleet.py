"""All jobs: which are well, what became of the capacity, where the devices are, what crosses the links."""

from grafana_foundation_sdk.builders import dashboard as builders

from dashboards.kit import GREEN, RED, PanelBuilder, Query, choice, frame, lines, number, rows
from dashboards.words import COLOR_OF_STATE, FLEET, PAIR, happened, now, per_second

UID = "diloco-fleet"
_JOB_LINK = (
    "/d/diloco-job?var-datasource=${datasource}"
    "&var-namespace=${__data.fields.Namespace}&var-job=${__data.fields.Job}&${__url_time_range}"
)


def build() -> builders.Dashboard:
    namespaces = choice("namespace", "Namespace", "label_values(diloco_job_info, job_namespace)", everything=True)
    made = frame(UID, "Fleet", __doc__, [namespaces])
    for row, panels in (("Now", _now()), ("Goodput", _goodput()), ("Learners and links", _learners())):
        made.with_row(builders.Row(row))
        for panel in panels:
            made.with_panel(panel)
    return made


def _now() -> list[PanelBuilder]:
    desired = now("diloco_job_learners_desired", FLEET, PAIR)
    training = f'max by ({PAIR}, site) (diloco_job_learners{{{FLEET}, state="training"}})'
    quorum = f'max by ({PAIR}) (diloco_job_condition{{{FLEET}, condition="QuorumMet", status="True"}})'
    degraded = f'max by ({PAIR}) (diloco_job_condition{{{FLEET}, condition="Degraded", status="True"}})'
    return [
        number("Jobs that run", "Jobs that want Learners now.", Query(f"count({desired} > 0)")),
        number("Learners wanted", "Of all jobs.", Query(f"sum({desired})")),
        number("Learners training", "Of those wanted.", Query(f"sum({training})"), steps=((None, GREEN),)),
        number(
            "Devices wanted",
            "GPUs of all wanted Learners, or processes where they have none.",
            Query(f"sum({now('diloco_learner_weight', FLEET, f'{PAIR}, learner')})"),
        ),
        number(
            "Sites that cannot be reached",
            "Of all jobs.",
            Query(f"count({now('diloco_site_reachable', FLEET, f'{PAIR}, site')} == 0) or vector(0)"),
            steps=((None, GREEN), (1, RED)),
        ),
        number(
            "Alerts",
            "Alerts of DiLoCo that fire.",
            Query('count(ALERTS{alertname=~"DiLoCo.+", alertstate="firing"}) or vector(0)'),
            steps=((None, GREEN), (1, RED)),
        ),
        rows(
            "Jobs",
            "Goodput of the last hour. The name leads to the job.",
            {
                "Wanted": Query(desired),
                "Training": Query(f"sum by ({PAIR}) ({training})"),
                "Quorum": Query(quorum),
                "Degraded": Query(degraded),
                "Capacity": Query(now("diloco:job_capacity_goodput:ratio_rate1h", FLEET, PAIR)),
                "Accepted": Query(now("diloco:job_accepted_goodput:ratio_rate1h", FLEET, PAIR)),
                "Uptime": Query(now("diloco:job_uptime:ratio_rate1h", FLEET, PAIR)),
            },
            keys={"diloco_job": "Job", "job_namespace": "Namespace"},
            units=dict.fromkeys(("Capacity", "Accepted", "Uptime"), "percentunit")
            | dict.fromkeys(("Quorum", "Degraded"), "bool_yes_no"),
            link=_JOB_LINK,
        ),
    ]


def _goodput() -> list[PanelBuilder]:
    name = "{{job_namespace}}/{{diloco_job}}"
    share = "percentunit"
    return [
        lines(
            "Capacity goodput",
            "Share of each job's wanted capacity that trained in the last five minutes.",
            Query(f"diloco:job_capacity_goodput:ratio_rate5m{{{FLEET}}}", name),
            unit=share,
            width=8,
        ),
        lines(
            "Accepted goodput",
            "Tokens merged, over those undisturbed Learners would have trained.",
            Query(f"diloco:job_accepted_goodput:ratio_rate5m{{{FLEET}}}", name),
            unit=share,
            width=8,
        ),
        lines(
            "Uptime",
            "Share of time in which outer steps came within their deadline.",
            Query(f"diloco:job_uptime:ratio_rate5m{{{FLEET}}}", name),
            unit=share,
            width=8,
        ),
        lines(
            "Badput by state",
            "Devices of all jobs that did not train, by what they did instead.",
            Query(f"sum by (state) (diloco:job_badput_seconds:rate5m{{{FLEET}}}) > 0", "{{state}}"),
            stacked=True,
            colors=COLOR_OF_STATE,
        ),
        lines(
            "Devices that train, by site",
            "Devices of all jobs in state training.",
            Query(f'sum by (site) (diloco:site_state_seconds:rate5m{{{FLEET}, state="training"}}) > 0', "{{site}}"),
            stacked=True,
        ),
    ]


def _learners() -> list[PanelBuilder]:
    return [
        lines(
            "Learners by state",
            "Wanted Learners of all jobs by what they are doing.",
            Query(f"sum by (state) ({now('diloco_job_learners', FLEET, f'{PAIR}, site, state')}) > 0", "{{state}}"),
            stacked=True,
            colors=COLOR_OF_STATE,
        ),
        lines(
            "Bytes over the links, by site",
            "Payload from (up) and to (down) the Learners of each site.",
            Query(per_second("diloco_sync_bytes_total", FLEET, "site, direction"), "{{site}} {{direction}}"),
            unit="Bps",
        ),
        lines(
            "Tokens merged, by job",
            "A second.",
            Query(per_second("diloco_tokens_merged_total", FLEET, PAIR), "{{job_namespace}}/{{diloco_job}}"),
        ),
        lines(
            "Learners that failed or were lost",
            "By site and reason.",
            Query(
                happened("diloco_learner_restarts_total", FLEET, "site, reason"),
                "{{site}} {{reason}}",
            ),
            bars=True,
        ),
    ]

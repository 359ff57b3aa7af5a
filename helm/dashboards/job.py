"""One job: what became of its capacity, what each Learner does, how outer steps go, what it learns."""

from grafana_foundation_sdk.builders import dashboard as builders

from dashboards import job_training
from dashboards.kit import (
    BLUE,
    GREEN,
    ORANGE,
    RED,
    YELLOW,
    Marks,
    PanelBuilder,
    Query,
    choice,
    frame,
    lines,
    number,
    states,
)
from dashboards.words import COLOR_OF_STATE, NAME_OF_STATE, ONE_JOB, SHARE_STEPS, YES_NO, happened, now, state_numbers

UID = "diloco-job"
_SHARE = "percentunit"


def build() -> builders.Dashboard:
    made = frame(
        UID,
        "Job",
        __doc__,
        [
            choice("namespace", "Namespace", "label_values(diloco_job_info, job_namespace)"),
            choice("job", "Job", 'label_values(diloco_job_info{job_namespace="$namespace"}, diloco_job)'),
        ],
    )
    for row, panels in (
        ("Goodput", [*_goodput(), *_goodput_over_time()]),
        ("Learners", _learners()),
        ("Outer steps", job_training.outer_steps()),
        ("Model", job_training.model()),
        ("Links", job_training.links()),
        ("Devices (where dcgm-exporter is scraped with this Prometheus)", job_training.devices()),
    ):
        made.with_row(builders.Row(row))
        for panel in panels:
            made.with_panel(panel)
    restarted = happened("diloco_learner_restarts_total", ONE_JOB, "site, reason", "2m")
    moved = happened("diloco_learner_relocations_total", ONE_JOB, "from_site, to_site", "2m")
    made.annotation(Marks("Restarts", ORANGE, restarted, "Learner lost at {{site}}: {{reason}}"))
    made.annotation(Marks("Relocations", BLUE, moved, "Learner moved from {{from_site}} to {{to_site}}"))
    return made


def _goodput() -> list[PanelBuilder]:
    return [
        number(
            "Capacity goodput, 1 h",
            "Share of the wanted capacity that trained. Missing Learners count as not training.",
            Query(f"diloco:job_capacity_goodput:ratio_rate1h{{{ONE_JOB}}}"),
            unit=_SHARE,
            steps=SHARE_STEPS,
        ),
        number(
            "Accepted goodput, 1 h",
            "Tokens merged into the model, over those undisturbed Learners would have trained.",
            Query(f"diloco:job_accepted_goodput:ratio_rate1h{{{ONE_JOB}}}"),
            unit=_SHARE,
            steps=SHARE_STEPS,
        ),
        number(
            "Uptime, 1 h",
            "Share of time in which outer steps came within their deadline.",
            Query(f"diloco:job_uptime:ratio_rate1h{{{ONE_JOB}}}"),
            unit=_SHARE,
            steps=SHARE_STEPS,
        ),
        number(
            "Quorum met",
            "The job's condition QuorumMet.",
            Query(f'max(diloco_job_condition{{{ONE_JOB}, condition="QuorumMet", status="True"}})'),
            names=YES_NO,
            steps=((None, RED), (1, GREEN)),
        ),
        number(
            "Degraded",
            "The job's condition Degraded.",
            Query(f'max(diloco_job_condition{{{ONE_JOB}, condition="Degraded", status="True"}})'),
            names={0.0: ("no", GREEN), 1.0: ("yes", ORANGE)},
            steps=((None, GREEN), (1, ORANGE)),
        ),
        number(
            "Learners wanted", "How many the job wants now.", Query(f"max(diloco_job_learners_desired{{{ONE_JOB}}})")
        ),
    ]


def _goodput_over_time() -> list[PanelBuilder]:
    return [
        lines(
            "Goodput",
            "The three figures over the last five minutes at each point. None replaces another.",
            Query(f"diloco:job_capacity_goodput:ratio_rate5m{{{ONE_JOB}}}", "capacity"),
            Query(f"diloco:job_accepted_goodput:ratio_rate5m{{{ONE_JOB}}}", "accepted"),
            Query(f"diloco:job_uptime:ratio_rate5m{{{ONE_JOB}}}", "uptime"),
            unit=_SHARE,
            colors={"capacity": GREEN, "accepted": BLUE, "uptime": YELLOW},
        ),
        lines(
            "Where the capacity goes",
            "Wanted capacity by state: together 100 %, all but `training` is badput.",
            Query(
                f"(sum by (state) (diloco:site_state_seconds:rate5m{{{ONE_JOB}}}) > 0)"
                f" / on () group_left () sum(diloco:job_wanted_seconds:rate5m{{{ONE_JOB}}})",
                "{{state}}",
            ),
            unit=_SHARE,
            stacked=True,
            colors=COLOR_OF_STATE,
        ),
    ]


def _learners() -> list[PanelBuilder]:
    return [
        states(
            "What each Learner does",
            "The state that most of a Learner's time went into, by index.",
            Query(state_numbers(ONE_JOB), "Learner {{learner}}"),
            names=NAME_OF_STATE,
            height=9,
        ),
        lines(
            "Learners by state",
            "Wanted Learners by what they are doing.",
            Query(f"sum by (state) ({now('diloco_job_learners', ONE_JOB, 'site, state')}) > 0", "{{state}}"),
            stacked=True,
            colors=COLOR_OF_STATE,
            width=8,
        ),
        lines(
            "Restarts and relocations",
            "Incarnations that were lost or failed, and moves between sites.",
            Query(
                happened("diloco_learner_restarts_total", ONE_JOB, "site, reason"),
                "{{site}} {{reason}}",
            ),
            Query(
                happened("diloco_learner_relocations_total", ONE_JOB, "from_site, to_site"),
                "{{from_site}} → {{to_site}}",
            ),
            bars=True,
            width=8,
        ),
        lines(
            "Time to replace a Learner",
            "From the loss being seen until the successor trains, mean of the last hour.",
            Query(
                f"({happened('diloco_learner_replacement_seconds_sum', ONE_JOB, 'reason', '1h')})"
                f" / ({happened('diloco_learner_replacement_seconds_count', ONE_JOB, 'reason', '1h')})",
                "{{reason}}",
            ),
            unit="s",
            width=8,
        ),
    ]

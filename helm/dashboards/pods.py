"""Pods of all jobs at all sites, as the operator's watches see them: the hub's Prometheus cannot scrape the sites."""

from grafana_foundation_sdk.builders import dashboard as builders

from dashboards.kit import (
    BLUE,
    GRAY,
    GREEN,
    ORANGE,
    RED,
    YELLOW,
    PanelBuilder,
    Query,
    choice,
    frame,
    lines,
    number,
    rows,
    states,
)
from dashboards.words import FLEET, PAIR, now

UID = "diloco-pods"
_POD = f"{PAIR}, site, role, learner"
_PODS = now("diloco_pod_status", FLEET, f"{_POD}, phase, reason")
_TROUBLED = f'max by ({_POD}, phase, reason) (diloco_pod_status{{{FLEET}, phase!~"Running|Succeeded"}})'
_PHASES = {"Running": GREEN, "Pending": YELLOW, "Succeeded": BLUE, "Failed": RED, "Unknown": GRAY}
_NAME = "{{job_namespace}}/{{diloco_job}} {{role}} {{learner}}"


def build() -> builders.Dashboard:
    namespaces = choice("namespace", "Namespace", "label_values(diloco_job_info, job_namespace)", everything=True)
    made = frame(UID, "Pods", __doc__, [namespaces])
    for panel in (*_now(), *_over_time()):
        made.with_panel(panel)
    return made


def _now() -> list[PanelBuilder]:
    learners = f'{FLEET}, role="learner"'
    return [
        number("Pods", "Newest incarnations of Learners, and Synchronizers.", Query(f"count({_PODS})")),
        *(
            number(
                phase,
                f"Pods in phase {phase}.",
                Query(f'count(max by ({_POD}) (diloco_pod_status{{{FLEET}, phase="{phase}"}})) or vector(0)'),
                steps=((None, GRAY), (1, _PHASES[phase])),
            )
            for phase in ("Running", "Pending", "Failed", "Unknown")
        ),
        number(
            "Wanted Learners without a pod",
            "Not made yet, or given up.",
            Query(
                f"clamp_min(sum({now('diloco_job_learners_desired', FLEET, PAIR)})"
                f" - (count({now('diloco_pod_status', learners, f'{PAIR}, learner')}) or vector(0)), 0)"
            ),
            steps=((None, GREEN), (1, ORANGE)),
        ),
        rows(
            "Pods that do not run",
            "Phase and reason, worst jobs first; a container's reason stands for its pod's.",
            {" ": Query(_TROUBLED)},
            keys={
                "job_namespace": "Namespace",
                "diloco_job": "Job",
                "site": "Site",
                "role": "Role",
                "learner": "Learner",
                "phase": "Phase",
                "reason": "Reason",
            },
        ),
    ]


def _over_time() -> list[PanelBuilder]:
    return [
        lines(
            "By phase",
            "All pods.",
            Query(f"count by (phase) ({_PODS})", "{{phase}}"),
            stacked=True,
            colors=_PHASES,
            width=8,
        ),
        lines(
            "By site",
            "Pods that are there, whatever their phase.",
            Query(f"count by (site) ({_PODS})", "{{site}}"),
            stacked=True,
            width=8,
        ),
        lines(
            "By reason",
            "Pods that do not run.",
            Query(f"count by (reason) ({_TROUBLED})", "{{reason}}"),
            stacked=True,
            width=8,
        ),
        states(
            "Each pod",
            "Phase of every pod over time.",
            Query(
                " or ".join(
                    f"({number_of} + 0 * max by ({PAIR}, role, learner) "
                    f'(diloco_pod_status{{{FLEET}, phase="{phase}"}}))'
                    for number_of, phase in enumerate(_PHASES)
                ),
                _NAME,
            ),
            names={float(number_of): (phase, color) for number_of, (phase, color) in enumerate(_PHASES.items())},
            height=10,
        ),
    ]

"""A real Prometheus watches a real job: found by the chart's monitors, answered by every query, alarmed by real faults.

Alerts need seconds instead of minutes here, by the chart's own values. The tests share one run, in the order of the
file; the last ones ask what the faults before them left behind.
"""

import time

import pytest

from clusters import faults, workloads
from clusters.api import wait_until
from clusters.endless_job import JOB, endless, whole
from clusters.watching import dashboard_queries, quick_rules, watching
from monitoring.rules import recorded

pytestmark = pytest.mark.timeout(900)
PATIENCE = 240
OF_JOB = f'diloco_job="{JOB}"'
STATES = f"diloco_learner_state_seconds_total{{{OF_JOB}}}"
NOTHING_HAPPENED = (
    "GPU ", "Tensor cores",  # no GPU, no dcgm-exporter
    "Credentials end in",  # a ServiceAccount's token of the chart does not end
    "Pods that do not run", "By reason",  # all run
    "Refused from fenced Learners",  # nobody was fenced
    "Time to replace a Learner",  # see below
    "Restarts and relocations B",  # nobody moved
    "Requests to sites that failed",  # but at times
)  # fmt: skip
"""Panels that are rightly empty on such a job."""


def steady(job):
    """Learners that keep their pace: what counted is measured against their mean rate."""
    endless(job)
    (container,) = job["spec"]["learners"]["template"]["spec"]["containers"]
    container["resources"]["limits"]["cpu"] = "200m"


@pytest.fixture(scope="module")
def run(installation):
    installation.hub.create(installation.example(JOB, steady))
    return installation


@pytest.fixture(scope="module")
def watched(run, tmp_path_factory):
    """The job at work for a while, and the Prometheus that watches it."""
    folder = tmp_path_factory.mktemp("prometheus")
    whole(run, 400)
    with watching(run, folder) as entered:
        try:
            wait_until(
                "both processes are asked and steps are seen",
                lambda: entered.number(f"sum(diloco_outer_steps_total{{{OF_JOB}}})") and len(entered.targets()) == 2,
                PATIENCE,
            )
            yield entered
        finally:
            print(entered.log()[-4000:])


def fires(watched, alert, **labels):
    """Wait until it does, with these labels and readable texts."""

    def found():
        rows = [one for one in watched.firing(alert) if labels.items() <= one["labels"].items()]
        assert all("error" not in text for row in rows for text in row["annotations"].values())
        return rows

    return wait_until(f"{alert} fires", found, PATIENCE, every_seconds=1)


def ends(watched, alert):
    wait_until(f"{alert} ends", lambda: not watched.firing(alert), PATIENCE, every_seconds=1)


def test_the_monitors_of_services_find_operator_and_synchronizer_once_each(watched, run):
    wait_until("both are up", lambda: [one["health"] for one in watched.targets()] == ["up", "up"], 60)
    asked = {(one["labels"]["namespace"], one["labels"]["endpoint"]) for one in watched.targets()}
    assert asked == {(run.own_namespace, "metrics"), (run.namespace, "metrics")}


def test_the_monitors_of_pods_find_the_same(watched, run, tmp_path):
    by_service = {one["scrapeUrl"] for one in watched.targets()}
    with watching(run, tmp_path, "PodMonitor") as entered:
        wait_until(
            "the same is up",
            lambda: {o["scrapeUrl"] for o in entered.targets() if o["health"] == "up"} == by_service,
            60,
        )


def test_nothing_is_scraped_that_does_not_fit(watched):
    """No sample refused, no label of ours renamed but pod and namespace."""
    for target in watched.targets():
        assert target["lastError"] == ""
    renamed = {name for labels in watched.value(f"{{{OF_JOB}}}") for name, _ in labels if name.startswith("exported_")}
    assert renamed <= {"exported_pod", "exported_namespace"}


def test_no_alert_fires_for_a_job_that_is_well(watched):
    wait_until("nothing fires", lambda: not [one for one in watched.alerts() if one["state"] == "firing"], PATIENCE)


def test_a_site_cut_off_is_told_and_told_no_more_when_it_is_back(watched, run, site_1, healed):
    faults.cut(site_1, "api")
    row = fires(watched, "DiLoCoSiteUnreachable", site="site-1")[0]
    assert (row["labels"]["diloco_job"], row["labels"]["severity"]) == (JOB, "warning")
    assert watched.number(f'diloco_site_reachable{{{OF_JOB}, site="site-2"}}') == 1
    faults.heal(site_1, "api")
    ends(watched, "DiLoCoSiteUnreachable")


def test_learners_cut_off_from_the_synchronizer_are_a_lost_quorum_and_a_stall(watched, run, clusters, healed):
    whole(run, PATIENCE, cooling=("site-1",))
    for name in ("site-1", "site-2"):
        faults.cut(clusters.site(name), "pods")
    fires(watched, "DiLoCoQuorumLost", diloco_job=JOB)
    fires(watched, "DiLoCoOuterStepStalled", diloco_job=JOB)
    for name in ("site-1", "site-2"):
        faults.heal(clusters.site(name), "pods")
    ends(watched, "DiLoCoQuorumLost")
    ends(watched, "DiLoCoOuterStepStalled")


def test_an_operator_that_is_down_is_missed_and_takes_no_seconds_with_it(watched, run, figure):
    """Down for half a minute: the totals of a job go on from where they were, nothing is counted twice."""
    whole(run, PATIENCE, cooling=("site-1", "site-2"))
    before = wait_until("what was open is counted", lambda: counting(watched), PATIENCE)
    begun = time.time()
    deployment = ("-n", run.own_namespace, "scale", "deployment", "--selector=app.kubernetes.io/component=operator")
    workloads.kubectl(run.layout.hub, *deployment, "--replicas=0")
    fires(watched, "DiLoCoOperatorDown")
    time.sleep(max(0.0, begun + 30 - time.time()))
    workloads.kubectl(run.layout.hub, *deployment, "--replicas=1")
    ends(watched, "DiLoCoOperatorDown")
    counted = wait_until("totals are told again", lambda: total(watched), PATIENCE)
    wait_until("time is accounted for again", lambda: total(watched) > counted + 40, PATIENCE)
    after, passed = total(watched), time.time() - begun
    figure(f"operator away: {after - before:.0f} learner-seconds counted in {passed:.0f} s of four Learners")
    assert after - before == pytest.approx(4 * passed, abs=4 * 10)
    assert watched.number(f"sum(resets({STATES}[10m])) or vector(0)") == 0


def total(watched):
    """Seconds of all Learners in all states, as scraped last."""
    return watched.number(f"sum(max by (learner, site, state) ({STATES}))")


def counting(watched):
    """The total, if time passes into each Learner's as usual: what one did while unheard comes in one piece."""
    by_learner = "sum by (learner) (max by (learner, site, state) ({}))"
    gained = watched.value(f"{by_learner.format(STATES)} - {by_learner.format(f'{STATES} offset 20s')}")
    as_usual = len(gained) == 4 and all(value == pytest.approx(20, abs=8) for value in gained.values())
    return total(watched) if as_usual else None


def test_states_partition_the_wanted_seconds(watched):
    """Asked at once: between two questions there may be a scrape."""
    wanted = f"max(diloco_job_wanted_seconds_total{{{OF_JOB}}})"
    counted = f'sum(max by (learner, site, state) ({STATES[:-1]}, state!="excluded"}}))'
    assert watched.number(f"{counted} / {wanted}") == pytest.approx(1, rel=0.001)


def test_a_killed_learner_is_in_the_figures(watched, run, clusters, healed):
    whole(run, PATIENCE)
    row = run.job(JOB)["status"]["learnerStatuses"][0]
    site = clusters.site(row["site"])
    pod = workloads.Api(site).get("v1", "Pod", run.namespace, row["podName"])
    faults.kill_container(site, pod)
    wait_until(
        "the restart is counted",
        lambda: watched.number(f"sum(diloco_learner_restarts_total{{{OF_JOB}}})"), PATIENCE,
    )  # fmt: skip
    wait_until(
        "its replacement is measured",
        lambda: watched.number(f"sum(diloco_learner_replacement_seconds_count{{{OF_JOB}}})"), PATIENCE,
    )  # fmt: skip


def test_every_recording_rule_records(watched):
    assert [name for name in recorded(quick_rules()) if not watched.value(f"{name}{{{OF_JOB}}}")] == []


def test_every_query_of_every_dashboard_is_answered(watched, run):
    queries = dashboard_queries(run, JOB, "site-1")

    def unanswered():
        return [
            where
            for where, query in queries.items()
            if not any(word in where for word in NOTHING_HAPPENED)
            and not watched.value(f"last_over_time(({query})[10m:5s])")
        ]

    wait_until(f"all but nothing is unanswered: {unanswered()}", lambda: not unanswered(), 60, every_seconds=5)


def test_the_figures_of_the_job_are_those_of_the_recording_rules(watched, run, figure):
    status = run.job(JOB)["status"]["goodput"]
    for name in ("capacity_goodput", "accepted_goodput", "uptime"):
        values = {window: watched.number(f"diloco:job_{name}:ratio_rate{window}") for window in ("5m", "1h", "1d")}
        figure(f"{name}: " + ", ".join(f"{value:.4f} in {window}" for window, value in values.items()))
        assert 0 <= values["1h"] <= 1.05
        if name == "capacity_goodput":
            assert max(values.values()) <= 1.001, "training is a part of what was wanted, also in a window of faults"
    badput = watched.value("diloco:job_badput_seconds:rate1h > 0.0005")
    wanted = watched.number("diloco:job_wanted_seconds:rate1h")
    shares = {dict(labels)["state"]: f"{value / wanted:.4f}" for labels, value in badput.items()}
    figure(f"badput by state: {shares}; status: {[status[key] for key in ('capacity', 'accepted', 'uptime')]}")
    # Of the job's whole life, which began before the Prometheus did.
    training = watched.number(f'sum(max by (learner, site) ({STATES[:-1]}, state="training"}}))')
    lasted = watched.number(f"max(diloco_job_wanted_seconds_total{{{OF_JOB}}})")
    assert float(status["capacity"]) == pytest.approx(training / lasted, abs=0.03)

"""Recording rules and alerts, played by the real promtool: what they say, and what they say when there is nothing.

A sample every 30 s; `a+bxn` is promtool's way to write n steps of b from a.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart.rendering import IMAGES, OPERATOR, ROOT, Refused, of_kind, render
from monitoring.definitions import breaches
from monitoring.queries import declared, labels_of
from monitoring.rules import (
    JOB,
    Firing,
    Value,
    alerts,
    all_rules,
    check,
    play,
    prometheus_rule,
    recorded,
    rendered,
    texts,
)  # fmt: skip

RUNBOOKS = ROOT / "docs/runbooks"
PAIR = {"diloco_job": "llm", "job_namespace": "training"}
OF_JOB = f"{{{JOB}}}"
WINDOWS = ("5m", "1h", "1d")


def seconds(learner: int, state: str, values: str, site: str = "a") -> dict[str, str]:
    name = f'diloco_learner_state_seconds_total{{{JOB},site="{site}",learner="{learner}",state="{state}"}}'
    return {name: values}


def job(name: str, values: str, labels: str = "") -> dict[str, str]:
    return {f"{name}{{{JOB}{labels and ','}{labels}}}": values}


def weights(*devices: int, samples: int = 480) -> dict[str, str]:
    found: dict[str, str] = {}
    for learner, weight in enumerate(devices):
        found |= job("diloco_learner_weight", f"{weight}x{samples}", f'learner="{learner}",device="nvidia.com/gpu"')
    return found


def one_of_four_away_for_a_quarter_of_the_hour() -> dict[str, str]:
    """Learner 3 is lost from minute 30 to 45; then everybody trains on."""
    series = weights(1, 1, 1, 1) | job("diloco_job_wanted_seconds_total", "0+120x120")
    for learner in range(3):
        series |= seconds(learner, "training", "0+30x120") | seconds(learner, "lost", "0x120")
    series |= seconds(3, "training", "0+30x60 1800x29 1830+30x29", site="b")
    return series | seconds(3, "lost", "0x60 30+30x29 900x29", site="b")


# --- recording rules -----------------------------------------------------------------------------------------------


def test_promtool_finds_nothing_wrong_with_the_rules(tmp_path: Path) -> None:
    assert f"SUCCESS: {len(all_rules(rendered()))} rules found" in check(rendered(), tmp_path)


def test_a_quarter_of_an_hour_without_one_of_four_learners_is_a_goodput_of_93_75_percent(tmp_path: Path) -> None:
    series = one_of_four_away_for_a_quarter_of_the_hour()
    expected = [
        Value("60m", "diloco:job_capacity_goodput:ratio_rate1h", {OF_JOB: 0.9375}),
        Value("60m", "diloco:site_goodput:ratio_rate1h", {f'{{{JOB},site="a"}}': 1, f'{{{JOB},site="b"}}': 0.75}),
        # Learner-seconds a second: a quarter of one Learner's hour.
        Value("60m", "diloco:job_badput_seconds:rate1h", {f'{{{JOB},state="lost"}}': 0.25}),
        # In the middle of the loss, three of four train, and the site of the fourth does nothing.
        Value("40m", "diloco:job_capacity_goodput:ratio_rate5m", {OF_JOB: 0.75}),
        Value("40m", 'diloco:site_goodput:ratio_rate5m{site="b"}', {f'{{{JOB},site="b"}}': 0}),
        Value("60m", "diloco:job_capacity_goodput:ratio_rate5m", {OF_JOB: 1}),
    ]
    play(rendered(), series, expected, tmp_path)


def test_a_learner_counts_by_its_devices(tmp_path: Path) -> None:
    # Seven of eight devices train; the Learner with the eighth waits.
    series = weights(7, 1) | job("diloco_job_wanted_seconds_total", "0+240x120")
    series |= seconds(0, "training", "0+30x120") | seconds(1, "sync_wait", "0+30x120")
    series |= seconds(1, "training", "0x120")
    play(rendered(), series, [Value("60m", "diloco:job_capacity_goodput:ratio_rate1h", {OF_JOB: 0.875})], tmp_path)


def test_a_job_nobody_trains_for_has_a_goodput_of_zero(tmp_path: Path) -> None:
    series = weights(1) | job("diloco_job_wanted_seconds_total", "0+30x120") | seconds(0, "pending", "0+30x120")
    expected = [Value("60m", f"diloco:job_capacity_goodput:ratio_rate{window}", {OF_JOB: 0}) for window in WINDOWS] + [
        Value("60m", "diloco:site_goodput:ratio_rate1h", {f'{{{JOB},site="a"}}': 0})
    ]
    play(rendered(), series, expected, tmp_path)


def test_accepted_goodput_is_merged_tokens_over_those_undisturbed_learners_would_train(tmp_path: Path) -> None:
    # Two Learners of 100 tokens a second: 6,000 tokens in 30 s. 4,500 are merged.
    series = job("diloco_job_wanted_seconds_total", "0+60x120") | job("diloco_job_accepted_tokens_total", "0+4500x120")
    series |= job("diloco_job_ideal_tokens_per_second", "100x120")
    expected = [Value("60m", f"diloco:job_accepted_goodput:ratio_rate{window}", {OF_JOB: 0.75}) for window in WINDOWS]
    play(rendered(), series, expected, tmp_path)


def test_uptime_is_the_part_of_the_window_with_outer_steps_in_time(tmp_path: Path) -> None:
    series = job("diloco_job_window_seconds_total", "0+30x120") | job("diloco_job_uptime_seconds_total", "0+27x120")
    expected = [Value("60m", f"diloco:job_uptime:ratio_rate{window}", {OF_JOB: 0.9}) for window in WINDOWS]
    play(rendered(), series, expected, tmp_path)


def test_seconds_the_user_excluded_count_for_nothing(tmp_path: Path) -> None:
    series = weights(1) | job("diloco_job_wanted_seconds_total", "0+30x60 1800x60")
    series |= seconds(0, "training", "0+30x60 1800x60") | seconds(0, "excluded", "0x60 30+30x60")
    expected = [
        Value("60m", "diloco:job_capacity_goodput:ratio_rate1h", {OF_JOB: 1}),
        Value("60m", 'diloco:site_goodput:ratio_rate1h{site="a"}', {f'{{{JOB},site="a"}}': 1}),
        # Not wanted at all in the last five minutes: neither good nor bad.
        Value("60m", "diloco:job_capacity_goodput:ratio_rate5m", {}),
    ]
    play(rendered(), series, expected, tmp_path)


def test_a_restart_of_the_operator_changes_no_ratio(tmp_path: Path) -> None:
    """Away for a minute, then counters from zero, as well as counters that go on where they were."""
    again = "0+30x60 _x2 0+30x57"
    goes_on = "0+30x60 _x2 1890+30x57"
    for values in (again, goes_on):
        series = {f'diloco_learner_weight{{{JOB},learner="0",device="cpu"}}': "1x60 _x2 1x57"}
        series |= seconds(0, "training", values) | job("diloco_job_wanted_seconds_total", values)
        series |= job("diloco_job_window_seconds_total", values) | job("diloco_job_uptime_seconds_total", values)
        expected = [
            Value("32m", "diloco:job_capacity_goodput:ratio_rate5m", {OF_JOB: 1}),
            Value("60m", "diloco:job_capacity_goodput:ratio_rate1h", {OF_JOB: 1}),
            Value("60m", "diloco:job_uptime:ratio_rate1h", {OF_JOB: 1}),
        ]
        play(rendered(), series, expected, tmp_path)


def test_two_operators_in_turn_are_one_job(tmp_path: Path) -> None:
    """The pod is another one after an upgrade, and with it the instance label; its counters go on."""
    series: dict[str, str] = {}
    for pod, present in (("one", "{}x60 _x60"), ("two", "_x61 {}x58")):
        instance = f'instance="{pod}"'
        start = 0 if pod == "one" else 1830
        values = present.format(f"{start}+30")
        series |= job("diloco_job_wanted_seconds_total", values, instance)
        series |= seconds(0, "training", values, site=f'a",{instance},x="')
        series |= job("diloco_learner_weight", present.format("1+0"), f'learner="0",device="cpu",{instance}')
    expected = [
        Value(at, "diloco:job_capacity_goodput:ratio_rate5m", {OF_JOB: 1}) for at in ("20m", "31m", "33m", "50m")
    ]
    play(rendered(), series, expected, tmp_path)


def test_a_learner_that_is_not_wanted_any_more_has_trained_all_the_same(tmp_path: Path) -> None:
    """Its weight is gone with it, its seconds of the last hour count."""
    series = weights(1) | job("diloco_learner_weight", "1x60 stale", 'learner="1",device="cpu"')
    series |= seconds(0, "training", "0+30x120") | seconds(1, "training", "0+30x60 1800x60")
    series |= job("diloco_job_wanted_seconds_total", "0+60x60 3630+30x59")
    play(rendered(), series, [Value("60m", "diloco:job_capacity_goodput:ratio_rate1h", {OF_JOB: 1})], tmp_path)


def test_nothing_is_recorded_and_only_the_operator_missed_where_there_is_no_data(tmp_path: Path) -> None:
    spec = rendered()
    expected: list[Value | Firing] = [Value("60m", name, {}) for name in recorded(spec)]
    expected += [Firing("60m", name, [{}] if name == "DiLoCoOperatorDown" else []) for name in alerts(spec)]
    play(spec, {}, expected, tmp_path)


def test_a_deleted_job_leaves_no_recording_behind(tmp_path: Path) -> None:
    series = {name: f"{values} stale" for name, values in one_of_four_away_for_a_quarter_of_the_hour().items()}
    spec = rendered()
    expected = [Value("2h5m", name, {}) for name in recorded(spec) if not name.endswith("1d")]
    play(
        spec, series, [*expected, Value("60m", "diloco:job_capacity_goodput:ratio_rate1h", {OF_JOB: 0.9375})], tmp_path
    )


# --- alerts --------------------------------------------------------------------------------------------------------

SLOW = "DiLoCoReplacementSlow"
RUNS = job("diloco_job_learners_desired", "4x480") | {"diloco_lease_held": "1x480"}


def condition(kind: str, status: str, values: str) -> dict[str, str]:
    return job("diloco_job_condition", values, f'condition="{kind}",status="{status}"')


def histogram(sum_values: str, count_values: str) -> dict[str, str]:
    reason = 'reason="NodeLost"'
    return job("diloco_learner_replacement_seconds_sum", sum_values, reason) | job(
        "diloco_learner_replacement_seconds_count", count_values, reason
    )


SITE = {**PAIR, "site": "a"}
AT_A = 'site="a"'
CASES: dict[str, tuple[dict[str, str], str, str, dict[str, str]]] = {
    # alert: series of minutes 0 to 60 and after, when it fires, when it does not (any more), with what labels
    "DiLoCoQuorumLost": (
        RUNS | job("diloco_job_uptime_seconds_total", "0+30x480")
        | condition("QuorumMet", "False", "0x20 1x40 0x60") | condition("QuorumMet", "True", "1x20 0x40 1x60"),
        "16m", "31m", PAIR,
    ),
    "DiLoCoOuterStepStalled": (
        # A step every 30 s, allowed 60 s; then the Synchronizer is away for half an hour.
        RUNS | job("diloco_last_outer_step_timestamp_seconds", "0+30x40 _x60 3000+30x60")
        | job("diloco_outer_step_deadline_seconds", "60x40 _x60 60x60"),
        "30m", "51m", PAIR,
    ),
    "DiLoCoJobDegraded": (RUNS | condition("Degraded", "True", "0x10 1x60 0x60"), "21m", "40m", PAIR),
    "DiLoCoSiteUnreachable": (
        RUNS | job("diloco_site_reachable", "1x10 0x60 1x60", AT_A), "16m", "40m", SITE,
    ),
    "DiLoCoLearnerFlapping": (
        RUNS
        | job("diloco_learner_restarts_total", "0x20 1x5 2x5 3x5 4x5 5x400", f'{AT_A},reason="Error",counted="true"'),
        "25m", "2h30m", SITE,
    ),
    SLOW: (RUNS | histogram("_x20 900x400", "_x20 1x400"), "20m", "2h30m", PAIR),
    "DiLoCoGoodputLow": (
        RUNS | weights(1) | job("diloco_job_wanted_seconds_total", "0+30x480")
        | seconds(0, "training", "0+15x240 3615+30x240") | seconds(0, "lost", "0+15x240 3600x240"),
        "1h30m", "3h30m", PAIR,
    ),
    "DiLoCoFencedUpdates": (RUNS | job("diloco_fenced_updates_total", "_x20 2x400", AT_A), "12m", "45m", SITE),
    "DiLoCoOperatorDown": ({"diloco_lease_held": "1x20 0x20 1x100"}, "16m", "25m", {}),
    "DiLoCoReconcileErrors": (
        RUNS | {'diloco_reconcile_total{result="failed"}': "0x20 0+2x20 40x100"}, "20m", "45m", {},
    ),
    "DiLoCoWatchStale": (
        # Twice behind until the liveness probe fails and the process begins anew; then nothing is missed any more.
        RUNS | {"diloco_watch_behind_seconds": "0x20 0+30x4 0x14 0+30x4 0x200"}, "28m", "35m", {},
    ),
    "DiLoCoCredentialsExpiring": (
        RUNS | job("diloco_credentials_expiry_timestamp_seconds", "600000x160 9000000x160", AT_A),
        "1h10m", "1h30m", SITE,
    ),
}  # fmt: skip
"""The credentials of the last one end within a week, and are renewed after 80 minutes."""


@pytest.mark.parametrize("alert", CASES)
def test_an_alert_fires_for_its_fault_and_ends_with_it(alert: str, tmp_path: Path) -> None:
    series, fires, ended, labels = CASES[alert]
    play(rendered(), series, [Firing(fires, alert, [labels]), Firing(ended, alert, [])], tmp_path)


@pytest.mark.parametrize("alert", CASES)
def test_an_alerts_texts_can_be_filled_in(alert: str, tmp_path: Path) -> None:
    series, fires, _, labels = CASES[alert]
    said = texts(rendered(), series, fires, alert, tmp_path)
    assert all(part in said for part in ("summary=", "description=", "runbook=", *labels.values()))
    assert not re.search(r"error expanding|<no value>|%!|\{\{|NaN|\$\{", said)


@pytest.mark.parametrize("alert", [name for name in CASES if PAIR.items() <= CASES[name][3].items()])
def test_an_alert_of_a_job_ends_when_the_job_is_deleted(alert: str, tmp_path: Path) -> None:
    series, fires, _, _ = CASES[alert]
    cut = {name: shorten(values, samples_until(fires)) for name, values in series.items()}
    later = f"{minutes(fires) + 70}m"
    play(rendered(), cut | {"diloco_lease_held": "1x480"}, [Firing(later, alert, [])], tmp_path)


def minutes(text: str) -> int:
    hours, _, rest = text.rpartition("h")
    return 60 * int(hours or 0) + int(rest.removesuffix("m") or 0)


def samples_until(text: str) -> int:
    return 2 * minutes(text) + 1


def shorten(values: str, samples: int) -> str:
    """The first samples of a series, which then goes."""
    short: list[str] = []
    for part in values.split():
        match = re.fullmatch(r"(_|[\d.]+)(\+[\d.]+)?x(\d+)", part)
        assert match is not None, part
        count = int(match[3]) + (match[1] != "_")
        keep = min(count, samples)
        samples -= keep
        if keep:
            short.append(f"{match[1]}{match[2] or ''}x{keep - (match[1] != '_')}")
    return " ".join([*short, "stale"])


def test_a_stopped_job_has_lost_no_quorum_and_stalls_at_nothing(tmp_path: Path) -> None:
    series = {"diloco_lease_held": "1x480"} | job("diloco_job_learners_desired", "4x20 0x400")
    series |= job("diloco_job_uptime_seconds_total", "0+30x20 600x400") | condition("QuorumMet", "False", "0x20 1x400")
    series |= job("diloco_last_outer_step_timestamp_seconds", "0+30x20 600x400")
    series |= job("diloco_outer_step_deadline_seconds", "60x400")
    expected = [Firing("1h", "DiLoCoQuorumLost", []), Firing("1h", "DiLoCoOuterStepStalled", [])]
    play(rendered(), series, expected, tmp_path)


def test_a_job_that_waits_for_its_first_learners_has_lost_no_quorum(tmp_path: Path) -> None:
    series = RUNS | job("diloco_job_uptime_seconds_total", "0x400") | condition("QuorumMet", "False", "1x400")
    play(rendered(), series, [Firing("1h", "DiLoCoQuorumLost", [])], tmp_path)


def test_starting_again_after_a_suspension_is_no_stall(tmp_path: Path) -> None:
    series = job("diloco_job_learners_desired", "4x20 0x200 4x200") | {"diloco_lease_held": "1x480"}
    series |= job("diloco_last_outer_step_timestamp_seconds", "0+30x20 600x210 6930+30x100")
    series |= job("diloco_outer_step_deadline_seconds", "60x400")
    expected = [Firing(f"{minute}m", "DiLoCoOuterStepStalled", []) for minute in range(108, 120)]
    play(rendered(), series, expected, tmp_path)


def test_failures_of_many_kinds_are_flapping_though_each_is_the_first_of_its_kind(tmp_path: Path) -> None:
    series = dict(RUNS)
    for minute, reason in ((40, "Error"), (44, "OutOfMemory"), (48, "Stalled"), (52, "DeviceFailed")):
        labels = f'{AT_A},reason="{reason}",counted="true"'
        series |= job("diloco_learner_restarts_total", f"_x{minute} 1x400", labels)
    expected = [Firing("25m", "DiLoCoLearnerFlapping", []), Firing("28m", "DiLoCoLearnerFlapping", [SITE])]
    play(rendered(), series, [*expected, Firing("1h40m", "DiLoCoLearnerFlapping", [])], tmp_path)


def test_what_a_job_restarts_by_its_own_wish_is_no_flapping(tmp_path: Path) -> None:
    series = RUNS | job("diloco_learner_restarts_total", "0+1x100", f'{AT_A},reason="Preempted",counted="false"')
    play(rendered(), series, [Firing("40m", "DiLoCoLearnerFlapping", [])], tmp_path)


def test_fast_replacements_after_slow_ones_end_the_alarm(tmp_path: Path) -> None:
    """The first observations are in the mean, and so are those of other reasons that come later."""
    series = RUNS | histogram("_x20 900x400", "_x20 1x400")
    for name, values in (("sum", "_x40 10x9 20x300"), ("count", "_x40 1x9 2x300")):
        series |= job(f"diloco_learner_replacement_seconds_{name}", values, 'reason="Error"')
    # (900 + 10) / 2, then (900 + 10 + 10) / 3 seconds.
    play(rendered(), series, [Firing("15m", SLOW, [PAIR]), Firing("22m", SLOW, []), Firing("30m", SLOW, [])], tmp_path)


def test_a_watch_that_has_nothing_to_tell_or_that_a_restart_mends_is_not_stale(tmp_path: Path) -> None:
    for behind in ("0x480", "0x20 0+30x4 0x400"):
        series = RUNS | {"diloco_watch_behind_seconds": behind}
        expected = [Firing(f"{minute}m", "DiLoCoWatchStale", []) for minute in range(10, 60)]
        play(rendered(), series, expected, tmp_path)


def test_a_standby_operator_is_not_one_at_work(tmp_path: Path) -> None:
    series = {'diloco_lease_held{pod="a"}': "0x100", 'diloco_lease_held{pod="b"}': "1x20 _x80"}
    expected = [Firing("9m", "DiLoCoOperatorDown", []), Firing("25m", "DiLoCoOperatorDown", [{}])]
    play(rendered(), series, expected, tmp_path)


# --- what can be set, and what belongs together ----------------------------------------------------------------------


def test_severity_delay_thresholds_and_labels_come_from_the_values() -> None:
    spec = rendered(
        severity={"DiLoCoGoodputLow": "page"}, **{"for": {"DiLoCoGoodputLow": "7m"}},
        thresholds={"goodputLow": 0.5}, alertLabels={"team": "llm"}, intervals={"5m": "10s"},
        runbookBaseUrl="https://git.example.com/diloco/blob/main/",
    )  # fmt: skip
    alert = alerts(spec)["DiLoCoGoodputLow"]
    assert (alert["for"], alert["labels"]) == ("7m", {"severity": "page", "team": "llm"})
    assert "ratio_rate1h < 0.5\n" in alert["expr"]
    page = "https://git.example.com/diloco/blob/main/docs/runbooks/DiLoCoGoodputLow.md"
    assert alert["annotations"]["runbook_url"] == page
    assert [group.get("interval") for group in spec["groups"]] == ["10s", "1m", "5m", None]


def test_one_alert_can_be_left_out() -> None:
    left = set(alerts(rendered(disabled=["DiLoCoFencedUpdates"])))
    assert left == set(alerts(rendered())) - {"DiLoCoFencedUpdates"}


def test_the_object_carries_the_labels_by_which_a_prometheus_selects_it() -> None:
    assert prometheus_rule(labels={"release": "prometheus"})["metadata"]["labels"]["release"] == "prometheus"


def test_the_object_is_such_as_the_prometheus_operator_has_it() -> None:
    rule = prometheus_rule()
    assert breaches(rule) == []
    rule["spec"]["groups"][0]["intervall"] = "1m"
    (said,) = breaches(rule)
    assert said.startswith("spec.groups.0: ")


def test_there_are_no_rules_unless_they_are_wanted() -> None:
    assert of_kind(render(OPERATOR, {**IMAGES, "monitoring": {"renderMode": "alwaysRender"}}), "PrometheusRule") == []


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"disabled": ["QuorumLost"]}, "/monitoring/rules/disabled/0"),
        ({"thresholds": {"goodput": 0.5}}, "additional properties 'goodput' not allowed"),
        ({"thresholds": {"goodputLow": 80}}, "/monitoring/rules/thresholds/goodputLow"),
        ({"for": {"DiLoCoGoodputLow": "1 hour"}}, "/monitoring/rules/for/DiLoCoGoodputLow"),
        ({"severity": {"GoodputLow": "info"}}, "additional properties 'GoodputLow' not allowed"),
    ],
)
def test_values_that_mean_nothing_are_refused_by_name(rules: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused) as refused:
        rendered(**rules)
    assert said in str(refused.value)


def test_every_threshold_is_used_and_every_place_for_one_filled() -> None:
    values = yaml.safe_load((OPERATOR / "values.yaml").read_text())["monitoring"]["rules"]
    source = (OPERATOR / "files/rules/alerts.yaml").read_text()
    wanted = set(re.findall(r"\$\{(\w+)\}", source)) - {"name"}
    assert wanted == set(values["thresholds"])
    assert set(values["severity"]) == set(values["for"]) == set(alerts(rendered()))


def test_every_rule_and_alert_reads_series_and_labels_that_exist() -> None:
    spec = rendered()
    known = declared(recorded(spec))
    for name, rule in alerts(spec).items():
        texts_of = " ".join(rule["annotations"].values())
        used = set(re.findall(r"\$labels\.(\w+)", texts_of))
        assert used <= labels_of(rule["expr"], known), name


def test_every_alert_has_a_case_and_a_page_and_every_page_an_alert() -> None:
    names = set(alerts(rendered()))
    assert set(CASES) == names
    assert {page.stem for page in RUNBOOKS.glob("*.md")} - {"README"} == names


@pytest.mark.parametrize("alert", CASES)
def test_a_page_says_what_it_means_how_to_look_and_what_to_do(alert: str) -> None:
    text = (RUNBOOKS / f"{alert}.md").read_text()
    assert text.startswith(f"# {alert}\n")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["What it means", "How to look", "What to do"]
    assert "kubectl " in text


def test_queries_of_the_pages_read_series_that_exist() -> None:
    known = declared(recorded(rendered()))
    queries = [
        query
        for page in sorted(RUNBOOKS.glob("*.md"))
        for block in re.findall(r"```promql\n(.*?)```", page.read_text(), re.DOTALL)
        for query in block.strip().split("\n\n")
    ]
    assert len(queries) >= len(CASES)
    for query in queries:
        labels_of(query, known)

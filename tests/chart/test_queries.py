"""Every query of every dashboard, and every recording rule, answered by a real Prometheus from a made-up hour."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart.test_dashboards import DASHBOARDS, panels
from dashboards.answers import Source, Span
from dashboards.pictures import picture
from dashboards.units import worded
from monitoring import made_up
from monitoring.queries import names_in
from monitoring.rules import recorded, rendered
from monitoring.server import Prometheus

pytestmark = pytest.mark.timeout(300)
VARIABLES = {"namespace": made_up.NAMESPACE, "job": made_up.JOB, "site": "site-2", "__rate_interval": "1m"}


@pytest.fixture(scope="module")
def hour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, int]]:
    """A Prometheus that knows the hour, and when it began. Rules that read others' records come after those."""
    folder = tmp_path_factory.mktemp("hour")
    start = int(time.time()) // 60 * 60 - 60 * made_up.MINUTES
    made_up.write(folder, start)
    expressions = recorded(rendered())
    of_series = {name: text for name, text in expressions.items() if not names_in(text) & expressions.keys()}
    of_records = {name: text for name, text in expressions.items() if name not in of_series}
    assert of_records
    for part in (of_series, of_records):
        path = folder / "part.yaml"
        rules = [{"record": name, "expr": text} for name, text in part.items()]
        path.write_text(yaml.safe_dump({"groups": [{"name": "part", "rules": rules}]}))
        with Prometheus(folder, {}, {"groups": []}, port=free_port()) as prometheus:
            made_up.record(folder, path, start, prometheus.address)
    with Prometheus(folder, {}, {"groups": []}, port=free_port()) as prometheus:
        yield prometheus, start


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def filled(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(f"${name}", value)
    return expression


def answers(prometheus: Prometheus, expression: str, start: int) -> list[dict[str, Any]]:
    parameters = {
        "query": filled(expression), "start": str(start + 600), "end": str(start + 60 * made_up.MINUTES), "step": "15",
    }  # fmt: skip
    found: list[dict[str, Any]] = prometheus.ask("query_range", parameters)["result"]
    return found


def test_every_rule_records_something(hour: tuple[Prometheus, int]) -> None:
    prometheus, start = hour
    assert [name for name in recorded(rendered()) if not answers(prometheus, name, start)] == []


def test_goodput_of_a_made_up_job_is_what_it_was_made_of(hour: tuple[Prometheus, int]) -> None:
    """A tenth of all time is sync_wait; Learner 3 of four is lost for 5 of 60 minutes, in which it does not wait."""
    prometheus, start = hour
    last = {
        series["metric"]["diloco_job"]: float(series["values"][-1][1])
        for series in answers(prometheus, "diloco:job_capacity_goodput:ratio_rate1h", start)
    }
    assert last["llm"] == pytest.approx(0.9 * (4 * 60 - 5) / (4 * 60), abs=0.005)
    assert last["other"] == pytest.approx(0.9, abs=0.005)


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_every_query_of_a_dashboard_is_answered(hour: tuple[Prometheus, int], uid: str) -> None:
    prometheus, start = hour
    unanswered = [
        f"{panel['title']}: {target['expr']}"
        for panel in panels(DASHBOARDS[uid])
        for target in panel["targets"]
        if not answers(prometheus, target["expr"], start)
    ]
    marks = DASHBOARDS[uid]["annotations"].get("list", [])
    unanswered += [one["name"] for one in marks if not answers(prometheus, one["expr"], start)]
    assert unanswered == []


def test_every_query_is_accepted_where_there_is_no_data(tmp_path: Path) -> None:
    asked = [target["expr"] for one in DASHBOARDS.values() for panel in panels(one) for target in panel["targets"]]
    with Prometheus(tmp_path, {}, {"groups": []}, port=free_port()) as prometheus:
        for expression in asked:
            found = prometheus.value(filled(expression))
            assert set(found) <= {()}, f"{expression}: {found}"


def test_the_timeline_shows_each_learner_once_at_a_time(hour: tuple[Prometheus, int]) -> None:
    prometheus, start = hour
    (panel,) = [one for one in panels(DASHBOARDS["diloco-job"]) if one["title"] == "What each Learner does"]
    found = {one["metric"]["learner"]: one["values"] for one in answers(prometheus, panel["targets"][0]["expr"], start)}
    assert sorted(found) == ["0", "1", "2", "3"]
    names = panel["fieldConfig"]["defaults"]["mappings"][0]["options"]
    told = {
        learner: {names[value]["text"] for at, value in values if 1230 <= at - start <= 1470}
        for learner, values in found.items()
    }
    assert told == {"0": {"training"}, "1": {"training"}, "2": {"training"}, "3": {"lost"}}


def test_every_panel_of_a_dashboard_is_drawn(hour: tuple[Prometheus, int], tmp_path: Path) -> None:
    prometheus, start = hour
    span = Span(start + 600, start + 60 * made_up.MINUTES, 60)
    source = Source(prometheus.ask, VARIABLES)
    for uid in ("diloco-site", "diloco-pods"):
        drawn = picture(DASHBOARDS[uid], source, span, tmp_path / "picture.png")
        assert list(drawn) == [panel["title"] for panel in panels(DASHBOARDS[uid])]
        assert all(drawn.values()), drawn
        assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (0.9375, "percentunit", "93.8 %"), (1.0, "bool_yes_no", "yes"), (0.0, "bool_yes_no", "no"),
        (90.0, "s", "1.5 min"), (0.02, "s", "20 ms"), (0.0, "s", "0 s"), (864000.0, "s", "10 d"),
        (2_500_000.0, "Bps", "2.5 MB/s"), (12.0, "short", "12"), (float("nan"), "short", "–"),
    ],
)  # fmt: skip
def test_values_are_worded_with_their_unit(value: float, unit: str, words: str) -> None:
    assert worded(value, unit) == words

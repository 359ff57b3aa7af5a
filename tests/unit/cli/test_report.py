import json
import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from diloco_api.progress import Phase, Progress
from diloco_cli.drill_plan import DrillState
from diloco_cli.drills import parse_drill
from diloco_cli.report import ReportV1, make_report
from fakes.cli_sample import ended, progress, status

DOCS = Path(__file__).resolve().parents[3] / "docs" / "report.md"


def report(seen: Progress | None = None) -> ReportV1:
    drills = [
        DrillState(parse_drill("kill-learner=1@30s"), struck_seconds=30.04, replaced_after_seconds=7.12345),
        DrillState(parse_drill("kill-synchronizer@500s")),
    ]
    job = status("Complete", conditions=ended("Complete", "TokenBudgetReached"))
    return make_report(job, seen or progress(loss_final=2.41), drills, wall_seconds=131.23456)


def test_the_report_has_exactly_the_documented_shape() -> None:
    document = json.loads(report().to_json())
    assert list(document) == [
        "schemaVersion", "phase", "reason", "wallSeconds", "outerSteps", "outerRounds", "tokens", "loss", "goodput",
        "bytes", "learners", "drills", "digests",
    ]  # fmt: skip
    assert document["schemaVersion"] == 1
    assert (document["phase"], document["reason"]) == ("Complete", "TokenBudgetReached")
    assert document["loss"] == {"initial": 5.561, "final": 2.41}
    assert document["goodput"] == {"capacity": 0.9712, "accepted": 0.9421, "uptime": 1.0}
    assert document["bytes"] == {"up": 12_345_678, "down": 45_678_901}
    assert document["digests"] == {"2": {"version": 2, "digest": "a" * 64}, "10": {"version": 3, "digest": "b" * 64}}


def test_the_token_identity_can_be_checked_from_the_report_alone() -> None:
    tokens = json.loads(report().to_json())["tokens"]
    assert tokens["trained"] == tokens["merged"] + tokens["overlap"] + tokens["discarded"] + tokens["inFlight"]
    assert tokens["discarded"] == 150_000
    assert tokens["repeated"] == 7_000


def test_a_learner_is_reported_over_all_its_incarnations() -> None:
    learners = json.loads(report().to_json())["learners"]
    assert [row["index"] for row in learners] == [0, 1, 2]
    assert learners[1] == {
        "index": 1, "site": "local", "incarnations": 2, "innerSteps": 55,
        "states": {"training": 40.5, "init": 4.0, "lost": 0.5},
    }  # fmt: skip


def test_a_learner_that_was_never_admitted_is_reported_without_incarnations() -> None:
    known = progress(learners=[row for row in progress().learners if row.index != 2])
    learners = json.loads(report(known).to_json())["learners"]
    assert learners[2] == {"index": 2, "site": "local", "incarnations": 0, "innerSteps": 0, "states": {"pending": 9.0}}


def test_a_drained_run_reports_the_loss_of_the_parameters_it_left() -> None:
    drained = make_report(status("Stopped"), progress(phase=Phase.STOPPED, loss_final=3.2), [], 1.0, "Drained")
    assert json.loads(drained.to_json())["loss"] == {"initial": 5.561, "final": 3.2}


def test_the_documentation_and_the_model_say_the_same_of_every_field() -> None:
    rows = dict(re.findall(r"^\| `([^`]+)` \| (.*) \|$", DOCS.read_text(), flags=re.MULTILINE))
    for path, told in _described(ReportV1, ""):
        assert ("null" in told) == ("null" in rows[path]), path
        assert ("drained" in told) == ("drained" in rows[path]), path


def test_a_drill_that_never_struck_is_reported_without_times() -> None:
    assert json.loads(report().to_json())["drills"] == [
        {"kind": "kill-learner", "target": 1, "atSeconds": 30.04, "replacedAfterSeconds": 7.123},
        {"kind": "kill-synchronizer", "target": None, "atSeconds": None, "replacedAfterSeconds": None},
    ]


def test_what_is_not_known_is_null_not_zero() -> None:
    early = make_report(
        status("Stopped", goodput={}), progress(loss_initial=None), [], wall_seconds=1.0, reason="Drained"
    )
    document = json.loads(early.to_json())
    assert document["loss"] == {"initial": None, "final": None}
    assert document["goodput"] == {"capacity": None, "accepted": None, "uptime": None}
    assert document["reason"] == "Drained"


def test_a_written_report_can_be_read_back() -> None:
    assert ReportV1.model_validate_json(report().to_json()) == report()


def test_the_documentation_lists_every_field_and_no_other() -> None:
    documented = set(re.findall(r"^\| `([^`]+)` \|", DOCS.read_text(), flags=re.MULTILINE))
    assert documented == set(_fields(ReportV1, ""))


def _fields(model: type[BaseModel], prefix: str) -> Iterator[str]:
    return (path for path, _ in _described(model, prefix))


def _described(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str]]:
    """`tokens.merged`, `learners[].index`, `digests.<fragment>.version`: leaves by JSON name, with their text."""
    for name, info in model.model_fields.items():
        path = prefix + (info.alias or name)
        annotation = info.annotation
        inner = next((part for part in getattr(annotation, "__args__", ()) if _is_model(part)), None)
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from _described(annotation, f"{path}.")
        elif inner is not None:
            many = "[]." if getattr(annotation, "__origin__", None) is list else ".<fragment>."
            yield from _described(inner, path + many)
        else:
            yield path, info.description or ""


def _is_model(part: object) -> bool:
    return isinstance(part, type) and issubclass(part, BaseModel)

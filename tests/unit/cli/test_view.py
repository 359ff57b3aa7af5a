import io
from pathlib import Path

import pytest
from rich.console import Console
from rich.spinner import Spinner

from diloco_api.progress import LearnerState, Phase, TokenTotals
from diloco_cli import plain
from diloco_cli.exit_status import ExitStatus, status_of
from diloco_cli.report import make_report
from diloco_cli.screen import draw
from diloco_cli.summary import draw_summary
from diloco_cli.view import PACE_KNOWN_SECONDS, Happening, News, View, make_view
from fakes.cli_sample import HEADLINE, ended, learner, progress, status

NEWS = News(answers=True, heard=True)
REPORT_PATH = Path("runs/quickstart/report.json")


def view(**changes: object) -> View:
    return make_view(HEADLINE, 2048, status(), progress(**changes), 61.0, NEWS)


def drawn(view: View, width: int, *told: str) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    happenings = [Happening(30.0, text) for text in told or ("drill: Learner 1 killed (SIGKILL to process 4711)",)]
    console.print(draw(view, happenings, width, Spinner("dots")))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_row_shows_the_newest_incarnation_and_why_it_is_unusual() -> None:
    rows = view().learners
    assert [row.index for row in rows] == [0, 1, 2]
    assert (rows[1].incarnation, rows[1].step, rows[1].note) == (2, 15, "ramp, 85 left")
    assert rows[0].tokens_per_second == 8192.0


def test_a_successor_that_was_not_heard_yet_hides_its_predecessor() -> None:
    rows = view(learners=[learner(0), learner(1, 1, live=False, gone=True), learner(2)]).learners
    assert (rows[1].incarnation, rows[1].state, rows[1].step) == (2, "Running", None)


def test_a_silent_learner_is_shown_as_unheard_without_a_pace() -> None:
    rows = view(learners=[learner(0, live=False, heartbeat_age_seconds=31.4)]).learners
    assert (rows[0].state, rows[0].note, rows[0].tokens_per_second) == ("unheard", "silent for 31 s", None)


@pytest.mark.parametrize(
    ("seen", "fresh", "words"),
    [
        (None, False, "waiting for the Synchronizer"),
        (progress(), False, "does not answer"),
        (progress(learners=[]), True, "waiting for Learners"),
        (progress(outer_steps=0, learners=[]), True, "waiting for Learners"),
        (progress(outer_steps=0, learners=[learner(0)], tokens=TokenTotals()), True, "1 Learner joined"),
        (progress(outer_steps=0), True, "the first outer step comes"),
    ],
    ids=["synchronizer", "away", "resumed", "learners", "first steps", "pace"],
)
def test_it_says_what_it_waits_for(seen: object, fresh: bool, words: str) -> None:
    shown = make_view(HEADLINE, 2048, status(), seen, 1.0, News(answers=fresh, heard=True))
    assert words in (shown.waiting_for or "")
    assert words in plain.line(shown)


def test_an_ending_run_says_so_and_an_ended_one_waits_for_nothing() -> None:
    closing = progress(phase=Phase.CLOSING)
    assert make_view(HEADLINE, 2048, status(), closing, 1.0, NEWS).waiting_for == (
        "closing: one last round of every fragment"
    )
    over = status(conditions=ended("Complete", "TokenBudgetReached"))
    assert make_view(HEADLINE, 2048, over, closing, 1.0, News(answers=False, heard=True)).waiting_for is None


def test_the_phase_is_for_people_and_decides_nothing() -> None:
    for word in ("Complete", "Failed", "Stopped", "Nonsense"):
        shown = make_view(HEADLINE, 2048, status(word), progress(phase=Phase.CLOSING), 1.0, NEWS)
        assert shown.waiting_for == "closing: one last round of every fragment"
    assert status_of(ended("Complete", "TokenBudgetReached")) is ExitStatus.COMPLETE
    assert status_of(ended("Failed", "FatalExitCode")) is ExitStatus.FAILED
    assert status_of([]) is ExitStatus.INTERRUPTED


def test_no_end_is_foretold_from_the_first_steps_of_a_run() -> None:
    early = learner(0, state_seconds={LearnerState.TRAINING: PACE_KNOWN_SECONDS - 0.1})
    assert view(learners=[early]).eta_seconds is None
    known = learner(0, state_seconds={LearnerState.TRAINING: PACE_KNOWN_SECONDS})
    assert view(learners=[early, known]).eta_seconds == 75.0


def test_an_earlier_runs_pace_foretells_nothing() -> None:
    resumed = make_view(HEADLINE, 2048, status("Starting"), progress(), 1.0, News(answers=False, heard=False))
    assert resumed.eta_seconds is None


def test_the_end_of_an_earlier_run_is_not_taken_for_the_end_of_this_one() -> None:
    stopped = progress(phase=Phase.STOPPED)
    resumed = make_view(HEADLINE, 2048, status("Starting"), stopped, 1.0, News(answers=False, heard=False))
    assert resumed.waiting_for == "waiting for the Synchronizer: importing torch, building version 0"
    assert resumed.percent == 42.5


def test_a_learner_that_left_is_not_shown_as_lost() -> None:
    assert view(learners=[learner(0, live=False, gone=True)]).learners[0].state == "left"


def test_a_plain_line_holds_the_facts_and_no_control_characters() -> None:
    line = plain.line(view())
    assert line.startswith("[  61.0 s] 42.5 %  eta 1 min 15 s  round 2, 71 outer steps  61.2k tokens/s  loss 2.500")
    assert "goodput 97.1 % / 94.2 % / 100.0 %" in line
    assert line.endswith("Learners 0:training 1:training 2:training")
    assert line.isprintable()


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_picture_fits_its_terminal(width: int) -> None:
    lines = drawn(view(), width).splitlines()
    assert max(len(line) for line in lines) <= width
    table = [line for line in lines if "training" in line]
    assert len(table) == 3, "a row per Learner, none wrapped"
    assert all("local" in row and "2.500" in row for row in table)
    assert any("drill: Learner 1 killed" in line for line in lines)


def test_what_went_wrong_is_wrapped_and_never_cut() -> None:
    trouble = "Learner 2 (incarnation 17) was lost: " + " ".join(f"word{number}" for number in range(30)) + " end."
    text = drawn(view(message=trouble), 80, trouble)
    assert max(len(line) for line in text.splitlines()) <= 80
    words = text.replace("│", " ").split()
    assert words.count("end.") == 2
    assert all(words.count(word) >= 2 for word in trouble.split())


def test_the_summary_names_what_happened_and_where_the_files_are() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    report = make_report(status("Complete"), progress(loss_final=2.41), [], wall_seconds=131.0)
    console.print(draw_summary(report, "quickstart", [("report", REPORT_PATH)]))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "5.561 -> 2.410 nats/byte" in text
    assert "runs/quickstart/report.json" in text
    assert max(len(line) for line in text.splitlines()) <= 80

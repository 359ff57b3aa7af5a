"""What a Learner knows of itself, its metrics and its tape."""

import json
import math
import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from diloco_api.progress import LearnerState
from diloco_trainer.learner.account import HANG_STEPS, Account
from diloco_trainer.learner.metrics import LearnerCollector, Place
from diloco_trainer.learner.tape import Tape
from fakes.clock import ManualClock


def stepped(account: Account, loss: float, seconds: float = 0.5) -> None:
    account.stepped(step=3, job_step=13, token_clock=96, seconds=seconds, loss=loss, rate=1e-3, warmup_left=2)


def test_every_second_is_in_exactly_one_state() -> None:
    clock = ManualClock()
    account = Account(clock.monotonic)
    clock.advance(2)
    account.enter(LearnerState.TRAINING)
    clock.advance(3)
    account.enter(LearnerState.SYNC_WAIT)
    clock.advance(1)
    report = account.report()
    assert report.state is LearnerState.SYNC_WAIT
    assert {state: seconds for state, seconds in report.state_seconds.items() if seconds} == {
        LearnerState.INIT: 2.0,
        LearnerState.TRAINING: 3.0,
        LearnerState.SYNC_WAIT: 1.0,
    }


def test_a_step_that_hangs_is_no_training_beyond_what_steps_may_take() -> None:
    clock = ManualClock()
    account = Account(clock.monotonic)
    stepped(account, 2.0, seconds=4.0)
    account.enter(LearnerState.TRAINING)
    for _ in range(200):
        clock.advance(1)
        account.pulse()
    report = account.report()
    assert (report.state, report.state_seconds[LearnerState.TRAINING]) == (LearnerState.STALLED, HANG_STEPS * 4 + 1)
    account.enter(LearnerState.TRAINING)
    assert account.report().state is LearnerState.TRAINING


def test_a_first_step_may_take_its_time() -> None:
    clock = ManualClock()
    account = Account(clock.monotonic)
    account.enter(LearnerState.TRAINING)
    for _ in range(500):
        clock.advance(1)
        account.pulse()
    assert account.report().state_seconds[LearnerState.STALLED] == 0.0


def test_loss_is_the_mean_since_the_last_heartbeat() -> None:
    account = Account(ManualClock().monotonic)
    assert math.isnan(account.report().loss)
    stepped(account, 2.0)
    stepped(account, 4.0)
    assert account.report().loss == 3.0
    assert account.report(forget_losses=True).loss == 3.0
    assert math.isnan(account.report().loss)


def test_step_time_is_the_median() -> None:
    account = Account(ManualClock().monotonic)
    assert account.step_seconds is None
    for seconds in (0.1, 9.0, 0.2):
        stepped(account, 1.0, seconds)
    assert account.step_seconds == 0.2


def test_metrics_show_the_account() -> None:
    account = Account(ManualClock().monotonic)
    stepped(account, 2.5)
    account.sent(1000)
    registry = CollectorRegistry()
    registry.register(LearnerCollector(account, Place("toy", "default", "north", 3)))
    text = generate_latest(registry).decode()
    labels = 'diloco_job="toy",job_namespace="default",learner="3",site="north"'
    assert f"diloco_incarnation_steps_total{{{labels}}} 3.0" in text
    assert f"diloco_incarnation_loss{{{labels}}} 2.5" in text
    assert re.search(r'diloco_incarnation_sync_bytes_total\{[^}]*direction="up"[^}]*\} 1000.0', text)
    assert re.search(r'diloco_incarnation_state_seconds_total\{[^}]*state="training"[^}]*\} 0.0', text)


def test_the_tape_holds_a_line_for_everything_and_grows(tmp_path: Path) -> None:
    tape = Tape(tmp_path / "tape.jsonl")
    tape.write("step", step=1, lr=0.1, ranges=[[0, 4, 8]], loss=2.0)
    assert not (tmp_path / "tape.jsonl").exists()
    tape.flush()
    tape.write("adoption", fragment=2, version=1, step=1, how="late", stage_step=0)
    tape.flush()
    lines = [json.loads(line) for line in (tmp_path / "tape.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["step", "adoption"]
    assert lines[0]["lr"] == 0.1


def test_rates_on_the_tape_are_exact(tmp_path: Path) -> None:
    tape = Tape(tmp_path / "tape.jsonl")
    rate = 1e-3 / 3
    tape.write("step", step=1, lr=rate)
    tape.flush()
    assert json.loads((tmp_path / "tape.jsonl").read_text())["lr"] == rate


def test_a_tape_that_cannot_be_written_is_given_up_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tape = Tape(tmp_path)  # a folder
    for step in range(2):
        tape.write("step", step=step)
        tape.flush()
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}: Is a directory: the tape ends here, training goes on"
    ]


def test_no_folder_means_no_tape() -> None:
    tape = Tape(None)
    tape.write("step", step=1)
    tape.flush()

"""What a Learner knows of itself, its metrics and its tape."""

import json
import math
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from diloco_api.progress import LearnerState
from diloco_trainer.learner.account import Account
from diloco_trainer.learner.metrics import LearnerCollector
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
    registry.register(LearnerCollector(account))
    text = generate_latest(registry).decode()
    assert "diloco_learner_steps_total 3.0" in text
    assert "diloco_learner_loss 2.5" in text
    assert "diloco_learner_sent_bytes_total 1000.0" in text
    assert 'diloco_learner_state_seconds_total{state="training"} 0.0' in text


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

"""The script of `make test-gpu`, run on the CPU: its own code works, and it says so when something is wrong."""

import os
import subprocess
import sys

import pytest
import torch

from checks.source import ROOT
from diloco_trainer.learner.device import DRIVER_FILE
from gpu import verify

CPU = torch.device("cpu")
TOY = ("--learners", "1", "--set", "spec.train.model={layers: 1, hidden: 64, heads: 2}")
SMALL = verify.Size(values=20_011, steps=12, job=(*TOY, "--set", "spec.budget.tokens=40000"))


def without_gpu(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tests/gpu/verify.py"), *arguments]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.timeout(240)
def test_on_a_cpu_everything_is_good(capsys: pytest.CaptureFixture[str]) -> None:
    assert verify.run(CPU, SMALL)
    lines = capsys.readouterr().out.splitlines()
    assert not [line for line in lines if not line.startswith(("ok  ", "good, "))]
    assert [line for line in lines if line.startswith("ok   job: Complete")]


@pytest.mark.parametrize(
    ("phase", "loss", "good"), [("Complete", 4.0, True), ("Complete", 5.0, False), ("Failed", 4.0, False)]
)
def test_a_job_is_good_when_it_is_complete_and_its_loss_has_fallen(phase: str, loss: float, good: bool) -> None:
    report = {"phase": phase, "wallSeconds": 1.0, "loss": {"initial": 5.5, "final": loss}}
    assert verify.job_ended(report).good is good


def test_a_job_that_takes_too_long_is_not_good() -> None:
    (row,) = verify.job(CPU, SMALL, 1)
    assert row == verify.Row("job", False, "not over after 1 s")


def test_without_a_gpu_it_fails_in_one_line() -> None:
    answer = without_gpu()
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr.startswith("error: cuda cannot be used: ")
    assert answer.stderr.count("\n") == 1


def test_a_person_may_let_a_gpu_be_missing_but_not_a_broken_one() -> None:
    answer = without_gpu("--allow-missing")
    if DRIVER_FILE.exists():
        assert answer.returncode == 1
    else:
        assert (answer.returncode, answer.stdout) == (0, "no GPU: nothing was verified\n")

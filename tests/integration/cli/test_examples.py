"""Every manifest a newcomer finds in crds/examples is run by the real program, smaller, to its end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from diloco_api.accept import resolve_job
from diloco_api.manifest import load_job, parse_override
from diloco_cli.report import ReportV1

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "crds/examples"
TINY = [
    "spec.train.model.layers=2", "spec.train.model.hidden=16", "spec.train.model.heads=2",
    "spec.train.data.sequenceLength=16", "spec.train.batch.sequences=2",
]  # fmt: skip
SHORT = {
    "quickstart": ["spec.algorithm.fragments=4", "spec.algorithm.syncEvery=8", "spec.budget.tokens=16000"],
    "minimal": ["spec.algorithm.fragments=4", "spec.algorithm.syncEvery=8", "spec.budget.tokens=16000"],
    "diloco": ["spec.algorithm.syncEvery=10", "spec.budget.outerRounds=3"],
    "streaming": ["spec.algorithm.syncEvery=10", "spec.budget.innerSteps=40"],
    "multi-site": ["spec.algorithm.fragments=4", "spec.algorithm.syncEvery=8", "spec.budget.tokens=16000"],
}
"""What makes each one short; the data of all are a small text. Where Learners share a budget of tokens by pace, it
is large enough that the loss falls however they share it: the learning rate of each rises over its first 100 steps."""
REASONS = {
    "quickstart": "TokenBudgetReached",
    "minimal": "TokenBudgetReached",
    "diloco": "RoundBudgetReached",
    "streaming": "StepBudgetReached",
    "multi-site": "TokenBudgetReached",
}
FIELDS = {
    "schemaVersion", "phase", "reason", "wallSeconds", "outerSteps", "outerRounds", "tokens", "loss", "goodput",
    "bytes", "learners", "drills", "digests",
}  # fmt: skip
ENVIRONMENT = os.environ | {
    "PYTHONPATH": ":".join(str(ROOT / name) for name in ("crds", "operator", "trainer_image")),
    "OMP_NUM_THREADS": "1",
}


def run(name: str, folder: Path, settings: list[str]) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", "from diloco_cli.main import main; main()", "run", str(FOLDER / f"{name}.yaml")]
    for setting in settings:
        program += ["--set", setting]
    return subprocess.run(
        program, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=110, check=False
    )


def test_there_is_a_run_for_every_example() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(SHORT)


@pytest.mark.parametrize("name", SHORT)
def test_an_example_runs_to_its_end_and_leaves_report_and_parameters(tmp_path: Path, name: str) -> None:
    text = "".join(f"for number in range({number}): print(number * {number})\n" for number in range(300))
    (tmp_path / "text.py").write_text(text)
    settings = [*TINY, *SHORT[name], f"spec.train.data.uri={tmp_path}/text.py"]
    answer = run(name, tmp_path, settings)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert answer.stderr == ""
    assert f"job {name}: Complete ({REASONS[name]})" in answer.stdout

    written = (tmp_path / "runs" / name / "report.json").read_text()
    assert json.loads(written).keys() == FIELDS
    report = ReportV1.model_validate_json(written)
    manifest = load_job((FOLDER / f"{name}.yaml").read_text(), name, [parse_override(text) for text in settings])
    resolved = resolve_job(manifest)
    check(report, replicas=resolved.replicas, fragments=resolved.policy.num_fragments)
    assert report.reason == REASONS[name]
    tensors = load_file(tmp_path / "runs" / name / "outer.safetensors")
    assert sum(tensor.numel() for tensor in tensors.values()) == resolved.shape.num_parameters
    assert all(tensor.isfinite().all() for tensor in tensors.values())


def check(report: ReportV1, replicas: int, fragments: int) -> None:
    assert (report.schema_version, report.phase, report.drills) == (1, "Complete", [])
    assert report.wall_seconds > 0
    assert report.outer_steps >= fragments * report.outer_rounds >= fragments
    tokens = report.tokens
    parts = tokens.merged + tokens.overlap + tokens.discarded + tokens.in_flight
    assert tokens.trained == pytest.approx(parts)
    assert tokens.merged > 0
    assert tokens.in_flight == tokens.repeated == 0
    assert report.loss.initial is not None
    assert report.loss.final is not None
    assert report.loss.final < report.loss.initial
    for part in (report.goodput.capacity, report.goodput.accepted, report.goodput.uptime):
        assert part is not None
        assert 0 <= part <= 1
    assert report.bytes.up > 0
    assert report.bytes.down > 0
    assert [learner.index for learner in report.learners] == list(range(replicas))
    assert all(learner.site == "local" and learner.incarnations <= 1 for learner in report.learners)  # 0: came too late
    assert sum(learner.inner_steps for learner in report.learners) > 0
    assert all(seconds >= 0 for learner in report.learners for seconds in learner.states.values())
    assert list(report.digests) == list(range(fragments))
    assert all(len(known.digest) == 64 and known.version >= 1 for known in report.digests.values())
    assert sum(known.version for known in report.digests.values()) == report.outer_steps


def test_the_examples_are_short_and_say_what_they_are() -> None:
    for path in FOLDER.iterdir():
        assert path.read_text().startswith("# "), path.name
        assert yaml.safe_load(path.read_text())["metadata"]["name"] == path.stem

"""What continuous integration may meet: no home folder, a checkout that belongs to somebody else."""

import subprocess
from pathlib import Path

import pytest

from checks.source import ROOT, repository_files


def test_the_script_runs_without_a_home_folder(tmp_path: Path) -> None:
    for name in ("make", "uv", "mkdir"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho "{name} $*"\n')
        program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    answer = subprocess.run(["bash", ROOT / ".ci/run"], env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    steps = [line for line in answer.stdout.splitlines() if not line.startswith("---")]
    made = [f"make --no-print-directory {target}" for target in ("setup", "verify", "test", "test-chart")]
    assert steps[:-1] == ["mkdir -p /tmp/.cache/diloco-ci", *made]
    clusters, _, chosen = steps[-1].partition(" CLUSTER_TESTS=")
    assert clusters == "make --no-print-directory test-clusters"
    assert chosen
    assert all((ROOT / path).is_file() for path in chosen.split())


def test_the_files_of_another_users_checkout_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "file.py").touch()
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert repository_files(tmp_path) == ["file.py"]

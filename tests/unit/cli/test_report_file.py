import os
from pathlib import Path

import pytest

from diloco_api.errors import SpecError
from diloco_cli.report_file import check_report, write_report


def refused(path: Path, workdir: Path) -> str:
    with pytest.raises(SpecError) as error:
        check_report(path, workdir)
    assert str(error.value).startswith(f"--report {path}: ")
    return str(error.value)


@pytest.mark.parametrize("name", ["report.json", "other/deep/report.json", "run/report.json", "run/mine/report.json"])
def test_a_report_that_can_be_written_leaves_no_trace_of_the_trial(tmp_path: Path, name: str) -> None:
    check_report(tmp_path / name, tmp_path / "run")
    assert os.listdir(tmp_path) == []


def test_a_folder_that_takes_no_files_is_refused_whoever_asks() -> None:
    assert "/proc cannot be written" in refused(Path("/proc/r.json"), Path("run"))
    assert "/proc cannot be written" in refused(Path("/proc/none/r.json"), Path("/proc/none"))


@pytest.mark.parametrize("name", ["logs", "logs/r.json", "job.json", "key"])
def test_what_the_run_keeps_in_its_folder_is_not_replaced(tmp_path: Path, name: str) -> None:
    assert f"the run itself uses {name.split('/')[0]}" in refused(tmp_path / name, tmp_path)


def test_devices_and_files_as_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "not a regular file" in refused(Path("/dev/null"), tmp_path)
    assert "cannot be written" in refused(tmp_path / "file/r.json", tmp_path / "run")
    assert "is a folder" in refused(tmp_path, tmp_path / "run")


def test_why_a_report_could_not_be_written_is_one_line(tmp_path: Path) -> None:
    assert write_report(tmp_path / "new/r.json", "{}\n") == ""
    assert (tmp_path / "new/r.json").read_text() == "{}\n"
    (tmp_path / "taken/x").mkdir(parents=True)
    problem = write_report(tmp_path / "taken", "{}\n")
    assert problem.startswith(f"--report {tmp_path / 'taken'}: cannot be written: ")

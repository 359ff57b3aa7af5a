"""What a data URI means."""

import os
from pathlib import Path

import pytest

from diloco_trainer.task.errors import DataError
from diloco_trainer.task.files import find_files


def write(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def names(folder: Path, uri: str) -> list[str]:
    return [str(path.relative_to(folder)) for path in find_files(uri)]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.txt", ["a.txt", "b.txt"]),
        ("**/*.txt", ["a.txt", "b.txt", "deep/deeper/d.txt", "deep/e.txt"]),
        ("deep/**", ["deep/deeper/d.txt", "deep/e.txt"]),
        ("deep/*/*.txt", ["deep/deeper/d.txt"]),
        ("**/deeper/*", ["deep/deeper/d.txt"]),
        ("[ab].txt", ["a.txt", "b.txt"]),
        ("?.bin", ["c.bin"]),
        (".h*/*", [".hidden/f.txt"]),
        ("b.txt", ["b.txt"]),
    ],
)
def test_a_glob_finds_files_in_the_order_of_their_names(tmp_path: Path, pattern: str, expected: list[str]) -> None:
    write(tmp_path, "b.txt", "a.txt", "c.bin", "deep/e.txt", "deep/deeper/d.txt", ".hidden/f.txt")
    assert names(tmp_path, f"{tmp_path}/{pattern}") == expected
    assert names(tmp_path, f"file://{tmp_path}/{pattern}") == expected


def test_a_loop_of_links_is_walked_once(tmp_path: Path) -> None:
    write(tmp_path, "deep/a.txt")
    os.symlink(tmp_path, tmp_path / "deep" / "loop")
    assert names(tmp_path, f"{tmp_path}/**/*") == ["deep/a.txt"]


def test_a_link_to_a_file_counts_as_a_file(tmp_path: Path) -> None:
    write(tmp_path, "a.txt")
    os.symlink(tmp_path / "a.txt", tmp_path / "b.txt")
    assert names(tmp_path, f"{tmp_path}/*.txt") == ["a.txt", "b.txt"]


def test_the_standard_library_comes_without_installed_packages() -> None:
    found = [str(path) for path in find_files("{stdlib}/**/*.py")]
    assert any(path.endswith("/heapq.py") for path in found)
    assert any(path.endswith("/json/decoder.py") for path in found)
    assert not any("site-packages" in path or "dist-packages" in path for path in found)


def test_a_broken_link_is_refused_by_name(tmp_path: Path) -> None:
    os.symlink(tmp_path / "nowhere", tmp_path / "a.txt")
    with pytest.raises(DataError, match=r"a\.txt: cannot be read: No such file"):
        find_files(f"{tmp_path}/*.txt")


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.txt")
    with pytest.raises(DataError, match=r"a\.txt is not a regular file"):
        find_files(f"{tmp_path}/*.txt")


@pytest.mark.parametrize(
    ("uri", "problem"),
    [
        ("{tmp}/*.nothing", "no file matches"),
        ("{tmp}/absent.txt", r"absent\.txt: cannot be read: No such file"),
        ("{tmp}/absent/**/*.txt", "absent: cannot be read"),
        ("{tmp}", r"is a folder; name its files with a glob"),
        ("s3://bucket/text", "scheme s3:// is not supported"),
        ("file://host/text", "needs an absolute path"),
    ],
)
def test_a_uri_that_cannot_be_used_is_one_line(tmp_path: Path, uri: str, problem: str) -> None:
    with pytest.raises(DataError, match=problem) as caught:
        find_files(uri.replace("{tmp}", str(tmp_path)))
    assert str(caught.value).startswith("data.uri: ")
    assert "\n" not in str(caught.value)

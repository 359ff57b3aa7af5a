"""The lock files of the images and the digest of what was tested: `make verify` finds what no longer fits."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from checks.source import ROOT

ENTRY = "{name}==1.0{marker} \\\n    --hash=sha256:00 \\\n    --hash=sha256:11\n"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The repository, as far as the images depend on it."""
    for name in ("Dockerfile", ".dockerignore", "pyproject.toml", ".ci", "tests/images", "tests/images.digest"):
        source, target = ROOT / name, tmp_path / "repository" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    return tmp_path / "repository"


def run(script: str, *arguments: str | Path, path: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / ".ci" / script), *map(str, arguments)]
    return subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, check=False)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ('"pyyaml>=6.0"', '"pyyaml>=6.1"', "operator"),
        ('"safetensors>=0.5",', "", "trainer"),
        ('dependencies = ["pydantic', 'dependencies = ["x", "pydantic', "operator"),
        ('"setuptools>=77"', '"setuptools>=78"', "build"),
    ],
)
def test_a_requirement_the_lock_does_not_know_is_found(copy: Path, old: str, new: str, name: str) -> None:
    assert run("lock.py", "--check", "--root", copy).returncode == 0
    edit(copy / "pyproject.toml", old, new)
    answer = run("lock.py", "--check", "--root", copy)
    assert answer.returncode == 1
    assert answer.stderr == f"error: .ci/lock: the requirements of {name} in pyproject.toml have changed: make lock\n"


def test_requirements_of_other_parts_need_no_new_lock(copy: Path) -> None:
    edit(copy / "pyproject.toml", '"rich>=13.9"', '"rich>=14.0"')
    assert run("lock.py", "--check", "--root", copy).returncode == 0


def test_a_lock_file_that_is_missing_is_found(copy: Path) -> None:
    (copy / ".ci/lock/torch.txt").unlink()
    assert run("lock.py", "--check", "--root", copy).stderr == "error: .ci/lock/torch.txt is missing: make lock\n"


def test_torch_and_what_is_cudas_are_apart(copy: Path, tmp_path: Path) -> None:
    names = ["cuda-bindings", "filelock", "networkx", "nvidia-cublas", "torch", "triton", "yarl"]
    marker = " ; sys_platform == 'linux'"
    found = tmp_path / "found"
    found.write_text("".join(ENTRY.format(name=name, marker=marker if name[:2] == "nv" else "") for name in names))
    uv = tmp_path / "uv"
    uv.write_text(f'#!/bin/sh\nwhile [ "$1" != --output-file ]; do shift; done\n/bin/cat {found} >"$2"\n')
    uv.chmod(0o755)
    answer = run("lock.py", "--root", copy, path=str(tmp_path))
    assert answer.returncode == 0, answer.stderr
    locked = {
        part: [line.partition("==")[0] for line in (copy / f".ci/lock/{part}.txt").read_text().splitlines()[1::3]]
        for part in ("operator", "trainer", "torch")
    }
    assert locked["torch"] == ["cuda-bindings", "nvidia-cublas", "torch", "triton"]
    assert locked["trainer"] == ["filelock", "networkx", "yarl"]
    assert locked["operator"] == names
    assert run("lock.py", "--check", "--root", copy).returncode == 0


def test_without_uv_the_lock_stays_as_it_is(copy: Path) -> None:
    before = (copy / ".ci/lock/operator.txt").read_bytes()
    answer = run("lock.py", "--root", copy)
    assert (answer.returncode, answer.stderr) == (1, "error: make lock needs uv on PATH (pip install uv)\n")
    assert (copy / ".ci/lock/operator.txt").read_bytes() == before


@pytest.mark.parametrize("name", ["Dockerfile", ".dockerignore", ".ci/lock/torch.txt", ".ci/image-install"])
def test_an_image_that_was_not_tested_as_it_is_now_is_found(copy: Path, name: str) -> None:
    with (copy / name).open("a") as file:
        file.write("# changed\n")
    answer = run("images_digest.py", "--check", "--root", copy)
    assert answer.returncode == 1
    assert answer.stderr.startswith(f"error: {name}: not what the images were last built and tested with")
    assert answer.stderr.rstrip().endswith("make test-images")
    run("images_digest.py", "--root", copy)
    assert run("images_digest.py", "--check", "--root", copy).returncode == 0


def test_how_the_sources_are_packaged_is_part_of_what_was_tested(copy: Path) -> None:
    assert run("images_digest.py", "--check", "--root", copy).returncode == 0
    edit(copy / "pyproject.toml", '"*" = ["py.typed"]', "")
    assert "tool.setuptools" in run("images_digest.py", "--check", "--root", copy).stderr


def test_a_lock_file_more_or_less_is_found(copy: Path) -> None:
    (copy / ".ci/lock/more.txt").touch()
    (copy / ".ci/lock/build.txt").unlink()
    answer = run("images_digest.py", "--check", "--root", copy)
    assert answer.stderr.startswith("error: .ci/lock/build.txt, .ci/lock/more.txt: not what")


@pytest.mark.parametrize(("told", "size"), [("5.88 GB", 5_880_000_000), ("314 MB", 314_000_000), ("12 B", 12)])
def test_the_size_of_an_image_is_known_before_it_is_copied(tmp_path: Path, told: str, size: int) -> None:
    buildah = tmp_path / "buildah"
    buildah.write_text(f'#!/bin/sh\necho \'[{{"size": "{told}"}}]\'\n')
    buildah.chmod(0o755)
    answer = run("images.py", "size", "trainer", path=str(tmp_path))
    assert (answer.returncode, answer.stdout) == (0, f"{size}\n")


def test_an_image_that_was_not_built_is_told(tmp_path: Path) -> None:
    buildah = tmp_path / "buildah"
    buildah.write_text("#!/bin/sh\nexit 125\n")
    buildah.chmod(0o755)
    answer = run("images.py", "size", "operator", path=str(tmp_path))
    assert (answer.returncode, answer.stderr) == (
        1,
        "error: there is no image localhost/diloco-operator:dev: make images\n",
    )

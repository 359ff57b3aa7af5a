"""Both images as they were built (make test-images builds them first): what is in them, what is not, that they run.

Needs buildah and root. The tag is IMAGE_TAG's.
"""

import json
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from checks.source import ROOT
from images import read_only
from reference.hand import run_config

TAG = os.environ.get("IMAGE_TAG", "dev")


@dataclass(frozen=True)
class Container:
    """One that was made from an image and is not running."""

    name: str
    root: Path
    config: dict[str, object]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """As a cluster would: as the image's user, with its variables."""
        return buildah("run", self.name, "--", *command)

    @property
    def variables(self) -> dict[str, str]:
        found = self.config["Env"]
        assert isinstance(found, list)
        return dict(pair.split("=", 1) for pair in found)

    def run_read_only(self, folder: Path, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return read_only.run(self.root, folder, self.variables, words)


def buildah(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
    return subprocess.run(["buildah", *arguments], capture_output=True, text=True, env=environment, check=False)


def told(*arguments: str) -> str:
    answer = buildah(*arguments)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


def container(target: str) -> Iterator[Container]:
    image = f"localhost/diloco-{target}:{TAG}"
    config = json.loads(told("inspect", "--type", "image", image))["OCIv1"]["config"]
    name = told("from", "--pull-never", image)
    try:
        yield Container(name, Path(told("mount", name)), config)
    finally:
        told("rm", name)


@pytest.fixture(scope="module")
def operator() -> Iterator[Container]:
    yield from container("operator")


@pytest.fixture(scope="module")
def trainer() -> Iterator[Container]:
    yield from container("trainer")


@pytest.fixture(params=["operator", "trainer"])
def either(request: pytest.FixtureRequest) -> Container:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Container)
    return found


def test_it_runs_as_a_numeric_user_that_is_not_root(either: Container) -> None:
    assert either.config["User"] == "65532:65532"
    assert either.run("python", "-c", "import os; print(os.getuid(), os.getgid())").stdout == "65532 65532\n"


def test_its_user_can_change_nothing_in_it(either: Container) -> None:
    code = (
        "import os\n"
        "for top in ('/opt', '/etc', '/usr'):\n"
        "  for at, _, _ in os.walk(top):\n"
        "    assert not os.access(at, os.W_OK), at"
    )
    answer = either.run("python", "-c", code)
    assert answer.returncode == 0, answer.stderr


def test_it_says_what_it_is(either: Container) -> None:
    labels = either.config["Labels"]
    assert isinstance(labels, dict)
    told = {name.removeprefix("org.opencontainers.image."): value for name, value in labels.items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert told["title"] in ("DiLoCo operator", "DiLoCo trainer")
    assert told["description"]
    assert (told["licenses"], told["version"]) == (project["license"], project["version"])
    assert re.fullmatch("unknown|[0-9a-f]{40}", told["revision"])


@pytest.mark.parametrize(("image", "files"), [("operator", ["operator"]), ("trainer", ["torch", "trainer"])])
def test_what_is_installed_in_it_is_what_the_lock_says(
    image: str, files: list[str], request: pytest.FixtureRequest
) -> None:
    code = "import importlib.metadata as m; print(*{f'{d.name}=={d.version}' for d in m.distributions()}, sep='\\n')"
    installed = {_comparable(line) for line in request.getfixturevalue(image).run("python", "-c", code).stdout.split()}
    text = "".join((ROOT / f".ci/lock/{name}.txt").read_text() for name in files)
    locked = re.findall(r"^([\w.-]+==[^ ;]+)( ;)?", text, re.MULTILINE)
    assert {_comparable(pin) for pin, marker in locked if not marker} <= installed
    surplus = installed - {_comparable(pin) for pin, _ in locked}
    assert {name.partition("==")[0] for name in surplus} == {"diloco-operator"}


def _comparable(pin: str) -> str:
    """Without the local part of a version, by which an index tells builds apart."""
    return pin.replace("_", "-").lower().partition("+")[0]


@pytest.mark.parametrize(
    ("image", "there", "not_there"),
    [
        ("operator", {"kopf", "kubernetes", "diloco_operator"}, {"torch", "grpc", "typer", "pytest"}),
        ("trainer", {"torch", "grpc", "diloco_trainer"}, {"kopf", "kubernetes", "typer", "pytest"}),
    ],
)
def test_it_has_what_its_part_needs_and_not_what_the_other_needs(
    image: str, there: set[str], not_there: set[str], request: pytest.FixtureRequest
) -> None:
    probe = f"import importlib.util as u; print(*[n for n in {sorted(there | not_there)!r} if u.find_spec(n)])"
    assert set(request.getfixturevalue(image).run("python", "-c", probe).stdout.split()) == there


def test_nothing_of_the_build_is_left_in_it(either: Container) -> None:
    for left in ("etc/pip.conf", "root/.cache", "root/.config", "tmp/pip*", "var/lib/apt/lists/*", "opt/venv/bin/pip*"):
        assert list(either.root.glob(left)) == [], left
    assert not any((either.root / "run/secrets").iterdir())
    for name in ("etc/hostname", "etc/resolv.conf", "etc/hosts"):
        file = either.root / name
        assert not file.exists() or file.read_text().strip() == "", f"{name} is the builder's"
    names = " ".join(either.config["Env"])  # type: ignore[arg-type]
    assert not any(word in names for word in ("PIP_", "proxy", "PROXY", "CERT", "INDEX"))


def test_there_is_no_compiler_in_it(either: Container) -> None:
    programs = {
        path.name
        for folder in ("bin", "sbin", "usr/bin", "usr/sbin", "usr/local/bin", "opt/venv/bin")
        for path in (either.root / folder).glob("*")
    }
    compilers = re.compile(r"(.*-)?(cc|gcc|g\+\+|c\+\+|cpp|clang|ld|as|make|nvcc|rustc|go)(-[0-9.]+)?")
    assert [name for name in programs if compilers.fullmatch(name)] == []


def test_the_operator_says_how_it_is_used(operator: Container, tmp_path: Path) -> None:
    assert operator.config["Entrypoint"] == ["python", "-m", "diloco_operator"]
    answer = operator.run_read_only(tmp_path, ["python", "-m", "diloco_operator", "--help"])
    assert answer.returncode == 0, answer.stderr
    assert "--lease-namespace" in answer.stdout


@pytest.mark.parametrize("part", ["synchronizer", "learner"])
def test_the_trainer_says_in_one_line_that_it_has_no_configuration(part: str, trainer: Container) -> None:
    answer = trainer.run("python", "-m", f"diloco_trainer.{part}")
    assert answer.returncode != 0
    lines = [line for line in answer.stderr.splitlines() if "exit status" not in line and "exited with" not in line]
    assert len(lines) == 1, answer.stderr
    assert "DILOCO_" in lines[0]
    assert "Traceback" not in answer.stderr


@pytest.mark.timeout(300)
def test_the_trainer_trains_a_job_to_its_end_on_a_root_that_cannot_be_written(
    trainer: Container, tmp_path: Path
) -> None:
    refused = trainer.run_read_only(tmp_path, ["touch", "/opt/diloco/x"])
    assert "Read-only file system" in refused.stderr
    run = run_config(tmp_path, "DecoupledDiLoCo", replicas=2, steps=200, changes={})
    with read_only.ImageJob(run, tmp_path) as job:
        job.root, job.variables = trainer.root, trainer.variables
        job.start_synchronizer()
        for index in range(2):
            job.start_learner(index)
        job.finish()
        merges = job.merges()
    assert len({merge.version for merge, _, _ in merges}) > 1

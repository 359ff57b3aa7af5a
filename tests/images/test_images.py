"""Both images as they were built (make test-images builds them first): what is in them, what is not, that they run.

Needs buildah and root. The tag is IMAGE_TAG's.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

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


def test_the_operator_says_how_it_is_used(operator: Container) -> None:
    assert operator.config["Entrypoint"] == ["python", "-m", "diloco_operator"]
    answer = operator.run("python", "-m", "diloco_operator", "--help")
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


def test_the_trainer_trains_a_step(trainer: Container) -> None:
    code = (
        "import torch, pathlib\n"
        "model = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "model(torch.ones(2, 4)).sum().backward()\n"
        "optimizer.step()\n"
        "print(torch.isfinite(model.weight).all().item())\n"
    )
    answer = trainer.run("python", "-c", code)
    assert answer.stdout == "True\n", answer.stderr

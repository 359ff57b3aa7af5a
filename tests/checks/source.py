"""Reading the repository: which files are ours, which are generated, where the roots of the packages are."""

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = ("crds", "operator", "trainer_image", "helm")
GENERATED = ("trainer_image/diloco_trainer/wire/gen/",)


@dataclass(frozen=True)
class Breach:
    """One thing that is wrong, and where."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Module:
    """One Python file: its path relative to the repository, its text, its tree."""

    path: str
    text: str
    tree: ast.Module


def read_module(path: str, text: str) -> Module:
    return Module(path, text, ast.parse(text, filename=path))


def repository_files(root: Path = ROOT) -> list[str]:
    """Tracked files and new ones that are not ignored, as far as they exist, sorted."""
    anyone = ["-c", "safe.directory=*"]  # a checkout may belong to another user than the one who checks it
    listing = subprocess.run(
        ["git", *anyone, "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return sorted({name for name in listing.stdout.split("\0") if name and (root / name).is_file()})


def package_modules(files: list[str], root: Path = ROOT) -> Iterator[Module]:
    """The hand-written modules of the packages."""
    for path in files:
        in_package = path.endswith(".py") and path.split("/")[0] in SOURCE_ROOTS
        if in_package and not path.startswith(GENERATED):
            yield read_module(path, (root / path).read_text(encoding="utf-8"))

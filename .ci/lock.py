"""The lock files of the images, in .ci/lock: what `make lock` writes and `make verify` checks. Standard library only.

Each lists every package with its version and the hashes of its files, for Python 3.11 or newer. `made-from` has a
digest of what each was resolved from: a change of pyproject.toml that they do not know is found without a network.
torch and the CUDA libraries it brings are apart, so that an image can take another build of torch (TORCH_INDEX).
`build.txt`: what turns the sources into an installed package.
"""

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path(".ci/lock")
FILES = {"build": ["build"], "operator": ["operator"], "trainer": ["trainer", "torch"]}
"""Files of each part; of two, the second has torch."""
MADE_FROM = FOLDER / "made-from"
FIRST_LINE = "# Made by `make lock`, not by hand.\n"
OF_TORCH = re.compile(r"(torch|triton|nvidia-[a-z0-9-]+|cuda-[a-z0-9-]+)==")


class Failed(Exception):
    """With the line that says what to do."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 when a file does not fit")
    parser.add_argument("--upgrade", action="store_true", help="newest versions of everything, not only where needed")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    arguments = parser.parse_args()
    parts = requirements(tomllib.loads((arguments.root / "pyproject.toml").read_text(encoding="utf-8")))
    try:
        if arguments.check:
            check(arguments.root, parts)
        else:
            for part, needed in parts.items():
                write(arguments.root, part, needed, upgrade=arguments.upgrade)
            lines = [f"{digest(needed)}  {part}\n" for part, needed in parts.items()]
            (arguments.root / MADE_FROM).write_text("".join(lines), encoding="utf-8")
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def requirements(project: Mapping[str, Any]) -> dict[str, list[str]]:
    """What each part of pyproject.toml asks for."""
    extras, common = project["project"]["optional-dependencies"], project["project"]["dependencies"]
    return {
        "build": sorted(project["build-system"]["requires"]),
        "operator": sorted({*common, *extras["operator"]}),
        "trainer": sorted({*common, *extras["trainer"]}),
    }


def digest(needed: list[str]) -> str:
    return hashlib.sha256("\n".join(needed).encode()).hexdigest()


def check(root: Path, parts: Mapping[str, list[str]]) -> None:
    known = (root / MADE_FROM).read_text(encoding="utf-8").splitlines() if (root / MADE_FROM).exists() else []
    for part, needed in parts.items():
        if f"{digest(needed)}  {part}" not in known:
            raise Failed(f"{FOLDER}: the requirements of {part} in pyproject.toml have changed: make lock")
        for name in FILES[part]:
            if not (root / FOLDER / f"{name}.txt").exists():
                raise Failed(f"{FOLDER / name}.txt is missing: make lock")


def write(root: Path, part: str, needed: list[str], *, upgrade: bool) -> None:
    """Resolve a part anew; versions that still fit stay."""
    paths = [root / FOLDER / f"{name}.txt" for name in FILES[part]]
    with tempfile.TemporaryDirectory() as folder:
        wanted, found = Path(folder, "wanted.in"), Path(folder, "found.txt")
        wanted.write_text("\n".join(needed), encoding="utf-8")
        found.write_text("".join(path.read_text(encoding="utf-8") for path in paths if path.exists()), encoding="utf-8")
        _resolve(wanted, found, upgrade=upgrade)
        entries = re.findall(r"^\S.*\n(?: .*\n)*", found.read_text(encoding="utf-8"), re.MULTILINE)
    shares = [[entry for entry in entries if not OF_TORCH.match(entry)], [e for e in entries if OF_TORCH.match(e)]]
    for path, share in zip(paths, shares if len(paths) == 2 else [entries], strict=True):
        path.write_text(FIRST_LINE + "".join(share), encoding="utf-8")
        print(f"{path.relative_to(root)}: {len(share)} packages")


def _resolve(wanted: Path, found: Path, *, upgrade: bool) -> None:
    uv = shutil.which("uv")
    if uv is None:
        raise Failed("make lock needs uv on PATH (pip install uv)")
    command = [uv, "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--generate-hashes"]
    command += ["--no-header", "--no-annotate", "--output-file", str(found), str(wanted)]
    if subprocess.run(
        [*command, "--upgrade"] if upgrade else command, stdout=subprocess.DEVNULL, check=False
    ).returncode:
        raise Failed("uv could not resolve the requirements of pyproject.toml; it said why above")


if __name__ == "__main__":
    sys.exit(main())

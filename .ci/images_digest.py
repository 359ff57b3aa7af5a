"""tests/images.digest: what `make test-images` last built and ran, so that `make verify` can tell what it did not.

A line for each file that decides what is in an image besides the project's own code: its sha256 and its name. Standard
library only.
"""

import argparse
import hashlib
import json
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIGEST = Path("tests/images.digest")
PACKAGING = "pyproject.toml: build-system, tool.setuptools"
PATTERNS = ("Dockerfile", ".dockerignore", ".ci/image-install", ".ci/lock/*.txt", "tests/images/base.sh")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 when something has changed")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    arguments = parser.parse_args()
    path, now = arguments.root / DIGEST, digests(arguments.root)
    if not arguments.check:
        path.write_text("".join(f"{digest}  {name}\n" for name, digest in now.items()), encoding="utf-8")
        return 0
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    then = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    changed = sorted(name for name in now.keys() | then.keys() if now.get(name) != then.get(name))
    if changed:
        print(
            f"error: {', '.join(changed)}: not what the images were last built and tested with ({DIGEST}); "
            "as root, with 14 GB of free disk: make test-images",
            file=sys.stderr,
        )
    return 1 if changed else 0


def digests(root: Path) -> dict[str, str]:
    """sha256 of each, by name."""
    paths = sorted(path for pattern in PATTERNS for path in root.glob(pattern))
    found = {path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    packaging = json.dumps([project["build-system"], project["tool"]["setuptools"]], sort_keys=True)
    return found | {PACKAGING: hashlib.sha256(packaging.encode()).hexdigest()}


if __name__ == "__main__":
    sys.exit(main())

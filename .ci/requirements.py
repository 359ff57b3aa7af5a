"""Prints what one part of the project needs, a requirement a line: `requirements.py operator`. Standard library only.

The Dockerfile installs it before the sources, so that a change of code does not install torch again.
"""

import sys
import tomllib
from pathlib import Path


def main() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    print(*project["dependencies"], *project["optional-dependencies"][sys.argv[1]], sep="\n")


if __name__ == "__main__":
    main()

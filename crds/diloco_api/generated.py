"""Files that are made from the models: written, or in verification only compared."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path


def write_or_check(what: str, path: Path, build: Callable[[], str], arguments: Sequence[str] | None) -> int:
    """Make the file current; with `--check` only say whether it is. Returns the exit code."""
    parser = argparse.ArgumentParser(description=f"Generate {what}.")
    parser.add_argument("--check", action="store_true", help="only say whether the file is current")
    check = parser.parse_args(arguments).check
    text = build()
    current = path.exists() and path.read_text(encoding="utf-8") == text
    if check and not current:
        print(f"error: {path.name} is not what the models say; run `make manifests`", file=sys.stderr)
        return 1
    if not current:
        path.write_text(text, encoding="utf-8")
    return 0

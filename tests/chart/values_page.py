"""Generates docs/charts.md, the reference of both charts' values, from the comments in their values.yaml.

`python -m chart.values_page [--check]` with tests/ on the path. A key's comment is the lines above it; keys below a
commented one that have none themselves are told with it.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from diloco_api.generated import write_or_check

ROOT = Path(__file__).resolve().parents[2]
PAGE_PATH = ROOT / "docs/charts.md"
CHARTS = ("diloco-operator", "diloco-site")
_KEY = re.compile(r"""^( *)["']?([A-Za-z0-9_./-]+)["']?:( |$)""")
_HEAD = Path(__file__).with_name("values_page_head.txt")


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    path: str
    default: str
    """As JSON; empty for a group of which the members are told."""
    text: str


def comments_of(text: str) -> dict[tuple[str, ...], str]:
    """Comment of every commented key of a values.yaml. A blank line parts a comment from what follows."""
    found: dict[tuple[str, ...], str] = {}
    path: list[tuple[int, str]] = []
    lines: list[str] = []
    for line in text.splitlines():
        if line.strip().startswith("#"):
            lines.append(line.strip().lstrip("#").strip())
            continue
        if key := _KEY.match(line):
            depth = len(key.group(1))
            path = [(at, name) for at, name in path if at < depth] + [(depth, key.group(2))]
            if lines:
                found[tuple(name for _, name in path)] = " ".join(lines)
        lines = []
    return found


def rows_of(text: str) -> list[Row]:
    """In the order of the file."""
    return list(_rows(yaml.safe_load(text), comments_of(text), ()))


def _rows(values: Mapping[str, Any], comments: Mapping[tuple[str, ...], str], above: tuple[str, ...]) -> Iterator[Row]:
    for name, value in values.items():
        path = (*above, str(name))
        inner = any(len(other) > len(path) and other[: len(path)] == path for other in comments)
        if path in comments:
            yield Row(".".join(path), "" if inner else json.dumps(value), comments[path])
        if inner:
            yield from _rows(value, comments, path)


def build_page() -> str:
    """The page's text."""
    parts = [_HEAD.read_text(encoding="utf-8")]
    for chart in CHARTS:
        parts.append(f"\n## Values of {chart}\n\n| value | default | what |\n|---|---|---|\n")
        for row in rows_of((ROOT / "helm" / chart / "values.yaml").read_text(encoding="utf-8")):
            default = f"`{row.default}`" if row.default else ""
            cells = (f"`{row.path}`", default, row.text)
            parts.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |\n")
    return "".join(parts)


def main(arguments: Sequence[str] | None = None, path: Path = PAGE_PATH) -> int:
    return write_or_check("the page about the charts", path, build_page, arguments)


if __name__ == "__main__":
    sys.exit(main())

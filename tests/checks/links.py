"""Relative links of Markdown files point at something; anchors at a heading that is there."""

import re
from collections.abc import Iterator
from pathlib import Path

from checks.source import Breach

_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$")


def check(path: str, root: Path) -> Iterator[Breach]:
    for number, line in _prose(root / path):
        for target in _LINK.findall(re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            name, _, anchor = target.partition("#")
            there = (root / path).parent / name if name else root / path
            if not there.exists():
                yield Breach(path, number, f"link to {target}: no such file")
            elif anchor and there.suffix == ".md" and anchor not in _anchors(there):
                yield Breach(path, number, f"link to {target}: no such heading")


def _prose(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines outside of fenced code."""
    fenced = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def _anchors(path: Path) -> set[str]:
    headings = (match.group(1) for _, line in _prose(path) if (match := _HEADING.match(line)))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}

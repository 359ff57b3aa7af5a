"""The rows of `diloco site check` as a table. Draws only."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from diloco_cli.site_commands import Finding

_STYLES = {"ok": "green", "missing": "yellow", "failed": "bold red", "not asked": "dim"}


def draw(findings: Sequence[Finding]) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for title in ("what", "verdict", ""):
        table.add_column(title, overflow="fold")
    for finding in findings:
        table.add_row(finding.what, Text(finding.verdict, style=_STYLES[finding.verdict]), Text(finding.detail))
    return table

"""The run as a live picture in a terminal: headline, progress, a row per Learner, the last happenings. Draws only.

Laid out for 80 columns and more; figures that do not fit into 80 are left out there, sentences are wrapped.
"""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from diloco_cli import wording
from diloco_cli.view import Happening, LearnerRow, View

HAPPENINGS = 6
WIDE = 100

STATE_STYLES = {
    "training": "green",
    "Running": "green",
    "sync_wait": "yellow",
    "data_wait": "yellow",
    "drain": "cyan",
    "unheard": "red",
    "left": "dim",
    "BackOff": "red",
    "Parked": "red",
    "Stalled": "red",
}


def draw(view: View, happenings: Sequence[Happening], width: int, spinner: Spinner) -> RenderableType:
    """The whole picture for a terminal of `width` columns; `spinner` is kept by the caller so that it turns."""
    wide = width >= WIDE
    parts: list[RenderableType] = [_progress(view)]
    if view.waiting_for:
        waiting = Table.grid(padding=(0, 1))
        waiting.add_column(no_wrap=True)
        waiting.add_column(style="yellow")
        waiting.add_row(spinner, view.waiting_for)
        parts.append(waiting)
    if view.outer_steps > 0:
        parts.append(_facts(view, wide))
    parts += [Text(), _learners(view, wide)]
    if view.message:
        parts.append(Text(view.message, style="yellow"))
    if happenings:
        parts.append(Text())
        parts += [_happening(what) for what in happenings[-HAPPENINGS:]]
    return Panel(
        Group(*parts),
        title=Text.assemble((view.headline.job, "bold"), f" - {view.headline.preset}"),
        title_align="left",
        subtitle=Text("Ctrl-C stops in good order, a second one at once", style="dim"),
        subtitle_align="right",
    )


def _progress(view: View) -> RenderableType:
    row = Table.grid(padding=(0, 1), expand=True)
    row.add_column(ratio=1)
    row.add_column(justify="right", no_wrap=True)
    bar = ProgressBar(total=100.0, completed=view.percent)
    eta = f"{wording.duration(view.eta_seconds)} left" if view.eta_seconds is not None else view.phase or "Starting"
    row.add_row(bar, f"{view.percent:5.1f} %  {wording.duration(view.elapsed_seconds)}, {eta}")
    return row


def _facts(view: View, wide: bool) -> RenderableType:
    tokens, goodput = view.tokens, view.goodput
    facts = Table.grid(padding=(0, 1))
    facts.add_column(style="dim", no_wrap=True, min_width=len("goodput"))
    facts.add_column(no_wrap=True, overflow="ellipsis")
    pace = f"{wording.count(view.tokens_per_second)} tokens/s" if view.tokens_per_second else ""
    facts.add_row("outer", f"round {view.outer_rounds}, {view.outer_steps} steps   {pace}")
    sum_of_tokens = (
        f"{wording.count(tokens.trained)} trained: {wording.count(tokens.merged)} merged, "
        f"{wording.count(tokens.overlap)} overlap, {wording.count(sum(tokens.discarded.values()))} discarded"
    )
    in_flight = f", {wording.count(tokens.in_flight)} in flight" if wide else ""
    facts.add_row("tokens", sum_of_tokens + in_flight)
    facts.add_row(
        "goodput",
        f"capacity {wording.share(goodput.capacity)}   accepted {wording.share(goodput.accepted)}   "
        f"uptime {wording.share(goodput.uptime)}",
    )
    return facts


def _learners(view: View, wide: bool) -> RenderableType:
    table = Table(box=None, expand=True, pad_edge=False, header_style="dim", padding=(0, 1, 0, 0))
    table.add_column("Learner", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True, min_width=9)
    table.add_column("site", no_wrap=True)
    table.add_column("incarnation" if wide else "inc", justify="right", no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True, min_width=5)
    table.add_column("tokens", justify="right", no_wrap=True, min_width=6)
    table.add_column("tokens/s", justify="right", no_wrap=True)
    table.add_column("loss", justify="right", no_wrap=True, min_width=5)
    table.add_column("staleness" if wide else "stale", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, overflow="ellipsis", ratio=1)
    for row in view.learners:
        table.add_row(*_cells(row))
    return table


def _cells(row: LearnerRow) -> list[RenderableType]:
    return [
        str(row.index),
        Text(row.state, style=STATE_STYLES.get(row.state, "")),
        row.site,
        str(row.incarnation) if row.incarnation else "-",
        "-" if row.step is None else str(row.step),
        wording.count(row.tokens),
        wording.count(row.tokens_per_second),
        wording.loss(row.loss),
        "-" if row.staleness is None else str(row.staleness),
        Text(row.note, style="dim", no_wrap=True, overflow="ellipsis"),
    ]


def _happening(what: Happening) -> RenderableType:
    row = Table.grid(padding=(0, 2))
    row.add_column(justify="right", no_wrap=True, min_width=8)
    row.add_column(style="magenta" if what.text.startswith("drill") else "")
    row.add_row(Text(f"{what.elapsed_seconds:.1f} s"), Text(what.text))
    return row

"""What stands on the screen when a run is over: the report as tables, and where the files are. Draws only."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from diloco_api.states import GoodputState
from diloco_cli import wording
from diloco_cli.report import DrillReport, ReportV1

_PHASE_STYLES = {"Complete": "bold green", "Failed": "bold red"}


def draw_summary(report: ReportV1, job: str, files: Sequence[tuple[str, Path]]) -> RenderableType:
    """`files` are (what, where) of everything that was kept."""
    parts: list[RenderableType] = [
        Text.assemble("job ", (job, "bold"), ": ", (report.phase, _PHASE_STYLES.get(report.phase, "bold yellow")),
                      f" ({report.reason})" if report.reason else ""),
        _facts(report),
        Text(),
        Text("incarnations, inner steps and seconds in each state", style="dim"),
        _learners(report),
    ]  # fmt: skip
    if report.drills:
        parts += [Text(), _drills(report.drills)]
    parts += [Text(), _files(files)]
    return Group(*parts)


def _facts(report: ReportV1) -> RenderableType:
    tokens, goodput, loss = report.tokens, report.goodput, report.loss
    facts = _grid()
    facts.add_row(
        "loss", f"{wording.loss(loss.initial)} -> {wording.loss(loss.final)} nats/byte (validation, outer parameters)"
    )
    facts.add_row("wall time", f"{wording.duration(report.wall_seconds)}")
    facts.add_row("outer", f"{report.outer_steps} steps, {report.outer_rounds} rounds of all fragments")
    facts.add_row("tokens trained", f"{wording.count(tokens.trained)}")
    facts.add_row("  merged", f"{wording.count(tokens.merged)} ({_part(tokens.merged, tokens.trained)})")
    facts.add_row("  overlap", f"{wording.count(tokens.overlap)} ({_part(tokens.overlap, tokens.trained)})")
    facts.add_row("  discarded", f"{wording.count(tokens.discarded)} ({_part(tokens.discarded, tokens.trained)})")
    facts.add_row("  in flight", f"{wording.count(tokens.in_flight)}")
    facts.add_row(
        "goodput",
        f"capacity {wording.share(goodput.capacity)}, accepted {wording.share(goodput.accepted)}, "
        f"uptime {wording.share(goodput.uptime)}",
    )
    facts.add_row("traffic", f"{wording.size(report.bytes.up)} up, {wording.size(report.bytes.down)} down")
    return facts


def _learners(report: ReportV1) -> RenderableType:
    states = [state for state in GoodputState if any(state in learner.states for learner in report.learners)]
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1, 0, 0))
    for title in ("Learner", "site", "inc", "steps"):
        table.add_column(title, justify="left" if title == "site" else "right")
    for state in states:
        table.add_column(state.value, justify="right")
    for learner in report.learners:
        seconds = [f"{learner.states.get(state, 0.0):.1f}" for state in states]
        table.add_row(str(learner.index), learner.site, str(learner.incarnations), str(learner.inner_steps), *seconds)
    return table


def _drills(drills: Sequence[DrillReport]) -> RenderableType:
    table = _grid()
    for drill in drills:
        table.add_row("drill", _drill(drill))
    return table


def _drill(drill: DrillReport) -> Text:
    name = drill.kind if drill.target is None else f"{drill.kind}={drill.target}"
    if drill.at_seconds is None:
        return Text(f"{name} did not happen: the run ended before", style="yellow")
    text = f"{name} {drill.at_seconds:.1f} s after the first outer step"
    if drill.replaced_after_seconds is not None:
        text += f"; replaced and at work {drill.replaced_after_seconds:.1f} s later"
    elif drill.kind.startswith("kill"):
        return Text(f"{text}; not replaced before the run ended", style="yellow")
    return Text(text)


def _files(files: Sequence[tuple[str, Path]]) -> RenderableType:
    table = _grid()
    for what, where in files:
        table.add_row(what, Text(str(where), overflow="fold"))
    return table


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    return grid


def _part(tokens: float, trained: float) -> str:
    return wording.share(tokens / trained if trained else None)

"""Draws one panel as Grafana would lay it out, from a Prometheus' answers. Nobody needs this at run time."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator

from dashboards.answers import Labels, Series, Source, Span
from dashboards.units import worded

Panel = Mapping[str, Any]
COLORS = {
    "green": "#56a64b", "yellow": "#e0b400", "orange": "#ff780a", "red": "#e02f44", "blue": "#3274d9",
    "purple": "#8f3bb8", "light-blue": "#8ab8ff", "dark-red": "#8f1627",
}  # fmt: skip
PALETTE = ("#3274d9", "#e0b400", "#56a64b", "#ff780a", "#8f3bb8", "#19a0a0", "#c15c17", "#7c7c7c", "#e02f44", "#6d1f62")
TEXT, FAINT = "#24292e", "#8a9097"
_MAX_LEGEND = 12
_TICKS = (60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400)


def draw(axes: Axes, panel: Panel, source: Source, span: Span, marks: Sequence[tuple[float, str]]) -> int:
    """Returns how many series were drawn."""
    axes.set_title(panel["title"], loc="left", fontsize=8.5, color=TEXT, fontweight="bold", pad=4)
    kind = panel["type"]
    if kind == "stat":
        return _number(axes, panel, source, span)
    if kind == "table":
        return _table(axes, panel, source, span)
    found = [
        (_named(series.labels, target["legendFormat"]), series)
        for target in panel["targets"]
        for series in source.over(target["expr"], span)
    ]
    if not found:
        return _nothing(axes)
    (_timeline if kind == "state-timeline" else _lines)(axes, panel, found)
    _time_axis(axes, span)
    if kind == "timeseries":
        for at, color in marks:
            axes.axvline(at, color=COLORS.get(color, color), linestyle=":", linewidth=0.9)
    return len(found)


def _lines(axes: Axes, panel: Panel, found: Sequence[tuple[str, Series]]) -> None:
    custom = panel["fieldConfig"]["defaults"].get("custom", {})
    unit = panel["fieldConfig"]["defaults"].get("unit", "short")
    fixed = _fixed_colors(panel)
    found = sorted(found, key=lambda one: (list(fixed).index(one[0]) if one[0] in fixed else len(fixed), one[0]))
    colors = [fixed.get(name) or PALETTE[number % len(PALETTE)] for number, (name, _) in enumerate(found)]
    stacked = custom.get("stacking", {}).get("mode") == "normal"
    if stacked:
        times = sorted({at for _, series in found for at in series.times})
        heights = []
        for _, series in found:
            at = dict(zip(series.times, series.values, strict=True))
            heights.append([at.get(time, 0.0) for time in times])
        axes.stackplot(times, heights, colors=colors, alpha=0.85, linewidth=0)
    for (_, series), color in zip(found, colors, strict=True):
        if stacked:
            continue
        when = list(series.times)
        if custom.get("drawStyle") == "bars":
            axes.bar(when, series.values, width=12, color=color)
        else:
            axes.plot(*_with_gaps(series), color=color, linewidth=1.1, marker="." if len(when) == 1 else "")
    axes.set_ylim(bottom=0)
    axes.margins(y=0.08)
    axes.autoscale(axis="y")
    axes.set_ylim(bottom=0)
    axes.set_axisbelow(True)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: worded(value, unit)))
    axes.grid(axis="y", color="#e4e7ea", linewidth=0.6)
    _legend(axes, list(zip([name for name, _ in found], colors, strict=True)))


def _timeline(axes: Axes, panel: Panel, found: Sequence[tuple[str, Series]]) -> None:
    mapped = panel["fieldConfig"]["defaults"]["mappings"][0]["options"]
    found = sorted(found, key=lambda one: one[0])
    seen: set[str] = set()
    for row, (_, series) in enumerate(found):
        step = min((after - at for at, after in zip(series.times, series.times[1:], strict=False)), default=15.0)
        for at, value in zip(series.times, series.values, strict=True):
            entry = mapped[f"{value:g}"]
            seen.add(f"{value:g}")
            axes.barh(row, step, left=at, height=0.78, color=_color(entry["color"]), linewidth=0)
    axes.set_yticks(range(len(found)), [name for name, _ in found])
    axes.set_ylim(len(found) - 0.4, -0.6)
    _legend(axes, [(mapped[key]["text"], _color(mapped[key]["color"])) for key in mapped if key in seen])


def _number(axes: Axes, panel: Panel, source: Source, span: Span) -> int:
    axes.axis("off")
    found = [series for target in panel["targets"] for series in source.over(target["expr"], span) if series.values]
    if not found:
        axes.text(0.5, 0.5, panel["fieldConfig"]["defaults"].get("noValue", "No data"), ha="center", va="center",
                  fontsize=18, color=FAINT, transform=axes.transAxes)  # fmt: skip
        return 0
    defaults, value = panel["fieldConfig"]["defaults"], found[0].values[-1]
    color = next(
        _color(step["color"])
        for step in reversed(defaults["thresholds"]["steps"])
        if step["value"] is None or value >= step["value"]
    )
    text = worded(value, defaults.get("unit", "short"))
    for mapping in defaults.get("mappings", []):
        entry = mapping["options"].get(f"{value:g}", {"text": text, "color": color})
        text, color = entry["text"], _color(entry["color"])
    axes.text(0.5, 0.6, text, ha="center", va="center", fontsize=17, color=color, transform=axes.transAxes)
    spark = axes.inset_axes((0.05, 0.0, 0.9, 0.28))
    spark.axis("off")
    spark.set_ylim(0, 1.05 * max(*found[0].values, 1e-9))
    spark.fill_between(found[0].times, found[0].values, color=color, alpha=0.25, linewidth=0)
    return 1


def _table(axes: Axes, panel: Panel, source: Source, span: Span) -> int:
    axes.axis("off")
    organize = panel["transformations"][1]["options"]
    hidden, renamed = organize["excludeByName"], organize["renameByName"]
    order = organize["indexByName"]
    columns = [name for name in sorted(order, key=order.__getitem__) if not hidden.get(name)]
    units = {o["matcher"]["options"]: p["value"] for o in panel["fieldConfig"]["overrides"] for p in o["properties"]
             if p["id"] == "unit"}  # fmt: skip
    merged: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
    for target in panel["targets"]:
        for series in source.at(target["expr"], span.end):
            row = merged.setdefault(tuple(sorted(series.labels.items())), dict(series.labels))
            name = f"Value #{target['refId']}"
            row[name] = worded(series.values[0], units.get(renamed.get(name, name), "short"))
    if not merged:
        return _nothing(axes)
    cells = [[row.get(column, "–") or "–" for column in columns] for row in merged.values()][:12]
    headings = [renamed.get(column, column) for column in columns]
    made = axes.table(cells, colLabels=headings, loc="upper left", cellLoc="left", colLoc="left", edges="horizontal")
    made.auto_set_font_size(False)
    made.set_fontsize(7.5)
    for cell in made.get_celld().values():
        cell.set_edgecolor("#e4e7ea")
    return len(merged)


def _nothing(axes: Axes) -> int:
    axes.axis("off")
    axes.text(0.5, 0.5, "No data", ha="center", va="center", fontsize=9, color=FAINT, transform=axes.transAxes)
    return 0


def _legend(axes: Axes, entries: Sequence[tuple[str, str]]) -> None:
    handles = [axes.scatter([], [], color=color, s=12, marker="s", label=name) for name, color in entries[:_MAX_LEGEND]]
    axes.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(-0.02, -0.1),
        ncols=_columns(axes, entries),
        fontsize=6.5,
        frameon=False,
        handletextpad=0.2,
        columnspacing=1.0,
        labelcolor=TEXT,
    )


def _columns(axes: Axes, entries: Sequence[tuple[str, str]]) -> int:
    """How many names fit side by side."""
    longest = max((len(name) for name, _ in entries), default=1)
    figure = axes.get_figure(root=True)
    assert figure is not None
    inches = axes.get_position().width * figure.get_size_inches()[0]
    return max(1, int(inches / (0.055 * longest + 0.25)))


def _time_axis(axes: Axes, span: Span) -> None:
    axes.set_xlim(span.start, span.end)
    apart = next((step for step in _TICKS if (span.end - span.start) / step <= 6), _TICKS[-1])
    axes.xaxis.set_major_locator(MultipleLocator(apart))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: datetime.fromtimestamp(at, UTC).strftime("%H:%M")))
    axes.tick_params(labelsize=6.5, colors=FAINT, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#c7ccd1")


def _with_gaps(series: Series) -> tuple[list[float], list[float]]:
    """Points, with a break wherever there was none for longer than usual."""
    steps = [after - at for at, after in zip(series.times, series.times[1:], strict=False)]
    usual = min(steps, default=0.0)
    when, values = [series.times[0]], [series.values[0]]
    for at, value, step in zip(series.times[1:], series.values[1:], steps, strict=True):
        if step > 1.5 * usual:
            when.append(at - step / 2)
            values.append(float("nan"))
        when.append(at)
        values.append(value)
    return when, values


def _fixed_colors(panel: Panel) -> dict[str, str]:
    return {
        override["matcher"]["options"]: _color(entry["value"]["fixedColor"])
        for override in panel["fieldConfig"]["overrides"]
        for entry in override["properties"]
        if entry["id"] == "color"
    }


def _named(labels: Labels, legend: str) -> str:
    if legend == "__auto":
        return ", ".join(labels.values()) or "value"
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1]) or "–", legend)


def _color(color: str) -> str:
    return COLORS.get(color, color)

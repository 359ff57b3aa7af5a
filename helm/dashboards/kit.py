"""The words dashboards are written in: queries, panels, variables, the frame. What looks alike is made alike here."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

PanelBuilder = Builder[dashboard.Panel]
SOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
WIDTH = 24
"""Columns of a dashboard."""
GREEN, YELLOW, ORANGE, RED, BLUE, PURPLE, GRAY = "green", "yellow", "orange", "red", "blue", "purple", "#8e8e8e"


@dataclass(frozen=True)
class Query:
    """PromQL and what its series are called; `{{label}}` is filled in by Grafana."""

    expression: str
    legend: str = ""


def lines(
    title: str,
    text: str,
    *queries: Query,
    unit: str = "short",
    stacked: bool = False,
    bars: bool = False,
    colors: Mapping[str, str] | None = None,
    width: int = 12,
    height: int = 8,
) -> PanelBuilder:
    """Series over time; `stacked` where their sum means something."""
    panel = (
        timeseries.Panel()
        .title(title).description(text).datasource(SOURCE).unit(unit).min(0).span(width).height(height)
        .line_width(1).fill_opacity(70 if stacked else 8).show_points(common.VisibilityMode.NEVER)
        .legend(
            common_builders.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.LIST).placement(common.LegendPlacement.BOTTOM).show_legend(True)
        )
        .tooltip(
            common_builders.VizTooltipOptions()
            .mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
        )
        .targets(_targets(queries))
    )  # fmt: skip
    if stacked:
        panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    if bars:
        panel.draw_style(common.GraphDrawStyle.BARS).fill_opacity(80)
    for name, color in (colors or {}).items():
        panel.override_by_name(name, [_color(color)])
    return panel


def number(
    title: str,
    text: str,
    query: Query,
    *,
    unit: str = "short",
    steps: Sequence[tuple[float | None, str]] = ((None, BLUE),),
    names: Mapping[float, tuple[str, str]] | None = None,
    width: int = 4,
) -> PanelBuilder:
    """One value now; `steps` are its colours from a value on, `names` words instead of values."""
    panel = (
        stat.Panel()
        .title(title).description(text).datasource(SOURCE).unit(unit).span(width).height(4).no_value("–")
        .color_mode(common.BigValueColorMode.VALUE).graph_mode(common.BigValueGraphMode.AREA)
        .thresholds(_thresholds(steps)).reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
        .targets(_targets([query]))
    )  # fmt: skip
    if names:
        panel.mappings([_mapping(names)])
    return panel


def states(
    title: str, text: str, *queries: Query, names: Mapping[float, tuple[str, str]], width: int = 24, height: int = 8
) -> PanelBuilder:
    """A row for each series that shows what it was when; `names` has word and colour of each value."""
    return (
        statetimeline.Panel()
        .title(title).description(text).datasource(SOURCE).span(width).height(height).no_value("–")
        .mappings([_mapping(names)]).row_height(0.85).fill_opacity(70).line_width(0).show_value(common.VisibilityMode.NEVER).merge_values(True)
        .legend(
            common_builders.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.LIST).placement(common.LegendPlacement.BOTTOM).show_legend(True)
        )
        .targets(_targets(queries))
    )  # fmt: skip


def rows(
    title: str,
    text: str,
    columns: Mapping[str, Query],
    *,
    keys: Mapping[str, str],
    units: Mapping[str, str] | None = None,
    link: str = "",
    width: int = 24,
    height: int = 8,
) -> PanelBuilder:
    """A table with a row for each set of labels: first the labels in `keys` (label: heading), then a value a column.

    A column without a heading is only there to say which rows there are.
    """
    headings = {f"Value #{letter}": heading for letter, heading in zip("ABCDEFGHIJ", columns, strict=False)}
    hidden = ["Time", *(f"Time {number}" for number in range(1, len(columns) + 1)), *_unnamed(headings)]
    order = [*keys, *headings]
    panel = (
        table.Panel()
        .title(title).description(text).datasource(SOURCE).span(width).height(height).no_value("–").filterable(True)
        .targets(_targets(columns.values(), in_a_table=True))
        .transformations([
            dashboard.DataTransformerConfig(id_val="merge", options={}),
            dashboard.DataTransformerConfig(
                id_val="organize",
                options={
                    "excludeByName": dict.fromkeys(hidden, True),
                    "indexByName": {name: index for index, name in enumerate(order)},
                    "renameByName": {**keys, **{name: text for name, text in headings.items() if text.strip()}},
                },
            ),
        ])
    )  # fmt: skip
    for heading, unit in (units or {}).items():
        panel.override_by_name(heading, [dashboard.DynamicConfigValue(id_val="unit", value=unit)])
    if link:
        first = next(iter(keys.values()))
        target = {"title": "Open", "url": link, "targetBlank": False}
        panel.override_by_name(first, [dashboard.DynamicConfigValue(id_val="links", value=[target])])
    return panel


@dataclass(frozen=True)
class Marks(Builder[dashboard.AnnotationQuery]):
    """Marks on every panel's time axis, wherever an expression has a value; `{{label}}` in its title is filled in."""

    name: str
    color: str
    expression: str
    title: str

    def build(self) -> dashboard.AnnotationQuery:
        return _Marks(self)


class _Marks(dashboard.AnnotationQuery):
    """With what the SDK does not know of: how Prometheus' annotations are worded."""

    def __init__(self, marks: Marks) -> None:
        super().__init__(
            name=marks.name, datasource=SOURCE, enable=True, hide=False, icon_color=marks.color, expr=marks.expression
        )
        self.title_format = marks.title

    def to_json(self) -> dict[str, object]:
        return {**super().to_json(), "titleFormat": self.title_format, "step": "60s"}


def frame(
    uid: str, title: str, text: str, variables: Iterable[Builder[dashboard.VariableModel]], *, refresh: str = "30s"
) -> builders.Dashboard:
    """A dashboard without panels: data source first, then the variables given, links to the others."""
    made = (
        builders.Dashboard(f"DiLoCo / {title}")
        .uid(uid).description(text).tags(["diloco"]).refresh(refresh).time("now-3h", "now").timezone("browser")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR).readonly()
        .with_variable(builders.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .link(
            builders.DashboardLink("DiLoCo")
            .type(dashboard.DashboardLinkType.DASHBOARDS).tags(["diloco"]).as_dropdown(True).keep_time(True)
        )
    )  # fmt: skip
    for variable in variables:
        made.with_variable(variable)
    return made


def choice(name: str, label: str, values: str, *, everything: bool = False) -> builders.QueryVariable:
    """A variable whose values come from labels; `everything`: several, by default all of them."""
    variable = (
        builders.QueryVariable(name)
        .label(label).datasource(SOURCE).query({"query": values, "refId": "variable"})
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(dashboard.VariableSort.ALPHABETICAL_ASC)
    )  # fmt: skip
    if everything:
        all_of_them = dashboard.VariableOption(selected=True, text="All", value="$__all")
        variable.multi(True).include_all(True).all_value(".*").current(all_of_them)
    return variable


def _targets(queries: Iterable[Query], *, in_a_table: bool = False) -> list[Any]:
    found = []
    for letter, query in zip("ABCDEFGHIJ", queries, strict=False):
        target = prometheus.Dataquery().expr(query.expression).ref_id(letter).datasource(SOURCE)
        if in_a_table:
            target.instant().format(PromQueryFormat.TABLE)
        else:
            target.range().legend_format(query.legend or "__auto")
        found.append(target)
    return found


def _unnamed(headings: Mapping[str, str]) -> list[str]:
    return [name for name, heading in headings.items() if not heading.strip()]


def _color(color: str) -> dashboard.DynamicConfigValue:
    return dashboard.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": color})


def _thresholds(steps: Sequence[tuple[float | None, str]]) -> builders.ThresholdsConfig:
    return (
        builders.ThresholdsConfig()
        .mode(dashboard.ThresholdsMode.ABSOLUTE)
        .steps([dashboard.Threshold(value=value, color=color) for value, color in steps])
    )


def _mapping(names: Mapping[float, tuple[str, str]]) -> dashboard.ValueMap:
    return dashboard.ValueMap({
        f"{value:g}": dashboard.ValueMappingResult(text=text, color=color, index=index)
        for index, (value, (text, color)) in enumerate(names.items())
    })  # fmt: skip

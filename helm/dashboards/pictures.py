"""Draws every panel of every dashboard from a real Prometheus: `make dashboard-pictures PROMETHEUS=http://...`.

For a look without a Grafana, and for the docs. One PNG a dashboard, panels where the dashboard has them.
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from dashboards.answers import Source, Span, http
from dashboards.draw import TEXT, draw
from dashboards.kit import WIDTH
from dashboards.write import FOLDER

COLUMN, ROW = 0.62, 0.36
"""Inches of a dashboard's grid."""


def picture(dashboard: dict[str, Any], source: Source, span: Span, path: Path) -> dict[str, int]:
    """Draw a dashboard; how many series each panel got."""
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"])
    figure = Figure(figsize=(WIDTH * COLUMN, height * ROW), facecolor="#ffffff")
    marks = [
        (at, one["iconColor"])
        for one in dashboard["annotations"].get("list", [])
        for series in source.over(one["expr"], span)
        for before, at in itertools.pairwise((0.0, *series.times))
        if at - before > 2 * span.step  # one mark for what lasts
    ]
    found: dict[str, int] = {}
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        if panel["type"] == "row":
            figure.text(0.012, 1 - (place["y"] + 0.7) / height, panel["title"], fontsize=10.5, color=TEXT)
            continue
        corner = (place["x"] + 0.08) / WIDTH, 1 - (place["y"] + place["h"] - 0.08) / height
        size = (place["w"] - 0.16) / WIDTH, (place["h"] - 0.16) / height
        figure.add_artist(Rectangle(corner, *size, fill=False, edgecolor="#e4e7ea", linewidth=0.8))
        below = 0.3 if panel["type"] == "stat" else 2.0
        left = 2.2 if panel["type"] == "state-timeline" else (0.3 if panel["type"] in ("stat", "table") else 1.25)
        axes = figure.add_axes((
            (place["x"] + left) / WIDTH, 1 - (place["y"] + place["h"] - below) / height,
            (place["w"] - left - 0.5) / WIDTH, (place["h"] - below - 1.1) / height,
        ))  # fmt: skip
        found[panel["title"]] = draw(axes, panel, source, span, marks)
    figure.savefig(path, dpi=72)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Draw the dashboards from a Prometheus.")
    parser.add_argument("--prometheus", default="http://localhost:9090", help="its address")
    parser.add_argument("--minutes", type=float, default=60, help="how much is shown")
    parser.add_argument("--until", type=float, default=0, help="end, in seconds since 1970; default: now")
    parser.add_argument("--rate-interval", default="1m", help="of rates; four times the scrape interval or more")
    parser.add_argument("--namespace", default=".*", help="of jobs; a job's dashboard needs one name")
    parser.add_argument("--job", default="", help="job of the job's dashboard")
    parser.add_argument("--site", default="", help="site of the site's dashboard")
    parser.add_argument("--out", type=Path, default=Path("docs/dashboards"), help="folder of the PNGs")
    given = parser.parse_args(arguments)
    end = given.until or time.time()
    span = Span(end - 60 * given.minutes, end, max(5.0, given.minutes * 60 / 240))
    variables = {"namespace": given.namespace, "job": given.job, "site": given.site}
    source = Source(http(given.prometheus), variables, given.rate_interval)
    given.out.mkdir(parents=True, exist_ok=True)
    for path in sorted(FOLDER.glob("*.json")):
        target = given.out / f"{path.stem.removeprefix('diloco-')}.png"
        found = picture(json.loads(path.read_text(encoding="utf-8")), source, span, target)
        empty = [title for title, number in found.items() if not number]
        print(f"{target}: {len(found)} panels; without data: {', '.join(empty) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

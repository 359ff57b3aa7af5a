"""Puts the dashboards into the chart: `python -m dashboards.write`; with `--check` only says if they are current."""

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards import fleet, job, operator_health, pods, site
from diloco_api.generated import write_or_check

FOLDER = Path(__file__).parents[1] / "diloco-operator/files/dashboards"
DASHBOARDS: dict[str, Callable[[], Dashboard]] = {
    fleet.UID: fleet.build,
    job.UID: job.build,
    site.UID: site.build,
    pods.UID: pods.build,
    operator_health.UID: operator_health.build,
}


def text_of(build: Callable[[], Dashboard]) -> str:
    """The dashboard as Grafana loads it."""
    dashboard = build().build()
    for number, panel in enumerate(dashboard.panels or [], start=1):
        panel.id_val = number
    return json.dumps(dashboard, cls=JSONEncoder, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    codes = [
        write_or_check(f"dashboard {uid}", FOLDER / f"{uid}.json", partial(text_of, build), arguments)
        for uid, build in DASHBOARDS.items()
    ]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())

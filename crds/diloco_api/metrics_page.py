"""Generates docs/metrics.md from the table of all series.

`python -m diloco_api.metrics_page [--check]`. What a series counts is said in `diloco_api.metrics` and nowhere else.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from diloco_api.generated import write_or_check
from diloco_api.metrics import LABELS, Exposer, Kind, Series, series_of

PAGE_PATH = Path(__file__).parents[2] / "docs" / "metrics.md"
_HEAD = """<!-- Generated from crds/diloco_api/metrics.py; change that and run `make manifests`. -->
# Metrics

Every Prometheus series there is. Counters continue over restarts where the totals are kept (goodput, tokens, outer
steps), else they start at zero with their process. Series of a job are gone with the job. What the figures mean
together: [goodput](goodput.md).
"""
_PLACES = {
    Exposer.OPERATOR: "The operator, port `metrics` of its Service. For all jobs and sites it looks after.",
    Exposer.SYNCHRONIZER: "The Synchronizer of each job, port `metrics` of its Service.",
    Exposer.LEARNER: "Each Learner's own pod, at its site: this incarnation as it counts itself. The hub needs none.",
}


def page_text() -> str:
    """The page's content."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield _HEAD
    for exposer, place in _PLACES.items():
        yield f"## {exposer.value.capitalize()}\n\n{place}\n"
        yield "| series | kind | labels | meaning |\n|---|---|---|---|"
        yield from (_row(series) for series in series_of(exposer))
        yield ""
    yield "## Labels\n\nNo label holds anything else.\n\n| label | value |\n|---|---|"
    yield from (f"| `{label}` | {meaning} |" for label, meaning in LABELS.items())
    yield ""


def _row(series: Series) -> str:
    labels = ", ".join(f"`{label}`" for label in series.labels)
    more = ""
    if series.kind is Kind.HISTOGRAM:
        more = " Buckets: " + ", ".join(f"{bound:g}" for bound in series.buckets) + "."
    return f"| `{series.name}` | {series.kind.value} | {labels} | {series.help}{more} |"


def main(arguments: Sequence[str] | None = None, path: Path = PAGE_PATH) -> int:
    return write_or_check("the page of metrics", path, page_text, arguments)


if __name__ == "__main__":
    sys.exit(main())

"""Asks a Prometheus what a dashboard asks, with its variables filled in."""

import json
import re
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Labels = Mapping[str, str]


@dataclass(frozen=True)
class Series:
    """One line of an answer."""

    labels: Labels
    times: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Span:
    """The time a dashboard shows, in seconds since 1970, and its resolution."""

    start: float
    end: float
    step: float


def http(address: str) -> Callable[[str, Mapping[str, str]], Any]:
    """Asks over HTTP: path and parameters to the answer's data."""

    def ask(path: str, parameters: Mapping[str, str]) -> Any:
        url = f"{address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]

    return ask


@dataclass(frozen=True)
class Source:
    """A Prometheus, and the values of a dashboard's variables."""

    ask: Callable[[str, Mapping[str, str]], Any]
    variables: Mapping[str, str]
    rate_interval: str = "1m"

    def over(self, expression: str, span: Span) -> list[Series]:
        """Series over the span."""
        parameters = {
            "query": self.filled(expression),
            "start": f"{span.start:.3f}", "end": f"{span.end:.3f}", "step": f"{span.step:g}",
        }  # fmt: skip
        found = self.ask("query_range", parameters)["result"]
        return [
            Series(
                one["metric"], tuple(float(at) for at, _ in one["values"]), tuple(float(v) for _, v in one["values"])
            )
            for one in found
        ]

    def at(self, expression: str, time: float) -> list[Series]:
        """Values at one time."""
        found = self.ask("query", {"query": self.filled(expression), "time": f"{time:.3f}"})["result"]
        return [_series(one["metric"], [one["value"]]) for one in found]

    def filled(self, expression: str) -> str:
        """PromQL with the variables' values; Grafana's own have the rate interval's."""
        values = {"__rate_interval": self.rate_interval, "__interval": self.rate_interval, **self.variables}
        return re.sub(r"\$\{?([a-z_]\w*)\}?", lambda found: values[found[1]], expression)


def _series(labels: Labels, points: Sequence[Sequence[Any]]) -> Series:
    return Series(labels, tuple(float(at) for at, _ in points), tuple(float(value) for _, value in points))

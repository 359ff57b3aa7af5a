"""A real Prometheus for a test: started with a configuration, asked over HTTP, ended with its folder."""

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml

from monitoring.binaries import prometheus

T = TypeVar("T")
LIMITS = {"GOMAXPROCS": "1", "GOMEMLIMIT": "400MiB"}
"""It shares the machine with clusters."""


class Prometheus:
    """`enter` is a command prefix for where it runs (a network namespace), `inside` runs a function there."""

    def __init__(
        self,
        folder: Path,
        configuration: Mapping[str, Any],
        rules: Mapping[str, Any],
        *,
        port: int,
        enter: Sequence[str] = (),
        inside: Callable[[Callable[[], Any]], Any] = lambda function: function(),
    ) -> None:
        self._folder, self._port, self._enter, self._inside = folder, port, enter, inside
        (folder / "rules.yaml").write_text(yaml.safe_dump(dict(rules)))
        document = {**configuration, "rule_files": [str(folder / "rules.yaml")]}
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(document))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        command = [
            *self._enter, prometheus(), f"--config.file={self._folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={self._folder / 'data'}", "--storage.tsdb.retention.time=6h",
            f"--web.listen-address=127.0.0.1:{self._port}", "--log.level=warn",
        ]  # fmt: skip
        with (self._folder / "prometheus.log").open("ab") as log:
            self._process = subprocess.Popen(command, env=os.environ | LIMITS, stdout=log, stderr=log)
        try:
            self._wait_until_ready(self._process)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Blocks that were added to its folder meanwhile are read at the next start."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(30)

    def ask(self, path: str, parameters: Mapping[str, str]) -> Any:
        """Data of an answer of the HTTP API; ValueError with Prometheus' own words when it refuses."""
        url = f"{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"

        def get() -> Any:
            try:
                with urllib.request.urlopen(url, timeout=30) as answer:
                    return json.load(answer)["data"]
            except urllib.error.HTTPError as error:
                raise ValueError(f"{parameters}: {json.load(error).get('error')}") from error

        return self._inside(get)

    def value(self, expression: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Values now, by sorted labels."""
        found = self.ask("query", {"query": expression})["result"]
        return {tuple(sorted(one["metric"].items())): float(one["value"][1]) for one in found}

    def number(self, expression: str) -> float | None:
        """The one value now; None where there is none."""
        found = list(self.value(expression).values())
        assert len(found) <= 1, f"{expression} has {len(found)} values"
        return found[0] if found else None

    def alerts(self) -> list[dict[str, Any]]:
        """Pending and firing ones."""
        found: list[dict[str, Any]] = self.ask("alerts", {})["alerts"]
        return found

    def firing(self, alert: str) -> list[dict[str, Any]]:
        return [one for one in self.alerts() if one["labels"]["alertname"] == alert and one["state"] == "firing"]

    def targets(self) -> list[dict[str, Any]]:
        """What is scraped."""
        found: list[dict[str, Any]] = self.ask("targets", {"state": "active"})["activeTargets"]
        return found

    def log(self) -> str:
        return (self._folder / "prometheus.log").read_text(errors="replace")

    def _wait_until_ready(self, process: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + 60
        while not self._inside(self._is_ready):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"prometheus is not ready: {self.log()[-2000:]}")
            time.sleep(0.2)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/-/ready", timeout=5):
                return True
        except OSError:  # nobody listens, or 503
            return False

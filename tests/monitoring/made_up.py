"""A made-up hour of two jobs at two sites with every series there is, as a Prometheus' data: for trying queries.

Learner 3 of the first job is lost in the 20th minute, its site in the 30th; the operator starts again in the 40th. The
figures mean little, their labels and their coming and going are those of real ones.
"""

import itertools
import operator
import subprocess
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from diloco_api.metrics import SERIES, Exposer, Kind, Series
from diloco_api.states import GoodputState
from monitoring.binaries import promtool
from monitoring.queries import FOREIGN

STEP = 15
MINUTES = 60
NAMESPACE, JOB = "training", "llm"
_JOBS = (JOB, "other")
_PLACES = {"0": "site-1", "1": "site-1", "2": "site-2", "3": "site-2"}
_WORDS = {
    "uid": ("u1",), "preset": ("DecoupledDiLoCo",), "condition": ("QuorumMet", "Degraded", "Progressing"),
    "status": ("True", "False"), "reason": ("NodeLost",), "counted": ("true",), "direction": ("up", "down"),
    "device": ("nvidia.com/gpu",), "phase": ("Running", "Pending"), "role": ("learner",), "from_site": ("site-2",),
    "to_site": ("site-1",), "verb": ("GET", "PATCH"), "code": ("200", "503"), "result": ("done", "failed"),
    "version": ("0.1.0",), "python": ("3.12.1",), "kopf": ("1.45.2",),
    "site": ("site-1", "site-2"), "namespace": (NAMESPACE,),
}  # fmt: skip
Labels = dict[str, str]


def write(folder: Path, start: int) -> None:
    """Blocks for a Prometheus to start with."""
    text = folder / "series.txt"
    text.write_text("".join(f"{line}\n" for line in _lines(start)) + "# EOF\n")
    command = [promtool(), "tsdb", "create-blocks-from", "openmetrics", str(text), str(folder / "data")]
    subprocess.run(command, check=True, capture_output=True)
    text.unlink()


def record(folder: Path, rules: Path, start: int, address: str) -> None:
    """Blocks of what recording rules would have recorded meanwhile, asked of a Prometheus that has what they read."""
    subprocess.run(
        [
            promtool(), "tsdb", "create-blocks-from", "rules", f"--start={start}", f"--end={start + 60 * MINUTES}",
            f"--url={address}", f"--output-dir={folder / 'data'}", f"--eval-interval={STEP}s", str(rules),
        ],
        check=True, capture_output=True,
    )  # fmt: skip


def _lines(start: int) -> Iterator[str]:
    for series in SERIES.values():
        if series.exposer is not Exposer.LEARNER:
            yield from _of_series(series, start)
    for name in FOREIGN:
        if name.startswith("DCGM"):
            for index in _PLACES:
                labels = {"gpu": "0", "pod": "exporter", "exported_pod": f"{JOB}-{index}"}
                yield from _samples(name, labels, start, lambda minute: 0.6 + 0.02 * (minute % 7))


def _of_series(series: Series, start: int) -> Iterator[str]:
    for labels in _label_sets(series):
        scraped = {**labels, "instance": f"{series.exposer}:8080", "job": series.exposer.value}
        if series.kind is Kind.HISTOGRAM:
            for bound in (*series.buckets, float("inf")):
                share = min(1.0, (bound / series.buckets[-2]) ** 0.3)
                yield from _samples(
                    f"{series.name}_bucket", {**scraped, "le": f"{bound:g}".replace("inf", "+Inf")}, start,
                    lambda minute, share=share: round(6 * minute * share),
                )  # fmt: skip
            yield from _samples(f"{series.name}_count", scraped, start, lambda minute: 6 * minute)
            middle = series.buckets[len(series.buckets) // 2]
            yield from _samples(f"{series.name}_sum", scraped, start, partial(operator.mul, 6 * middle))
        else:
            yield from _samples(
                series.name, scraped, start, lambda minute, labels=labels: _value(series, labels, minute, start)
            )


def _label_sets(series: Series) -> Iterator[Labels]:
    choices: list[tuple[str, ...]] = []
    for label in series.labels:
        if label == "diloco_job":
            choices.append(_JOBS)
        elif label == "job_namespace":
            choices.append((NAMESPACE,))
        elif label == "learner":
            choices.append((*_PLACES, "global") if series.name == "diloco_loss" else tuple(_PLACES))
        elif label == "state":
            choices.append(tuple(state.value for state in GoodputState))
        elif label == "pod":
            choices.append(("",))
        else:
            choices.append(_WORDS[label])
    for values in itertools.product(*choices):
        labels = dict(zip(series.labels, values, strict=True))
        if {"site", "learner"} <= labels.keys() and _PLACES[labels["learner"]] != labels["site"]:
            continue
        if "pod" in labels:
            labels = {key: value for key, value in labels.items() if key not in ("pod", "namespace")} | {
                "exported_pod": f"{labels['diloco_job']}-{labels['learner']}", "exported_namespace": NAMESPACE,
            }  # fmt: skip
        yield labels


def _value(series: Series, labels: Mapping[str, str], minute: float, start: int) -> float:
    lost = labels.get("diloco_job") == JOB and labels.get("learner") == "3"
    name = series.name
    if name == "diloco_learner_state_seconds_total":
        away = max(0.0, min(minute, 25) - 20) * 60 if lost else 0.0
        of = {"training": 0.9 * (60 * minute - away), "sync_wait": 0.1 * (60 * minute - away), "lost": away}
        return of.get(labels["state"], 0.0)
    if name == "diloco_job_learners":
        return {"training": 2.0}.get(labels["state"], 0.0)
    if name == "diloco_site_reachable":
        return 0.0 if labels["site"] == "site-2" and 30 <= minute < 35 else 1.0
    if name == "diloco_job_condition":
        true = labels["condition"] != "Degraded" or 20 <= minute < 25
        return float(true == (labels["status"] == "True"))
    if name.endswith("timestamp_seconds"):
        return start + 60 * minute + (8640000 if "expiry" in name else -7)
    if name in ("diloco_job_learners_desired", "diloco_job_learners_max"):
        return 4.0
    if name == "diloco_loss":
        return 4.0 - minute / 30
    if name in ("diloco_learner_restarts_total", "diloco_learner_relocations_total", "diloco_fenced_updates_total"):
        return float(minute >= 20)
    of_rates = {
        "diloco_job_wanted_seconds_total": 240.0, "diloco_job_window_seconds_total": 60.0,
        "diloco_job_uptime_seconds_total": 59.0, "diloco_job_accepted_tokens_total": 21000.0,
    }  # fmt: skip
    if series.kind is Kind.COUNTER:
        return of_rates.get(name, 500.0) * minute
    return {"diloco_job_ideal_tokens_per_second": 100.0, "diloco_outer_step_deadline_seconds": 60.0}.get(name, 1.0)


def _samples(name: str, labels: Labels, start: int, value: Callable[[float], float]) -> Iterator[str]:
    inside = ",".join(f'{key}="{text}"' for key, text in labels.items())
    from_operator = labels.get("job") == Exposer.OPERATOR
    for second in range(0, 60 * MINUTES + 1, STEP):
        if not (from_operator and 2400 <= second < 2430):
            yield f"{name}{{{inside}}} {value(second / 60)!r} {start + second}"

"""Every switch of the operator's chart, alone and with every other: nothing dangles, or helm says why."""

import itertools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kubernetes_validate
import pytest
import yaml

from chart.belonging import dangling, repeated
from chart.rendering import OPERATOR, Refused, render, with_images
from chart.variants import BROUGHT

Switch = tuple[str, ...]
ALWAYS = {"monitoring": {"renderMode": "alwaysRender"}, "serviceAccount": {"name": "somebody"}, "replicas": 2}
"""So that nothing depends on a cluster, and no switch is without effect."""
REFUSED = {
    (("monitoring", "podMonitor", "enabled"), ("monitoring", "serviceMonitor", "enabled")): "choose one",
    (("metrics", "service", "enabled"), ("monitoring", "serviceMonitor", "enabled")): "needs metrics.service.enabled",
}
"""Pairs that mean nothing when both are turned."""


def switches(values: dict[str, Any], above: Switch = ()) -> Iterator[tuple[Switch, bool]]:
    """Path and default of every boolean."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from switches(value, (*above, name))
        elif isinstance(value, bool):
            yield (*above, name), value


DEFAULTS = dict(switches(yaml.safe_load((OPERATOR / "values.yaml").read_text())))


def turned(*chosen: Switch) -> dict[str, Any]:
    """Values in which these switches are not as by default."""
    values: dict[str, Any] = {key: dict(value) if isinstance(value, dict) else value for key, value in ALWAYS.items()}
    for path in chosen:
        place = values
        for name in path[:-1]:
            place = place.setdefault(name, {})
        place[path[-1]] = not DEFAULTS[path]
    return with_images(values)


def problem(*chosen: Switch) -> str:
    """What is wrong with these switches turned; empty when nothing is."""
    try:
        documents = render(OPERATOR, turned(*chosen), tests=True)
    except Refused as refused:
        said = REFUSED.get(tuple(sorted(chosen)))
        return "" if said and said in str(refused) else f"refused: {refused}"
    if tuple(sorted(chosen)) in REFUSED:
        return "it is not refused"
    return "; ".join([*dangling(documents, BROUGHT), *(f"twice: {one}" for one in repeated(documents))])


def test_the_switches_are_found() -> None:
    assert len(DEFAULTS) >= 16
    assert set(itertools.chain(*REFUSED)) <= DEFAULTS.keys()


@pytest.mark.parametrize("switch", DEFAULTS, ids=".".join)
def test_alone(switch: Switch) -> None:
    assert problem(switch) == ""
    before, after = render(OPERATOR, turned(), tests=True), render(OPERATOR, turned(switch), tests=True)
    if switch[-1] != "honorLabels":  # of monitors that are off
        assert before != after, "it does nothing"
    for document in after:
        if document["apiVersion"] != "monitoring.coreos.com/v1" and document["kind"] != "CustomResourceDefinition":
            kubernetes_validate.validate(document, "1.34", strict=True)


@pytest.mark.timeout(400)
def test_every_two_together() -> None:
    pairs = list(itertools.combinations(DEFAULTS, 2))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        problems = list(pool.map(lambda pair: problem(*pair), pairs))
    found = {" + ".join(map(".".join, pair)): text for pair, text in zip(pairs, problems, strict=True) if text}
    assert found == {}

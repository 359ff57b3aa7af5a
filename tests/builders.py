"""Builds the values tests start from: valid, small, and changed by what a test is about."""

from collections.abc import Mapping
from typing import Any

from diloco_api.v1alpha1 import DiLoCoJob


def manifest(changes: Mapping[str, object] | None = None, *, preset: str | None = None) -> dict[str, Any]:
    """A DiLoCoJob as a plain dict; `changes` are dotted paths below spec, and a value of None removes the field."""
    document: dict[str, Any] = {
        "apiVersion": "diloco.dev/v1alpha1",
        "kind": "DiLoCoJob",
        "metadata": {"name": "toy", "namespace": "default", "uid": "0a1b2c3d-0000-4000-8000-000000000000"},
        "spec": {"train": {"data": {"uri": "text/*.txt"}}, "learners": {"replicas": 3}},
    }
    if preset is not None:
        document["spec"]["algorithm"] = {"preset": preset}
    for path, value in (changes or {}).items():
        *parents, last = path.split(".")
        node = document["spec"]
        for key in parents:
            node = node.setdefault(key, {})
        if value is None:
            node.pop(last, None)
        else:
            node[last] = value
    return document


def job(changes: Mapping[str, object] | None = None, *, preset: str | None = None) -> DiLoCoJob:
    """The same as a model."""
    return DiLoCoJob.model_validate(manifest(changes, preset=preset))

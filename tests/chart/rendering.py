"""Charts as the real `helm` renders them."""

import copy
import functools
import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from chart.helm_binary import helm_binary

ROOT = Path(__file__).resolve().parents[2]
OPERATOR = ROOT / "helm/diloco-operator"
SITE = ROOT / "helm/diloco-site"

Document = dict[str, Any]
IMAGES = {"image": {"repository": "registry.example.com/team/diloco-operator"},
          "trainerImage": {"repository": "registry.example.com/team/diloco-trainer"}}  # fmt: skip


class Refused(Exception):
    """helm would not; the text is what it says."""


class _Strict(yaml.CSafeLoader):
    """Takes no key twice in a mapping: the API has the last one, and other readers refuse it."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        twice = sorted({name for name in names if names.count(name) > 1})
        assert not twice, f"twice in one mapping: {twice}"
        return super().construct_mapping(node, deep)


@functools.cache
def _helm() -> str:
    return helm_binary()


def run_helm(*arguments: str, values: Document | None = None) -> str:
    """Standard output; Refused with standard error otherwise."""
    with_values = ["--values", "-"] if values is not None else []
    answer = subprocess.run(
        [_helm(), *arguments, *with_values],
        input=json.dumps(values) if values is not None else "", capture_output=True, text=True, check=False,
    )  # fmt: skip
    if answer.returncode != 0:
        raise Refused(answer.stdout + answer.stderr)
    return answer.stdout


def render(
    chart: Path, values: Document | None = None, *, name: str = "diloco", namespace: str = "ops", tests: bool = False
) -> list[Document]:
    """All objects of a release; with `tests` also those of `helm test`."""
    skipped = [] if tests else ["--skip-tests"]
    text = run_helm("template", name, str(chart), "--namespace", namespace, *skipped, values=values or {})
    return [document for part in text.split("\n---\n") if (document := _parsed(part))]


def _parsed(text: str) -> Document | None:
    """The definition of jobs is most of every release, and the same in all of them."""
    if "\nkind: CustomResourceDefinition\n" not in text:
        return yaml.load(text, _Strict)
    definition = _definition(text)
    return {**definition, "metadata": copy.deepcopy(definition["metadata"])}


@functools.cache
def _definition(text: str) -> Document:
    return yaml.load(text, yaml.CSafeLoader)


def with_images(values: Document) -> Document:
    """What may not be left out, and these values."""
    return {**values, **{key: {**image, **values.get(key, {})} for key, image in IMAGES.items()}}


def pods_of(documents: list[Document]) -> list[Document]:
    """Metadata and spec of every pod that these objects make."""
    templates = [found["spec"]["template"] for found in of_kind(documents, "Deployment")]
    return templates + of_kind(documents, "Pod")


def notes(chart: Path, values: Document | None = None, *, name: str = "diloco", namespace: str = "ops") -> str:
    """What is printed after an installation."""
    text = run_helm(
        "install", name, str(chart), "--namespace", namespace, "--dry-run=client", values=values or {}
    )  # fmt: skip
    return text.partition("NOTES:\n")[2]


def of_kind(documents: list[Document], kind: str) -> list[Document]:
    return [document for document in documents if document["kind"] == kind]


def rights(role: Document) -> set[tuple[str, str, str, str]]:
    """(group, resource, resource name or "", verb) of a Role or ClusterRole."""
    return {
        (group, resource, name, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
        for verb in rule["verbs"]
    }

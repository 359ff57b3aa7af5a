"""Generates the CRD of DiLoCoJob from the models: `python -m diloco_api.crd [--check]`.

pydantic's JSON schema is turned into a structural one: references inlined, what Kubernetes does not know rewritten or
dropped, and anything left over that is not allowed is a failed assertion, not output. Every string and list is bounded,
else API servers refuse CEL rules for their cost. A field that is immutable is required or has a default, so that a rule
sees both its old and its new value whatever is edited.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from diloco_api import names, rules
from diloco_api.generated import write_or_check
from diloco_api.v1alpha1 import DiLoCoJob

CRD_PATH = Path(__file__).resolve().parents[1] / "dilocojobs.diloco.dev.yaml"
MAX_CRD_BYTES = 64_000
_HEADER = "# Generated from crds/diloco_api by `make manifests`. Do not edit.\n"
_RULES = "x-kubernetes-validations"
_ALLOWED = (
    "description", "type", "format", "enum", "default", "nullable",
    "pattern", "minLength", "maxLength", "minItems", "maxItems",
    "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum",
    "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
    "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields", _RULES,
    "required", "properties", "additionalProperties", "maxProperties", "items",
)  # fmt: skip
_COLUMNS = (
    ("State", "string", ".status.phase", 0, "What the job is doing"),
    ("Learners", "string", ".status.learners.summary", 0, "Learners heard by the Synchronizer / wanted"),
    ("Sites", "string", ".status.siteSummary", 0, "Sites reachable / all"),
    ("Outer rounds", "integer", ".status.progress.outerRounds", 0, "Outer steps of every fragment"),
    ("Progress", "integer", ".status.progress.percent", 0, "Percent of the budget"),
    ("Goodput", "string", ".status.goodput.accepted", 1, "Share of the capacity that became model progress"),
    ("Age", "date", ".metadata.creationTimestamp", 0, "Since creation"),
)

Schema = dict[str, Any]


def build_crd() -> Schema:
    """The CustomResourceDefinition as a plain dict."""
    version = {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": build_schema()},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.learners.replicas",
                "statusReplicasPath": ".status.learners.ready",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": [_column(*column) for column in _COLUMNS],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names.PLURAL}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.SINGULAR,
                "shortNames": [names.SHORT_NAME],
            },
            "scope": "Namespaced",
            "versions": [version],
        },
    }


def build_schema() -> Schema:
    """The structural schema of one object; raises AssertionError when a model cannot be expressed as one."""
    raw = DiLoCoJob.model_json_schema(by_alias=True)
    definitions = raw.pop("$defs")
    schema = _structural(raw, definitions)
    properties = schema["properties"]
    properties["apiVersion"] = {"type": "string", "description": properties["apiVersion"]["description"]}
    properties["kind"] = {"type": "string", "description": properties["kind"]["description"]}
    properties["metadata"] = {"type": "object"}
    del properties["status"]["default"]  # written by the operator alone
    schema["required"] = ["spec"]
    for path, node in walk(schema):
        _check(path, node)
    return schema


def walk(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every schema node with its field path, parents first."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}")
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]")


def to_yaml(crd: Mapping[str, Any]) -> str:
    """The file's text."""
    return _HEADER + yaml.dump(crd, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """Writes equal parts out instead of referring to them."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _column(name: str, kind: str, path: str, priority: int, description: str) -> Schema:
    return {"name": name, "type": kind, "jsonPath": path, "priority": priority, "description": description}


def _structural(node: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """One pydantic schema node, references inlined, as Kubernetes wants it."""
    node = dict(node)
    if "$ref" in node:
        target = definitions[node.pop("$ref").removeprefix("#/$defs/")]
        target_rules = target.get(_RULES, [])
        node = target | node | ({_RULES: target_rules + node.get(_RULES, [])} if target_rules else {})
    node = _without_null(node, definitions)
    node.pop("title", None)
    if node.get("additionalProperties") is False:
        del node["additionalProperties"]
    if "const" in node:
        node["enum"] = [node.pop("const")]
    if node.get("x-kubernetes-int-or-string"):
        node.pop("anyOf", None)  # implied
    for bound in ("Minimum", "Maximum"):
        exclusive = node.get(f"exclusive{bound}")
        if exclusive is not None and exclusive is not True:
            node[bound.lower()], node[f"exclusive{bound}"] = exclusive, True
    if "description" in node:
        node["description"] = " ".join(node["description"].split())
    if "properties" in node:
        node["properties"] = {name: _structural(child, definitions) for name, child in node["properties"].items()}
        _simplify_defaults(node["properties"])
    if "items" in node:
        node["items"] = _structural(node["items"], definitions)
    return dict(sorted(node.items(), key=lambda item: _ALLOWED.index(item[0]) if item[0] in _ALLOWED else -1))


def _without_null(node: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """`anyOf: [T, null]` is T: an optional field is simply absent. A default that is not null makes it nullable."""
    options = node.get("anyOf", [])
    if {"type": "null"} not in options:
        return node
    (kept,) = [option for option in options if option != {"type": "null"}]
    rest = {key: value for key, value in node.items() if key != "anyOf"}
    if rest.get("default") is None:
        rest.pop("default", None)
    else:
        rest["nullable"] = True
    return _structural(kept, definitions) | rest


def _simplify_defaults(properties: Mapping[str, Schema]) -> None:
    """An object's default is written out, as rules are tried on it as it stands; what is empty is absent."""
    for child in properties.values():
        if "additionalProperties" in child:
            child.pop("default", None)
        elif isinstance(child.get("default"), dict):
            child["default"] = {
                name: member["default"] for name, member in child["properties"].items() if "default" in member
            }
        elif child.get("default") in ("", []):
            del child["default"]


def _check(path: str, node: Schema) -> None:
    """What a structural schema must not have, and what ours must."""
    assert not (unknown := node.keys() - set(_ALLOWED)), f"{path}: {sorted(unknown)} not allowed in a structural schema"
    typed = "type" in node or node.get("x-kubernetes-int-or-string")
    assert typed, f"{path}: without a type"
    assert isinstance(node.get("exclusiveMinimum", True), bool), f"{path}: numeric exclusiveMinimum"
    if path and path not in (".metadata", ".spec", ".status") and "[]" not in path[-2:]:
        assert node.get("description"), f"{path}: without a description"
    if node.get("type") == "string" and not path.startswith((".apiVersion", ".kind")):
        assert node.keys() & {"maxLength", "enum", "format"}, f"{path}: a string without maxLength"
    if node.get("type") == "array":
        assert "maxItems" in node, f"{path}: a list without maxItems"
    if "additionalProperties" in node:
        value = node["additionalProperties"]
        bounded = "maxProperties" in node and ("maxLength" in value or value.get("type") == "integer")
        assert bounded, f"{path}: a map without bounds"
        assert "properties" not in node, f"{path}: a map with fields"
    if node.get("type") == "integer":
        assert "maximum" in node or path.startswith(".status"), f"{path}: an integer without an upper bound"
    for name, child in node.get("properties", {}).items():
        if rules.NEVER_CHANGES in child.get(_RULES, []):
            present = name in node.get("required", []) or "default" in child
            assert present, f"{path}.{name}: immutable, but can be added and removed"


def crd_text() -> str:
    """The file's content; AssertionError when it would be too large for an API server."""
    crd = build_crd()
    size = len(json.dumps(crd, separators=(",", ":")).encode())
    assert size < MAX_CRD_BYTES, f"the CRD has {size} bytes, more than {MAX_CRD_BYTES}"
    return to_yaml(crd)


def main(arguments: Sequence[str] | None = None, path: Path = CRD_PATH) -> int:
    return write_or_check("the CRD of DiLoCoJob", path, crd_text, arguments)


if __name__ == "__main__":
    sys.exit(main())

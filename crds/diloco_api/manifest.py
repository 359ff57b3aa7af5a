"""A manifest's text, with `--set` overrides, to a `DiLoCoJob`; every fault is one line naming file and field.

As strict as an API server: no unknown fields, no conversion between types, no second document, no key twice. Reads no
file. Rules between fields are checked too, so what is returned can be accepted.
"""

import difflib
import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from diloco_api import accept, names
from diloco_api.errors import Problem, SpecError, spec_error
from diloco_api.v1alpha1 import DiLoCoJob

_SET = "--set"
_DATA_HINT = "is required: where the training text is, for example data: {uri: 'texts/**/*.txt'}"
_Loc = tuple[str | int, ...]


def load_job(text: str, source: str, overrides: Sequence[tuple[str, str]] = ()) -> DiLoCoJob:
    """Parse and check; `source` names the file in messages, `overrides` are (path, YAML value) in order."""
    document = _parse(text, source)
    for key, expected in (("apiVersion", names.API_VERSION), ("kind", names.KIND)):
        if document.get(key) != expected:
            found = _show(document[key]) if key in document else "missing"
            raise SpecError(f"{source}: {key}: must be {expected}, is {found}")
    for path, value in overrides:
        _apply(document, path, value)
    document.pop("status", None)  # as an API server does; what was observed is never input
    job, problems = _validate(document)
    if job is not None:
        problems = accept.problems(job)
        if not problems:
            return job
    first = problems[0].path
    overridden = any(first == path or first.startswith(f"{path}.") for path, _ in overrides)
    raise spec_error(problems, _SET if overridden else source)


def parse_override(text: str) -> tuple[str, str]:
    """`path=value` of the command line as (path, value)."""
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise SpecError(f"{_SET} {text}: must be path=value, for example {_SET} spec.learners.replicas=4")
    return path.strip(), value


class _Loader(yaml.SafeLoader):
    """YAML as Kubernetes reads it: 1e-3 is a number, dates are strings, a key that comes twice is an error."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.value in seen:
                raise yaml.composer.ComposerError(None, None, f"key {key.value!r} comes twice", key.start_mark)
            seen.add(key.value)
        return node


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """PyYAML's table without dates, and with floats that have an exponent but no point."""
    table = {
        first: [(tag, pattern) for tag, pattern in entries if tag != "tag:yaml.org,2002:timestamp"]
        for first, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    exponent = ("tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+[eE][-+]?[0-9]+$"))
    for first in "-+0123456789":
        table[first] = [exponent, *table.get(first, [])]
    return table


_Loader.yaml_implicit_resolvers = _resolvers()


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        documents = [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]
    except yaml.YAMLError as error:
        raise SpecError(f"{source}: {_yaml_problem(error)}") from error
    except RecursionError as error:
        raise SpecError(f"{source}: is nested too deeply") from error
    if len(documents) != 1:
        raise SpecError(f"{source}: must hold one document, holds {len(documents) or 'none'}")
    if not isinstance(documents[0], dict):
        raise SpecError(f"{source}: must be a mapping with apiVersion, kind, metadata and spec")
    return documents[0]


def _yaml_problem(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem or error.context}"
    return "is not YAML: " + " ".join(str(error).split())


def _apply(document: dict[str, Any], path: str, value: str) -> None:
    """Set one field of `document` in place; the path must be one of the model's."""
    keys = path.split(".")
    _check_path(keys, path)
    try:
        parsed = yaml.load(value, Loader=_Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise SpecError(f"{_SET} {path}: {value!r} is not a YAML value") from error
    node = document
    for key in keys[:-1]:
        child = node.get(key)
        if child is None:
            child = node[key] = {}
        if not isinstance(child, dict):
            raise SpecError(f"{_SET} {path}: {key} is not a mapping in the file")
        node = child
    node[keys[-1]] = parsed


def _check_path(keys: Sequence[str], path: str) -> None:
    if keys[0] not in ("metadata", "spec"):
        raise SpecError(f"{_SET} {path}: a path begins with spec or metadata")
    for depth, key in enumerate(keys):
        if not any(key in _fields(model) for model in _models_at(keys[:depth])):
            raise SpecError(f"{_SET} {path}: {_unknown(tuple(keys[: depth + 1]))}")


def _validate(document: dict[str, Any]) -> tuple[DiLoCoJob | None, list[Problem]]:
    """Through JSON, as that is what an API server is sent, and strict, as it converts nothing."""
    try:
        text = json.dumps(document, allow_nan=False)
        return DiLoCoJob.model_validate_json(text, strict=True, by_alias=True, by_name=False), []
    except ValidationError as error:
        # A misspelt field is often the one that is missing: name it first.
        details = sorted(error.errors(include_url=False), key=lambda detail: detail["type"] != "extra_forbidden")
        return None, [_problem(detail) for detail in details]
    except (TypeError, ValueError, RecursionError) as error:
        if str(error).startswith("Out of range float"):  # of all mistakes the one that has a place
            return None, [Problem(next(_not_numbers(document, ())), "", "must be a finite number")]
        return None, [Problem("document", "", f"cannot be written as JSON: {error}")]


def _not_numbers(node: object, loc: _Loc) -> Iterator[str]:
    """Paths of the values JSON has no words for: .nan, .inf."""
    if isinstance(node, float) and not math.isfinite(node):
        yield ".".join(str(part) for part in loc)
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from _not_numbers(value, (*loc, key))
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from _not_numbers(value, (*loc, number))


def _problem(detail: ErrorDetails) -> Problem:
    """One of pydantic's findings in our words."""
    loc = detail["loc"]
    path = ".".join(str(part) for part in loc) or "document"
    match detail["type"]:
        case "extra_forbidden":
            return Problem(path, "", _unknown(loc))
        case "missing" if path in ("spec.train", "spec.train.data", "spec.train.data.uri"):
            return Problem("spec.train.data", "", _DATA_HINT)
        case "missing":
            return Problem(path, "", "is required")
    message = detail["msg"].removeprefix("Value error, ").replace("Input should", "must", 1)
    message = message[:1].lower() + message[1:]
    if message.startswith("must be an object"):
        message = "must be a mapping"
    return Problem(path, _show(detail["input"]), message.replace("greater than or equal to", "at least"))


def _show(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _unknown(loc: _Loc) -> str:
    candidates = [field for model in _models_at(loc[:-1]) for field in _fields(model)]
    close = difflib.get_close_matches(str(loc[-1]), candidates, n=1)
    return f"unknown field (did you mean {close[0]}?)" if close else "unknown field"


def _fields(model: type[BaseModel]) -> dict[str, Any]:
    """Annotations of a model's fields by their YAML names."""
    return {info.alias or name: info.annotation for name, info in model.model_fields.items()}


def _models_at(loc: Sequence[str | int]) -> Iterator[type[BaseModel]]:
    """The models whose fields may stand at `loc`; none for scalars and free-form mappings."""
    models: list[type[BaseModel]] = [DiLoCoJob]
    for key in loc:
        annotations = [_fields(model).get(str(key)) for model in models]
        models = [inner for annotation in annotations for inner in _models_in(annotation)]
    yield from models


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)

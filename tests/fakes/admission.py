"""What an API server does with an object of a CRD, as far as the schema decides it: defaults, types, bounds, CEL.

Not a substitute for a real one: no cost limits, no type check of CEL at creation of the CRD, no pruning.
"""

import copy
from collections.abc import Iterator
from typing import Any

import celpy
import jsonschema

_RULES = "x-kubernetes-validations"
_environment = celpy.Environment()


def _sum(values: Any) -> Any:
    """Of Kubernetes' list library, which celpy lacks."""
    return sum(values, celpy.celtypes.IntType(0))


def admit(schema: dict[str, Any], new: dict[str, Any], old: dict[str, Any] | None = None) -> list[str]:
    """`field path: message` of everything an API server would refuse; empty: admitted."""
    return check(schema, with_defaults(schema, new), None if old is None else with_defaults(schema, old))


def check(schema: dict[str, Any], new: dict[str, Any], old: dict[str, Any] | None = None) -> list[str]:
    """The same for objects as they are stored, or for the default of a field, which is checked as it stands."""
    validator = jsonschema.Draft7Validator(_json_schema(schema))
    errors = [f"{'.'.join(map(str, error.path))}: {error.message}" for error in validator.iter_errors(new)]
    if errors:
        return errors
    return list(_breaches(schema, new, old, ""))


def with_defaults(schema: dict[str, Any], value: Any) -> Any:
    """The object as it is stored."""
    value = copy.deepcopy(value)
    if isinstance(value, dict):
        for name, child in schema.get("properties", {}).items():
            if name not in value and "default" in child:
                value[name] = copy.deepcopy(child["default"])
            if name in value:
                value[name] = with_defaults(child, value[name])
    elif isinstance(value, list):
        value = [with_defaults(schema["items"], item) for item in value]
    return value


def _json_schema(node: dict[str, Any]) -> dict[str, Any]:
    """Kubernetes' dialect as JSON schema; unknown fields are refused, as kubectl asks for by default."""
    out = {key: value for key, value in node.items() if not key.startswith("x-")}
    for bound in ("Minimum", "Maximum"):
        if out.pop(f"exclusive{bound}", False):
            out[f"exclusive{bound}"] = out.pop(bound.lower())
    if node.get("x-kubernetes-int-or-string"):
        out["type"] = ["integer", "string"]
    if out.pop("nullable", False):
        out["type"] = [out["type"], "null"]
    if "properties" in node:
        out["properties"] = {name: _json_schema(child) for name, child in node["properties"].items()}
        out["additionalProperties"] = False
    if "items" in node:
        out["items"] = _json_schema(node["items"])
    return out


def _breaches(schema: dict[str, Any], new: Any, old: Any, path: str) -> Iterator[str]:
    for rule in schema.get(_RULES, []):
        if "oldSelf" in rule["rule"] and old is None:
            continue
        values = {"self": _cel(schema, new), "oldSelf": _cel(schema, old)}
        text = rule["rule"].replace("__namespace__", "namespace")  # Kubernetes' way to write a word of CEL's own
        program = _environment.program(_environment.compile(text), functions={"sum": _sum})
        if not program.evaluate(values):
            yield f"{(path + rule.get('fieldPath', '')).lstrip('.')}: {rule['message']}"
    if "items" in schema and isinstance(new, list):
        keys = schema.get("x-kubernetes-list-map-keys", [])
        known = {tuple(item.get(key) for key in keys): item for item in old or []} if keys else {}
        for number, item in enumerate(new):
            before = known.get(tuple(item.get(key) for key in keys)) if keys else None
            yield from _breaches(schema["items"], item, before, f"{path}.{number}")
    for name, child in schema.get("properties", {}).items():
        if isinstance(new, dict) and new.get(name) is not None:
            before = old.get(name) if isinstance(old, dict) else None
            yield from _breaches(child, new[name], before, f"{path}.{name}")


def _cel(schema: dict[str, Any], value: Any) -> Any:
    """A value with the CEL type its schema gives it: `number` is a double, also where it is written 1."""
    if isinstance(value, list) and "items" in schema:
        return celpy.celtypes.ListType([_cel(schema["items"], item) for item in value])
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        members = {name: _cel(properties.get(name, {}), member) for name, member in value.items()}
        return celpy.celtypes.MapType({celpy.celtypes.StringType(name): member for name, member in members.items()})
    if schema.get("type") == "number" and value is not None:
        return celpy.celtypes.DoubleType(value)
    return celpy.json_to_cel(value)

"""The patch from one status to the next, and whether the server has kept what was sent.

Knows of its fields only which rows of which lists are the same one, from the schema.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from diloco_api.crd import build_schema
from diloco_operator.api import Document

_KEYS = "x-kubernetes-list-map-keys"


def merge_patch(stored: Document, before: Document, wanted: Document) -> Document:
    """RFC 7386: from what the server holds to what is wanted; what was ours before and is gone becomes null.

    Such a patch replaces lists: their rows take along what a newer operator has written into them.
    """
    patch: Document = {name: None for name in before if name not in wanted and name in stored}
    for name, value in wanted.items():
        held, known = stored.get(name), before.get(name)
        if isinstance(value, dict) and isinstance(held, dict):
            inner = merge_patch(held, known if isinstance(known, dict) else {}, value)
            if inner:
                patch[name] = inner
        else:
            whole = _with_unknown(held, known, value, name)
            if name not in stored or held != whole:
                patch[name] = whole
    return patch


def _with_unknown(held: Any, before: Any, wanted: Any, field: str) -> Any:
    """`wanted`, and of what the server holds what is not known here: it was not in `before`, as we had read that."""
    if isinstance(wanted, dict) and isinstance(held, dict) and isinstance(before, dict):
        unknown = {name: value for name, value in held.items() if name not in before and name not in wanted}
        return unknown | {
            name: _with_unknown(held.get(name), before.get(name), value, name) for name, value in wanted.items()
        }
    keys = row_keys().get(field)
    if keys and isinstance(wanted, list) and isinstance(held, list) and isinstance(before, list):
        rows, known = ({_key(row, keys): row for row in listed} for listed in (held, before))
        return [_with_unknown(rows.get(_key(row, keys)), known.get(_key(row, keys)), row, field) for row in wanted]
    return wanted


def _key(row: Any, keys: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in keys)


@cache
def row_keys() -> Mapping[str, tuple[str, ...]]:
    """Of every list of rows in the status, by its name: the fields that tell which row it is."""
    return dict(_listed(build_schema()["properties"]["status"]))


def _listed(schema: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, child in schema.get("properties", {}).items():
        if _KEYS in child:
            yield name, tuple(child[_KEYS])
        yield from _listed(child.get("items", child))


def missing(wanted: Any, held: Any, path: str = "status") -> Iterator[str]:
    """Paths of the fields that were sent and are not there."""
    if isinstance(wanted, dict):
        for name, value in wanted.items():
            inner = f"{path}.{name}"
            if not isinstance(held, dict) or name not in held:
                yield inner
            else:
                yield from missing(value, held[name], inner)
    elif isinstance(wanted, list) and isinstance(held, list):
        for one, other in zip(wanted, held, strict=False):
            yield from missing(one, other, f"{path}[]")

"""The patch from one status to the next, and whether the server has kept what was sent. Knows nothing of its fields."""

from collections.abc import Iterator
from typing import Any

from diloco_operator.api import Document

_ROW_KEYS = ("index", "type", "name")


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
            whole = _with_unknown(held, known, value)
            if name not in stored or held != whole:
                patch[name] = whole
    return patch


def _with_unknown(held: Any, before: Any, wanted: Any) -> Any:
    """`wanted`, and of what the server holds what is not known here: it was not in `before`, as we had read that."""
    if isinstance(wanted, dict) and isinstance(held, dict) and isinstance(before, dict):
        unknown = {name: value for name, value in held.items() if name not in before and name not in wanted}
        return unknown | {
            name: _with_unknown(held.get(name), before.get(name), value) for name, value in wanted.items()
        }
    if isinstance(wanted, list) and isinstance(held, list) and isinstance(before, list):
        rows, known = _by_key(held), _by_key(before)
        return [_with_unknown(rows.get(_key(row)), known.get(_key(row)), row) for row in wanted]
    return wanted


def _by_key(rows: list[Any]) -> dict[object, Any]:
    return {key: row for row in rows if (key := _key(row)) is not None}


def _key(row: Any) -> object:
    """Which row of a list it is: see the CRD's list-map keys."""
    return next((row[name] for name in _ROW_KEYS if name in row), None) if isinstance(row, dict) else None


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

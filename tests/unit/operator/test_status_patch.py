"""The patch from one status to the next: rows are the same one by the keys of the schema, whatever a newer one adds."""

from typing import Any

from diloco_operator.status_patch import merge_patch, row_keys


def times(index: int, site: str, seconds: int, **unknown: Any) -> dict[str, Any]:
    return {"index": index, "site": site, "milliseconds": {"training": 1000 * seconds}, **unknown}


def test_rows_are_told_apart_by_all_their_keys() -> None:
    before = {"goodput": {"learnerTimes": [times(0, "a", 1), times(0, "b", 2), times(1, "a", 3)]}}
    stored = {"goodput": {"learnerTimes": [times(0, "a", 1, mood=1), times(0, "b", 2), times(1, "a", 3, mood=3)]}}
    wanted = {"goodput": {"learnerTimes": [times(0, "b", 5), times(0, "a", 1), times(1, "a", 3)]}}
    assert merge_patch(stored, before, wanted) == {
        "goodput": {"learnerTimes": [times(0, "b", 5), times(0, "a", 1, mood=1), times(1, "a", 3, mood=3)]}
    }


def test_every_list_of_rows_in_the_schema_has_its_keys() -> None:
    assert row_keys() == {
        "conditions": ("type",), "sites": ("name",), "learnerStatuses": ("index",),
        "learnerTimes": ("index", "site"), "heardTimes": ("index",),
    }  # fmt: skip

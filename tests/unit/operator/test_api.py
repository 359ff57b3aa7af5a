"""Lists of the hub come whole, or not at all."""

import pytest

from diloco_operator import api as api_module
from diloco_operator.api import ApiError, Document, list_all


class Pages:
    """Answers one page after the other; `num` of them, then the last."""

    def __init__(self, num: float) -> None:
        self.num = num
        self.asked: list[str] = []

    async def request(self, method: str, path: str, body: object = None, **options: object) -> Document:
        query = options["query"]
        assert isinstance(query, dict)
        self.asked.append(query.get("continue", ""))
        more = len(self.asked) < self.num
        return {"items": [{"n": len(self.asked)}], "metadata": {"continue": f"t{len(self.asked)}" if more else ""}}


async def test_a_list_comes_page_after_page() -> None:
    pages = Pages(3)
    assert [item["n"] for item in await list_all(pages, "/jobs")] == [1, 2, 3]
    assert pages.asked == ["", "t1", "t2"]


async def test_a_list_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_module, "_MOST_PAGES", 5)
    pages = Pages(float("inf"))
    with pytest.raises(ApiError, match="a list of /jobs without end"):
        await list_all(pages, "/jobs")
    assert len(pages.asked) == 5

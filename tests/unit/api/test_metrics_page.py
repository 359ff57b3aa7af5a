"""docs/metrics.md says what the table of all series says."""

from pathlib import Path

import pytest

from diloco_api.metrics import SERIES
from diloco_api.metrics_page import PAGE_PATH, main, page_text


def test_the_page_is_current_and_names_every_series_once() -> None:
    assert PAGE_PATH.read_text(encoding="utf-8") == page_text()
    assert [page_text().count(f"| `{name}` |") for name in SERIES] == [1] * len(SERIES)


def test_a_stale_page_is_noticed_and_written_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "metrics.md"
    page.write_text("old", encoding="utf-8")
    assert main(["--check"], page) == 1
    assert "make manifests" in capsys.readouterr().err
    assert main([], page) == 0
    assert main(["--check"], page) == 0

"""docs/manifest.md says what the models say."""

from pathlib import Path

from diloco_api.crd import build_schema, walk
from diloco_api.manifest_page import PAGE_PATH, build_page, main


def test_the_page_is_current() -> None:
    assert PAGE_PATH.read_text(encoding="utf-8") == build_page()


def test_every_field_a_user_can_write_is_on_the_page() -> None:
    page = build_page()
    leaves = [path for path, node in walk(build_schema()["properties"]["spec"], "spec") if not node.get("properties")]
    assert len(leaves) > 50
    assert [path for path in leaves if f"`{path}`" not in page] == []


def test_a_stale_page_is_noticed_and_written_anew(tmp_path: Path, capsys) -> None:
    page = tmp_path / "manifest.md"
    page.write_text("old", encoding="utf-8")
    assert main(["--check"], page) == 1
    assert "make manifests" in capsys.readouterr().err
    assert main([], page) == 0
    assert main(["--check"], page) == 0

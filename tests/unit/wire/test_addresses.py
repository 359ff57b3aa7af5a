from pathlib import Path

import pytest

from diloco_trainer.wire.errors import SynchronizerUnavailable
from diloco_trainer.wire.link import read_addresses
from diloco_trainer.wire.protocol import is_loopback, split_address


def test_addresses_are_one_a_line(tmp_path: Path) -> None:
    file = tmp_path / "addresses"
    file.write_text("10.0.0.1:29400\n\n[fd00::1]:29400\nsynchronizer.example:443\n")
    assert read_addresses(file) == ["10.0.0.1:29400", "[fd00::1]:29400", "synchronizer.example:443"]


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "holds no address yet"), ("host", "'host' is not host:port"), (":5", "':5'"), ("h:0", "'h:0'"), ("h:x", "")],
)
def test_a_file_without_good_addresses_may_still_become_good(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "addresses"
    file.write_text(text)
    with pytest.raises(SynchronizerUnavailable, match=f"addresses: .*{words}"):
        read_addresses(file)


def test_a_missing_file_may_still_come(tmp_path: Path) -> None:
    with pytest.raises(SynchronizerUnavailable, match="cannot be read: No such file"):
        read_addresses(tmp_path / "addresses")


def test_an_address_is_taken_apart_at_its_last_colon() -> None:
    assert split_address("[::1]:80") == ("[::1]", 80)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
    ],
)
def test_loopback_is_this_machine_only(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected

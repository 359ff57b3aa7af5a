import pytest

from diloco_cli import wording


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0"), (999, "999"), (999.6, "1.00k"), (1000, "1.00k"), (12_345, "12.3k"), (123_456, "123k"),
     (999_700, "1.00M"), (1.5e9, "1.50G"), (2e13, "20.0T")],
)  # fmt: skip
def test_counts_have_three_digits(value: float | None, text: str) -> None:
    assert wording.count(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (80, "1 min 20 s"), (7380, "2 h 03 min")],
)
def test_durations_name_their_units(seconds: float | None, text: str) -> None:
    assert wording.duration(seconds) == text


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (999, "999 B"), (1_000, "1.00 kB"), (53_400_000, "53.4 MB")])
def test_sizes_are_decimal(size: int, text: str) -> None:
    assert wording.size(size) == text


def test_shares_are_percent_and_unknown_is_a_dash() -> None:
    assert wording.share(0.9876) == "98.8 %"
    assert wording.share(None) == "-"

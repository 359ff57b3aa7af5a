"""Bytes to sequences."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diloco_api.train import DataSpec
from diloco_trainer.task.errors import DataError
from diloco_trainer.task.text_data import TextData, read_text


def data(num_bytes: int, length: int, part: float) -> TextData:
    return TextData(torch.arange(num_bytes).to(torch.uint8), length, part, origin="text")


@given(st.integers(10, 400), st.integers(2, 9), st.floats(0.01, 0.49))
def test_training_and_validation_share_no_sequence_and_leave_none_out(count: int, length: int, part: float) -> None:
    text = torch.arange(count * length + 1).to(torch.int32)
    try:
        cut = TextData(text, length, part, origin="text")
    except DataError:
        assert round(count * part) < 1
        return
    starts = [
        *cut.training(torch.arange(cut.num_training))[:, 0].tolist(),
        *cut.validation(torch.arange(cut.num_validation))[:, 0].tolist(),
    ]
    assert sorted(starts) == [number * length for number in range(count)]


def test_a_sequence_holds_one_byte_more_than_it_counts() -> None:
    first = data(1000, 10, 0.1).training(torch.tensor([0, 1]))
    assert first.dtype == torch.int64
    assert first.tolist() == [list(range(11)), list(range(10, 21))]


def test_validation_is_spread_over_the_whole_text() -> None:
    cut = data(1001, 10, 0.1)
    assert cut.validation(torch.arange(10))[:, 0].tolist() == [(90 + 100 * number) % 256 for number in range(10)]


def test_a_position_outside_the_data_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"within 0\.\.89"):
        data(1001, 10, 0.1).training(torch.tensor([90]))


@pytest.mark.parametrize("num_bytes", [0, 1, 10])
def test_text_shorter_than_a_sequence_says_what_is_there_and_what_is_needed(num_bytes: int) -> None:
    with pytest.raises(DataError, match=rf"has {num_bytes} bytes, one sequence .* needs 11"):
        data(num_bytes, 10, 0.1)


def test_too_little_for_validation_names_the_field() -> None:
    with pytest.raises(DataError, match=r"data\.validationPart: 0\.01 of the 5 sequences"):
        data(51, 10, 0.01)


def test_files_are_joined_as_bytes_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "b.bin").write_bytes(bytes(range(128, 256)))
    (tmp_path / "a.bin").write_bytes(bytes(range(128)))
    cut = read_text(DataSpec(uri=f"{tmp_path}/*.bin", sequence_length=8, validation_part=0.1))
    assert cut.num_training + cut.num_validation == 31
    assert cut.training(torch.tensor([cut.num_training - 1]))[0, -1] == 240


def test_an_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("x")

    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", refuse)  # a mode of 000 does not stop root
    with pytest.raises(DataError, match=r"a\.txt: cannot be read: Permission denied"):
        read_text(DataSpec(uri=f"{tmp_path}/*.txt"))

"""Text as training sequences: files read as bytes, joined in the order of their names, cut into sequences.

A sequence is T + 1 bytes that start at a multiple of T, so every byte but the first is predicted exactly once. Every
1/validation_part-th sequence, evenly spread over the whole text, is kept for validation and never trained on. The text
is read once into one uint8 tensor. The order of a pass and evaluation are decided elsewhere.
"""

from pathlib import Path

import torch
from torch import Tensor

from diloco_api.train import DataSpec
from diloco_trainer.task.errors import DataError
from diloco_trainer.task.files import find_files


class TextData:
    """Training and validation sequences of one text, by number."""

    def __init__(self, text: Tensor, sequence_length: int, validation_part: float, origin: str) -> None:
        """`text` uint8 [bytes]; `origin` names the text in errors."""
        self._text = text
        self._length = sequence_length
        total = (text.numel() - 1) // sequence_length if text.numel() else 0
        if total < 1:
            raise DataError(
                f"data.uri: {origin} has {text.numel()} bytes, one sequence of data.sequenceLength "
                f"{sequence_length} needs {sequence_length + 1}"
            )
        kept = round(total * validation_part)
        if kept < 1 or kept >= total:
            raise DataError(
                f"data.validationPart: {validation_part} of the {total} sequences of {origin} leaves {kept} for "
                f"validation and {total - kept} for training; both need at least one"
            )
        numbers = torch.arange(1, kept + 1, dtype=torch.int64)
        self._validation = (numbers * total + kept - 1) // kept - 1  # int64 [kept], the last is total - 1
        self._validation_before = self._validation - (numbers - 1)  # training sequences before each of them
        self.num_training = total - kept
        self.num_validation = kept

    def training(self, numbers: Tensor) -> Tensor:
        """Training sequences int64 [b] -> int64 [b, T + 1]."""
        if numbers.numel() and (int(numbers.min()) < 0 or int(numbers.max()) >= self.num_training):
            raise ValueError(f"sequence numbers must be within 0..{self.num_training - 1}")
        skipped = torch.searchsorted(self._validation_before, numbers, right=True)
        return self._cut(numbers + skipped)

    def validation(self, numbers: Tensor) -> Tensor:
        """Validation sequences int64 [b] -> int64 [b, T + 1]."""
        return self._cut(self._validation[numbers])

    def _cut(self, sequences: Tensor) -> Tensor:
        starts = (sequences * self._length).unsqueeze(1)  # [b, 1]
        return self._text[starts + torch.arange(self._length + 1)].to(torch.int64)


def read_text(spec: DataSpec) -> TextData:
    """Find, read and cut the text of a job; raises DataError in one line when that is not possible."""
    joined = bytearray()
    for path in find_files(spec.uri):
        joined += _read(path)
    text = torch.frombuffer(joined, dtype=torch.uint8) if joined else torch.empty(0, dtype=torch.uint8)
    return TextData(text, spec.sequence_length, spec.validation_part, origin=spec.uri)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"data.uri: {path}: cannot be read: {error.strerror}") from error

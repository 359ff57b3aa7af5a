"""A snapshot comes back as it was written, or does not count."""

import json
import zlib
from collections import deque
from hashlib import sha256
from pathlib import Path

import pytest
import torch

from diloco_trainer.algorithm.guard import NormHistory
from diloco_trainer.synchronizer.snapshot import (
    SnapshotCorrupt,
    SnapshotWriter,
    load_newest,
    save_tensors,
    snapshot_numbers,
)
from diloco_trainer.synchronizer.state import FragmentState, Retained, Version


def fragment(index: int, version: int) -> FragmentState:
    generator = torch.Generator().manual_seed(index)
    theta, momentum, published = torch.randn(3, 7 + index, generator=generator)
    retained = [
        Retained(Version(v, f"d{v}", 0.1 * v), torch.full((5,), v, dtype=torch.uint8), sha256(bytes([v] * 5)).digest())
        for v in (1, 2)
    ]
    state = FragmentState(
        index, theta, momentum, published, Version(version, "digest", 0.5, 12.0, 3, 9), deque(maxlen=2)
    )
    state.retained.extend(retained)
    state.norms = NormHistory(((1.5, 3, 1e-3), (2.5, 4, 2e-3)), {0: (1, 1.5), 3: (2, 2.5)})
    return state


def write(folder: Path, segment: int, control: dict[str, object], states: list[FragmentState]) -> None:
    writer = SnapshotWriter(folder, segment, 10 * segment, control)
    for state in states:
        writer.write_fragment(state)
    writer.finish()


def test_a_snapshot_comes_back_bit_for_bit(tmp_path: Path) -> None:
    states = [fragment(0, 2), fragment(1, 5)]
    write(tmp_path, 3, {"members": [1, 2]}, states)
    loaded = load_newest(tmp_path, retained=2)
    assert loaded is not None
    assert (loaded.segment, loaded.next_lsn, loaded.control) == (3, 30, {"members": [1, 2]})
    for found, meant in zip(loaded.fragments, states, strict=True):
        assert (found.newest, found.norms) == (meant.newest, meant.norms)
        for name in ("theta", "momentum", "published"):
            assert torch.equal(getattr(found, name), getattr(meant, name))
        assert [(i.version, i.checksum) for i in found.retained] == [(i.version, i.checksum) for i in meant.retained]
        assert all(torch.equal(a.delta, b.delta) for a, b in zip(found.retained, meant.retained, strict=True))


def test_an_unfinished_snapshot_does_not_count_and_is_removed(tmp_path: Path) -> None:
    write(tmp_path, 1, {"n": 1}, [fragment(0, 1)])
    SnapshotWriter(tmp_path, 2, 20, {"n": 2}).write_fragment(fragment(0, 2))
    loaded = load_newest(tmp_path, retained=2)
    assert loaded is not None
    assert loaded.control == {"n": 1}
    assert list(tmp_path.glob("*.tmp")) == []


def test_a_finished_snapshot_replaces_older_ones(tmp_path: Path) -> None:
    write(tmp_path, 1, {}, [fragment(0, 1)])
    write(tmp_path, 2, {}, [fragment(0, 2)])
    assert snapshot_numbers(tmp_path) == [2]


def test_a_damaged_snapshot_is_named(tmp_path: Path) -> None:
    write(tmp_path, 1, {}, [fragment(0, 1)])
    path = tmp_path / "snapshot-00000001" / "fragment-0000.safetensors"
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(SnapshotCorrupt, match=r"fragment-0000\.safetensors is missing or damaged"):
        load_newest(tmp_path, retained=2)


@pytest.mark.parametrize(
    "text", ["{}", "[]", "7", "", "{", '{"format": 2}', '{"format": 2, "crc": 0, "document": []}', "\x00" * 40]
)
def test_a_control_file_of_another_shape_is_named(tmp_path: Path, text: str) -> None:
    write(tmp_path, 1, {}, [fragment(0, 1)])
    (tmp_path / "snapshot-00000001" / "control.json").write_text(text, encoding="utf-8")
    with pytest.raises(SnapshotCorrupt, match=r"snapshot-00000001/control\.json "):
        load_newest(tmp_path, retained=2)


def test_any_flipped_digit_of_the_control_file_is_noticed(tmp_path: Path) -> None:
    write(tmp_path, 1, {"clock": 1234, "share": 0.125, "who": "learner 5"}, [fragment(0, 1)])
    path = tmp_path / "snapshot-00000001" / "control.json"
    whole = path.read_text(encoding="utf-8")
    places = [place for place, char in enumerate(whole) if char.isdigit()]
    assert len(places) > 20
    for place in places:
        flipped = str((int(whole[place]) + 1) % 10)
        path.write_text(whole[:place] + flipped + whole[place + 1 :], encoding="utf-8")
        with pytest.raises(SnapshotCorrupt, match=r"control\.json"):
            load_newest(tmp_path, retained=2)


def test_a_sealed_document_of_another_shape_is_named(tmp_path: Path) -> None:
    write(tmp_path, 1, {}, [fragment(0, 1)])
    path = tmp_path / "snapshot-00000001" / "control.json"
    sealed = json.loads(path.read_text(encoding="utf-8"))
    sealed["document"] = {"segment": 1}
    sealed["crc"] = zlib.crc32(json.dumps(sealed["document"]).encode())
    path.write_text(json.dumps(sealed), encoding="utf-8")
    with pytest.raises(SnapshotCorrupt, match="not the control state"):
        load_newest(tmp_path, retained=2)


def test_an_older_format_is_named(tmp_path: Path) -> None:
    write(tmp_path, 1, {}, [fragment(0, 1)])
    (tmp_path / "snapshot-00000001" / "control.json").write_text('{"format": 1, "segment": 1}', encoding="utf-8")
    with pytest.raises(SnapshotCorrupt, match="has format 1, this version reads 2"):
        load_newest(tmp_path, retained=2)


def test_a_tensor_file_that_cannot_be_written_is_an_error_of_the_disk(tmp_path: Path) -> None:
    """safetensors reports it as an error of its own kind."""
    path = tmp_path / "no such folder" / "fragment.safetensors"
    with pytest.raises(OSError) as caught:
        save_tensors({"x": torch.zeros(3)}, path, {})
    assert caught.value.filename == str(path)


def test_an_empty_folder_has_no_snapshot(tmp_path: Path) -> None:
    assert load_newest(tmp_path, retained=2) is None

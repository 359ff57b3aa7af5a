from pathlib import Path

from diloco_trainer.wire import generate

PROTO = Path(generate.__file__).with_name("synchronizer.proto")
PACKAGES = Path(generate.__file__).parents[2]


def test_committed_stubs_are_what_the_proto_generates() -> None:
    assert generate.stale(PROTO, PACKAGES) == []


def test_a_changed_proto_is_noticed(tmp_path: Path) -> None:
    changed = tmp_path / PROTO.name
    changed.write_text(PROTO.read_text().replace("uint64 epoch = 1;", "uint64 era = 1;", 1))
    assert generate.stale(changed, PACKAGES) == ["synchronizer_pb2.py", "synchronizer_pb2.pyi"]


def test_a_missing_stub_is_noticed(tmp_path: Path) -> None:
    generate.generate(PROTO, tmp_path)
    (tmp_path / "diloco_trainer/wire/gen/synchronizer_pb2_grpc.pyi").unlink()
    assert generate.stale(PROTO, tmp_path) == ["synchronizer_pb2_grpc.pyi"]

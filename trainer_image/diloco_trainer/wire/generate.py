"""Writes the stubs of `synchronizer.proto` into `gen/`, or checks that they are current (`--check`).

Used by `make proto` and `make verify`. Needs the `dev` extra; decides nothing else.
"""

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

_WIRE = Path(__file__).resolve().parent
_ROOT = _WIRE.parents[1]
_GENERATED = Path("diloco_trainer/wire/gen")
_NAMES = ("synchronizer_pb2.py", "synchronizer_pb2.pyi", "synchronizer_pb2_grpc.py", "synchronizer_pb2_grpc.pyi")


def generate(proto: Path, root: Path) -> None:
    """Write the stubs of `proto` below `root`; the proto is mapped into the package, so imports between them work."""
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        f"--proto_path={_GENERATED}={proto.parent}",
        *(f"--{kind}={root}" for kind in ("python_out", "grpc_python_out")),
        *(f"--{kind}=quiet:{root}" for kind in ("mypy_out", "mypy_grpc_out")),
        str(_GENERATED / proto.name),
    ]
    # protoc finds the mypy plugins on the PATH; they are installed beside this interpreter.
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    subprocess.run(command, check=True, env={**os.environ, "PATH": path})


def stale(proto: Path, root: Path) -> list[str]:
    """Names of the files below `root` that differ from what `proto` generates."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch)
        generate(proto, fresh)
        return [name for name in _NAMES if _text(fresh / _GENERATED / name) != _text(root / _GENERATED / name)]


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m diloco_trainer.wire.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail when the stubs are not current")
    proto = _WIRE / "synchronizer.proto"
    if not parser.parse_args().check:
        generate(proto, _ROOT)
        return 0
    old = stale(proto, _ROOT)
    if old:
        print(f"error: not what {proto.name} generates: {', '.join(old)}; run `make proto`", file=sys.stderr)
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())

"""The file the report goes to: whether it can be written is tried before anything runs, then it is written whole.

What is in it is `report`'s concern.
"""

import tempfile
from pathlib import Path

from diloco_api.errors import SpecError
from diloco_operator.files import write_atomically

_OF_THE_RUN = frozenset({
    "claims", "configmaps", "events.jsonl", "job.json", "key", "lock", "logs", "operator.log", "outer.safetensors",
    "pods", "processes.json", "progress.json", "secrets",
})  # fmt: skip
"""What a run keeps in its work folder."""


def check_report(path: Path, workdir: Path) -> None:
    """SpecError where a report could not be written or would take the place of something else."""
    where, folder = path.absolute(), workdir.absolute()
    if where.is_relative_to(folder) and where.relative_to(folder).parts[:1] in [(name,) for name in _OF_THE_RUN]:
        raise SpecError(f"--report {path}: the run itself uses {where.relative_to(folder).parts[0]} in its work folder")
    if path.is_dir():
        raise SpecError(f"--report {path}: is a folder")
    if path.exists() and not path.is_file():
        raise SpecError(f"--report {path}: is not a regular file")
    parent = next(above for above in where.parents if above.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=parent, prefix=".report-"):
            pass
    except OSError as error:
        raise SpecError(f"--report {path}: {parent} cannot be written: {error.strerror}") from error


def write_report(path: Path, text: str) -> str:
    """Write the file whole or not at all, making its folder. Returns why it could not be done, or nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        return f"--report {path}: cannot be written: {error.strerror}"
    return ""

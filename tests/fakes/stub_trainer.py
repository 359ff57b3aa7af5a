"""Puts stand-ins for the trainer's two programs where local processes find them before the real ones."""

import os
import shutil
from pathlib import Path

_HERE = Path(__file__).parent


def write_stub_trainer(folder: Path) -> str:
    """Make a package `diloco_trainer` of stubs in `folder`; returns the PYTHONPATH for processes."""
    for program in ("learner", "synchronizer"):
        package = folder / "diloco_trainer" / program
        package.mkdir(parents=True)
        (package.parent / "__init__.py").touch()
        (package / "__init__.py").touch()
        shutil.copy(_HERE / f"stub_{program}.py", package / "__main__.py")
    contract = _HERE.parent.parent / "crds"
    return os.pathsep.join([str(folder), str(contract)])

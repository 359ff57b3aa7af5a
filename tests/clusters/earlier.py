"""An earlier build of this repository: the commit before this one, aged so that it differs where upgrades go wrong.

Its pod templates write something else, and its CRD is another text. The rest is as that commit left it.
"""

import subprocess
from pathlib import Path

import yaml

from clusters.pythons import REPOSITORY

REVISION = "HEAD~1"
MARK = "WRITTEN_BY"
"""Variable of every pod that the earlier operator writes down."""
DESCRIPTION = "As an earlier operator described it."
_MANIFESTS = "operator/diloco_operator/planning/manifests"
CRD = "crds/dilocojobs.diloco.dev.yaml"


def earlier_build(folder: Path) -> Path:
    """The tree, in an empty folder."""
    archive = subprocess.run(
        ["git", "-C", str(REPOSITORY), "archive", REVISION], capture_output=True, check=False
    )  # a clone without history has no earlier build: fetch it with a depth of two
    assert archive.returncode == 0, archive.stderr.decode()
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    for module, role in (("learner", "LEARNER"), ("synchronizer", "SYNCHRONIZER")):
        _insert(
            folder / _MANIFESTS / f"{module}.py",
            f"        names.ENV_ROLE: Role.{role}.value,\n",
            f'"{MARK}": "earlier",',
        )
    definition = yaml.safe_load((folder / CRD).read_text())
    for version in definition["spec"]["versions"]:
        version["schema"]["openAPIV3Schema"]["description"] = DESCRIPTION
    (folder / CRD).write_text(yaml.safe_dump(definition, sort_keys=False))
    return folder


def _insert(path: Path, after: str, line: str) -> None:
    text = path.read_text()
    assert text.count(after) == 1, f"{path}: {after}"
    path.write_text(text.replace(after, f"{after}        {line}\n"))

"""A program in an image's root that cannot be written, as the image's user: what a pod with readOnlyRootFilesystem has.

A mount namespace of its own per process; /tmp is fresh, and one folder of this machine is there under its own name.
"""

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from reference.processes import Job

USER = 65532


def command(root: Path, folder: Path, variables: Mapping[str, str], words: Sequence[str]) -> list[str]:
    """To be run by root; signals reach the program itself."""
    assert folder.is_relative_to("/tmp"), f"{folder} has no place in the image"
    inside = shlex.quote(f"{root}{folder}")
    program = shlex.join(["/usr/bin/env", "-i", *_pairs(variables), *words])
    steps = [
        f"mount --bind {root} {root}",
        f"mount -o remount,bind,ro {root}",
        f"mount -t proc proc {root}/proc",
        f"mount --bind /dev {root}/dev",
        f"mount -t tmpfs tmpfs {root}/tmp",
        f"mkdir -p {inside}",
        f"mount --bind {shlex.quote(str(folder))} {inside}",
        f"exec chroot --userspec={USER}:{USER} {root} {program}",
    ]
    return ["unshare", "--mount", "sh", "-euc", "\n".join(steps)]


def run(
    root: Path, folder: Path, variables: Mapping[str, str], words: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(root, folder, variables, words), capture_output=True, text=True, check=False)


class ImageJob(Job):
    """A job whose processes run in the image."""

    root: Path
    variables: Mapping[str, str]

    def _start(self, name: str, command_line: tuple[str, ...], variables: dict[str, str]) -> None:
        for path in [self.folder, *self.folder.rglob("*")]:
            os.chown(path, USER, USER)
        whole = {**self.variables, **self.environment(), **variables}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command(self.root, self.folder, whole, command_line), stdout=log, stderr=log
            )


def _pairs(variables: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in variables.items()]

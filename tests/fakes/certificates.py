"""Credentials folders with the certificates the operator would make, also unfit ones, and their renewal."""

import shutil
import time
from pathlib import Path

from diloco_api import names
from diloco_operator.planning import pki
from diloco_operator.planning.pki import Leaf
from diloco_trainer.wire.tls import ClientTls, Credentials
from fakes.synchronizer_backend import JOB

ROOT = b"the root key of the job in tests"
OTHER_ROOT = b"the root key of some other job.."
PERIOD = pki.RENEWAL_SECONDS
NOW = time.time()


def secret(folder: Path, leaf: Leaf, ca: str) -> Credentials:
    """Put files into a folder as a kubelet mounts a Secret: all of them change at one instant."""
    data = folder / f"..{time.monotonic_ns()}"
    data.mkdir(parents=True)
    files = {names.FILE_TLS_CERTIFICATE: leaf.certificate, names.FILE_TLS_KEY: leaf.key, names.FILE_CA: ca}
    for name, text in files.items():
        (data / name).write_text(text)
    current = folder / "..data"
    before = current.resolve() if current.exists() else None
    (folder / "..next").symlink_to(data.name)
    (folder / "..next").replace(current)
    if before is None:
        for name in files:
            (folder / name).symlink_to(Path("..data") / name)
    else:
        shutil.rmtree(before)
    return Credentials(folder)


def server(
    folder: Path, *, root: bytes = ROOT, job: str = JOB, trusts: bytes = ROOT, age: int = 0, late: int = 0
) -> Credentials:
    """The Synchronizer's Secret in generation `age` of its job; `late` generations ago it was renewed last."""
    started = NOW - age * PERIOD
    then = NOW - late * PERIOD
    return secret(folder, pki.server_leaf(root, job, started, then), pki.ca_bundle(trusts, job, started, then))


def learner(
    folder: Path,
    index: int = 0,
    incarnation: int = 0,
    *,
    root: bytes = ROOT,
    trusts: bytes = ROOT,
    age: int = 0,
    late: int = 0,
    expects: str = JOB,
) -> ClientTls:
    """A Learner's Secret, like `server`'s."""
    started = NOW - age * PERIOD
    then = NOW - late * PERIOD
    leaf = pki.learner_leaf(root, JOB, index, incarnation, started, then)
    return ClientTls(secret(folder, leaf, pki.ca_bundle(trusts, JOB, started, then)), names.server_name(expects))

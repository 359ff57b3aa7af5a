"""Ports of a local run: which are free, which were asked for, which are kept from an earlier run.

A port that was asked for must be free; others are chosen, and chosen anew when somebody else has taken them since.
"""

import os
import socket
from collections.abc import Mapping
from hashlib import sha256
from itertools import islice
from pathlib import Path

from diloco_api.accept import Ports
from diloco_api.errors import SpecError
from diloco_api.status import PortsStatus
from diloco_api.v1alpha1 import DiLoCoJob

LOOPBACK = "127.0.0.1"
FIRST_PORT = 29400
END_PORT = 32768
"""Below the ports systems hand out by themselves, so that none of ours is taken while its process restarts."""
_PORT_FIELDS = {"port", "admin_port", "metrics_port"}


def free_ports(folder: Path, asked: Mapping[str, int]) -> Ports:
    """Three ports nobody listens on or has `asked` for; where the search begins depends on the folder."""
    count = END_PORT - FIRST_PORT
    first = int.from_bytes(sha256(os.fsencode(folder)).digest()[:4], "big") % count
    candidates = (FIRST_PORT + (first + step) % count for step in range(count))
    found = list(islice((port for port in candidates if port not in asked.values() and is_free(port)), 3))
    if len(found) < 3:
        raise SpecError(f"no three free ports from {FIRST_PORT} to {END_PORT - 1} on this machine")
    return Ports(synchronizer=found[0], admin=found[1], metrics=found[2], learner_metrics=0)


def asked_ports(job: DiLoCoJob) -> dict[str, int]:
    """By the path of their field."""
    asked = job.spec.synchronizer.model_dump(by_alias=True, exclude_none=True, include=_PORT_FIELDS)
    return {f"spec.synchronizer.{field}": port for field, port in asked.items()}


def check_ports(job: DiLoCoJob) -> None:
    """SpecError naming the first port that was asked for and is taken."""
    for whose, port in asked_ports(job).items():
        if not is_free(port):
            raise SpecError(f"{whose}: {port}: is in use on this machine")


def is_free(port: int) -> bool:
    """Whether a process could bind the port on the loopback address now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def free_again(kept: PortsStatus, offered: Ports, asked: Mapping[str, int]) -> PortsStatus:
    """The ports of an earlier run; those taken by somebody else since are replaced by some of the `offered` ones."""
    before: dict[str, int] = kept.model_dump()
    fresh = (port for port in (offered.synchronizer, offered.admin, offered.metrics) if port not in before.values())
    return PortsStatus(
        **{
            name: port if port in asked.values() or is_free(port) else next(fresh, port)
            for name, port in before.items()
        }
    )

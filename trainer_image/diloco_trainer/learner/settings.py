"""What a Learner process is given: variables, folders, device. Nothing else in the Learner reads the environment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from diloco_api import names
from diloco_api.errors import SpecError
from diloco_trainer.learner.device import choose_device


@dataclass(frozen=True)
class Settings:
    """Read once, at start."""

    index: int
    incarnation: int
    site: str
    run_config: Path
    addresses: Path
    credentials: Path
    """Folder of the token and, with TLS, of the certificates."""
    token: str = field(repr=False)
    scratch: Path | None
    """Folder of the tape; None keeps none."""
    device: torch.device
    threads: int | None
    """Threads of torch; None leaves its default."""


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Raises SpecError naming the variable or file, DeviceUnusable when a GPU cannot be used."""
    device = choose_device(environment.get(names.ENV_DEVICE))
    threads = _number(environment, names.ENV_THREADS, 1) if names.ENV_THREADS in environment else None
    if threads is None and device.type == "cpu":
        threads = 1
    scratch = environment.get(names.ENV_SCRATCH_DIR)
    return Settings(
        index=_number(environment, names.ENV_LEARNER_INDEX, 0),
        incarnation=_number(environment, names.ENV_INCARNATION, 0),
        site=environment.get(names.ENV_SITE, names.LOCAL_SITE),
        run_config=Path(_given(environment, names.ENV_CONFIG_DIR)) / names.FILE_RUN_CONFIG,
        addresses=Path(_given(environment, names.ENV_ADDRESS_DIR)) / names.FILE_ADDRESSES,
        credentials=Path(_given(environment, names.ENV_CREDENTIALS_DIR)),
        token=_token(Path(_given(environment, names.ENV_CREDENTIALS_DIR)) / names.FILE_TOKEN),
        scratch=Path(scratch) if scratch else None,
        device=device,
        threads=threads,
    )


def _given(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise SpecError(f"{name}: not set")
    return value


def _number(environment: Mapping[str, str], name: str, least: int) -> int:
    text = _given(environment, name)
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise SpecError(f"{name}: {text!r} is not a whole number of at least {least}")
    return int(text)


def _token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from error
    if not token:
        raise SpecError(f"{path}: is empty")
    return token

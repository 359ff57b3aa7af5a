"""The device a Learner trains on. A GPU that was asked for and cannot be used is an error; no CPU takes its place."""

from pathlib import Path

import torch

from diloco_api.errors import SpecError
from diloco_api.names import ENV_DEVICE

DRIVER_FILE = Path("/proc/driver/nvidia/version")


class DeviceUnusable(Exception):
    """Names driver and build of torch, in one line."""


def choose_device(wanted: str | None, driver_file: Path = DRIVER_FILE) -> torch.device:
    """`wanted` is cpu, cuda, or nothing: a GPU where torch sees one. Raises SpecError for anything else."""
    match wanted:
        case "cpu":
            return torch.device("cpu")
        case "cuda":
            return _gpu(driver_file)
        case None | "":
            return _gpu(driver_file) if torch.cuda.is_available() else torch.device("cpu")
    raise SpecError(f"{ENV_DEVICE}: {wanted!r} is neither cpu nor cuda")


def describe(device: torch.device) -> str:
    """For the log: what trains here."""
    what = f"{device.type} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type
    return f"{what}, {_build()}"


def _gpu(driver_file: Path) -> torch.device:
    """Computes something: a driver too old, or a build without code for this GPU, shows only then."""
    device = torch.device("cuda")
    try:
        torch.ones(2, device=device).sum().item()
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DeviceUnusable(f"cuda cannot be used: {why}; {_driver(driver_file)}; {_build()}") from error
    return device


def _driver(file: Path) -> str:
    """The kernel's part of the driver; a container sees it where GPUs are handed to it."""
    try:
        return f"driver: {file.read_text(encoding='utf-8').splitlines()[0].removeprefix('NVRM version:').strip()}"
    except (OSError, IndexError):
        return f"no NVIDIA driver here ({file} cannot be read)"


def _build() -> str:
    platform = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    return f"torch {torch.__version__}, built {platform}"

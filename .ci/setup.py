"""Makes `.venv` ready: what `make setup` does. Standard library only, safe to interrupt, silent when nothing is to do.

A stamp named after the hash of pyproject.toml is written last; while it is there, nothing is installed and no network
is needed. uv is used where it is on PATH, else pip (also the system's, where the interpreter has no ensurepip). On
Linux without an NVIDIA GPU the CPU build of torch is taken from PyTorch's own index, when that answers.
The macOS branches are untested.
"""

import hashlib
import platform
import shutil
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PROBE_SECONDS = 5.0
GIB = 2**30


def main() -> int:
    venv = (ROOT / (sys.argv[1] if len(sys.argv) > 1 else ".venv")).resolve()
    stamp = venv / f"ready-{_digest()}"
    python = venv / "bin" / "python"
    if stamp.exists() and python.exists():
        return 0
    try:
        _install(venv, python)
    except subprocess.CalledProcessError as error:
        return _fail(
            f"set-up failed (exit code {error.returncode} of `{' '.join(map(str, error.cmd))}`); run make again"
        )
    except KeyboardInterrupt:
        return _fail("set-up interrupted; run make again, it goes on from here")
    for old in venv.glob("ready-*"):
        old.unlink()
    stamp.touch()
    _say("set-up done")
    return 0


def _digest() -> str:
    """Changes whenever the environment would have to: dependencies, this file, the interpreter, the place."""
    parts = [
        (ROOT / "pyproject.toml").read_bytes(),
        Path(__file__).read_bytes(),
        sys.version.encode(),
        str(ROOT).encode(),
    ]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _install(venv: Path, python: Path) -> None:
    uv = shutil.which("uv")
    _say(f"set-up of {venv} with {'uv' if uv else 'pip'} and Python {platform.python_version()}")
    if not _runs(python):
        shutil.rmtree(venv, ignore_errors=True)
        _make_venv(venv, uv)
    install = _installer(python, uv)
    if not _has_torch(python):
        _install_torch(install)
    quiet = [] if uv else ["--quiet"]  # pip would list every package that is there already
    subprocess.run([*install, *quiet, "--editable", f"{ROOT}[dev]"], check=True)


def _make_venv(venv: Path, uv: str | None) -> None:
    if uv:
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(venv)], check=True)
    elif _module_works("ensurepip"):
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    elif _module_works("pip"):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    else:
        raise SystemExit(
            "error: this Python has neither ensurepip nor pip. Install uv, or on Debian and Ubuntu: "
            "apt install python3-venv"
        )


def _installer(python: Path, uv: str | None) -> list[str]:
    if uv:  # compiled as pip does it: in pods nobody can write there, and each process would compile for itself
        return [uv, "pip", "install", "--compile-bytecode", "--python", str(python)]
    own_pip = subprocess.run([str(python), "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0
    if own_pip:
        return [str(python), "-m", "pip", "install", "--disable-pip-version-check"]
    return [sys.executable, "-m", "pip", "--python", str(python), "install", "--disable-pip-version-check"]


def _install_torch(install: list[str]) -> None:
    """Say what comes and how big it is, then install it."""
    requirement = _torch_requirement()
    if platform.system() != "Linux":
        _say(f"downloading: {requirement} (about 100 MB) and about 100 MB of other packages")
        subprocess.run([*install, requirement], check=True)
    elif not _has_gpu() and _answers(TORCH_CPU_INDEX + "/torch/"):
        _say(f"downloading: {requirement}, CPU build (about 200 MB) and about 100 MB of other packages")
        _need_disk(2)
        subprocess.run([*install, "--index-url", TORCH_CPU_INDEX, requirement], check=True)
    else:
        why = "an NVIDIA GPU is present" if _has_gpu() else "PyTorch's CPU index does not answer"
        _say(f"downloading: {requirement}, default build because {why}: about 3 GB, 5.3 GB on disk;")
        _say("             and about 100 MB of other packages. This may take several minutes.")
        _need_disk(9)
        subprocess.run([*install, requirement], check=True)


def _torch_requirement() -> str:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return str(next(requirement for requirement in extras["trainer"] if requirement.startswith("torch")))


def _has_gpu() -> bool:
    return shutil.which("nvidia-smi") is not None or Path("/dev/nvidia0").exists()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=PROBE_SECONDS) as reply:
            return bool(reply.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _need_disk(gib: int) -> None:
    free = shutil.disk_usage(ROOT).free
    if free < gib * GIB:
        raise SystemExit(f"error: {ROOT}: {gib} GiB of free disk needed, {free / GIB:.1f} GiB there")


def _runs(python: Path) -> bool:
    """Whether the environment's interpreter starts and is the one this script runs under."""
    if not python.exists():
        return False
    ask = [str(python), "-c", "import sys; print(sys.version)"]
    answer = subprocess.run(ask, capture_output=True, text=True, check=False)
    return answer.returncode == 0 and answer.stdout.strip() == sys.version


def _has_torch(python: Path) -> bool:
    ask = [str(python), "-c", "import importlib.metadata as m; m.version('torch')"]
    return subprocess.run(ask, capture_output=True, check=False).returncode == 0


def _module_works(name: str) -> bool:
    return subprocess.run([sys.executable, "-m", name, "--version"], capture_output=True, check=False).returncode == 0


def _say(text: str) -> None:
    print(text, flush=True)


def _fail(text: str) -> int:
    print(f"error: {text}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

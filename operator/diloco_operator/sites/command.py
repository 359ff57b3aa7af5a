"""From a pod manifest to the command, environment and log of a local process; pure but for reading a log's tail.

Lists what of a manifest means nothing to a local process, so that it can be said once instead of being ignored
silently.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from diloco_operator.sites.site import Manifest, SiteInvalid
from diloco_operator.sites.volumes import localise

INHERITED = (
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "DILOCO_DEVICE",
)
"""Variables of the operator's own environment a local process gets: what a container image would have brought."""

LOCAL_DEFAULTS = {"DILOCO_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
"""One core for a Learner: several share the machine. A manifest's own value wins."""

USED_POD_FIELDS = frozenset({"containers", "volumes", "restartPolicy", "terminationGracePeriodSeconds"})
USED_CONTAINER_FIELDS = frozenset({"name", "command", "args", "env", "volumeMounts"})

LOG_TAIL_BYTES = 2048
"""As much of the log as Kubernetes keeps with terminationMessagePolicy FallbackToLogsOnError."""


def ignored_fields(pod: Manifest) -> list[str]:
    """Fields of a pod manifest that a local process does not honour."""
    spec = pod["spec"]
    of_pod = [f"spec.{field}" for field in spec if field not in USED_POD_FIELDS]
    of_container = [f"spec.containers[0].{f}" for f in spec["containers"][0] if f not in USED_CONTAINER_FIELDS]
    return sorted(of_pod + of_container)


def check_pod(pod: Manifest) -> None:
    """Raise SiteInvalid when the pod cannot run as one local process."""
    containers = pod["spec"].get("containers", [])
    name = pod["metadata"]["name"]
    if len(containers) != 1 or pod["spec"].get("initContainers"):
        raise SiteInvalid(f"pod {name}: a local process stands for exactly one container")
    if not containers[0].get("command"):
        raise SiteInvalid(f"pod {name}: spec.containers[0].command is missing: there is no image to take it from")
    for variable in containers[0].get("env", []):
        if "valueFrom" in variable:
            raise SiteInvalid(f"pod {name}: env {variable['name']}: valueFrom is not known to local processes")


def command_line(pod: Manifest, mounts: Mapping[str, Path]) -> list[str]:
    """Command and arguments with mount paths replaced; `python` is this interpreter."""
    container = pod["spec"]["containers"][0]
    words = [localise(word, mounts) for word in [*container["command"], *container.get("args", [])]]
    return [sys.executable if words[0] == "python" else words[0], *words[1:]]


def environment(pod: Manifest, mounts: Mapping[str, Path], own: Mapping[str, str]) -> dict[str, str]:
    """The process's whole environment: inherited, local defaults, then the manifest's."""
    inherited = {name: own[name] for name in INHERITED if name in own}
    declared = {v["name"]: localise(v.get("value", ""), mounts) for v in pod["spec"]["containers"][0].get("env", [])}
    return LOCAL_DEFAULTS | inherited | declared


def log_tail(log: Path, start: int, secrets: frozenset[str]) -> str:
    """The end of what a container wrote from byte `start` on, without the given secret texts."""
    with log.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(start, size - LOG_TAIL_BYTES))
        text = file.read().decode(errors="replace").strip()
    for secret in secrets:
        text = text.replace(secret, "[redacted]")
    return text

"""Releases of the charts on the test clusters, by the real helm, and the command `diloco` as its user calls it."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from chart.rendering import OPERATOR, ROOT, SITE
from clusters.layout import SiteLayout

Values = dict[str, Any]
_OUTSIDE = os.open("/proc/self/ns/net", os.O_RDONLY)
"""The network this was imported in: tests run in a namespace from which no package registry is reached."""


def outside(*command: str | Path) -> str:
    """Output of a program that needs the machine's own network."""
    enter = ["nsenter", f"--net=/proc/{os.getpid()}/fd/{_OUTSIDE}", "--"]
    answer = subprocess.run([*enter, *command], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout.strip()


def install(site: SiteLayout, chart: Path, release: str, namespace: str, values: Values) -> str:
    """Install, or upgrade; returns the notes."""
    arguments = ["upgrade", "--install", release, str(chart), "--namespace", namespace, "--values", "-"]
    return _helm(site, *arguments, text=json.dumps(values)).partition("NOTES:\n")[2]


def rollback(site: SiteLayout, release: str, namespace: str, revision: int) -> None:
    """As it was then, the chart included."""
    _helm(site, "rollback", release, str(revision), "--namespace", namespace)


def uninstall(site: SiteLayout, release: str, namespace: str) -> None:
    _helm(site, "uninstall", release, "--namespace", namespace, "--ignore-not-found", "--wait", "--timeout=60s")


def site_kubeconfig(site: SiteLayout, namespace: str, folder: Path) -> Path:
    """Install the chart diloco-site and do what its notes say, with a shell and kubectl."""
    notes = install(site, SITE, "diloco", namespace, {})
    script = notes.partition("operator:\n")[2].partition("2. With")[0]
    environment = os.environ | {
        "KUBECONFIG": str(site.kubeconfig),
        "PATH": f"{site.clusters.bin}:{os.environ['PATH']}",
    }
    subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=folder, env=environment, check=True)
    return folder / "site.kubeconfig"


def install_operator(hub: SiteLayout, namespace: str, trainer_image: str, *job_namespaces: str) -> None:
    """Of the image localhost/diloco-operator:dev, for these namespaces only; where none is named, for all."""
    repository, _, tag = trainer_image.rpartition(":")
    values: Values = {
        "image": {"repository": "localhost/diloco-operator", "tag": "dev"},
        "trainerImage": {"repository": repository, "tag": tag},
        "scope": "namespaces" if job_namespaces else "cluster",
        "namespaces": list(job_namespaces),
        "crds": {"install": False},  # the clusters may be shared, and the definition with them
    }
    install(hub, OPERATOR, "diloco", namespace, values)


def diloco(hub: SiteLayout, *arguments: str, timeout_seconds: float = 60) -> subprocess.CompletedProcess[str]:
    """The program with the hub's administrator's kubeconfig."""
    program = [sys.executable, "-c", "from diloco_cli.entry import main; main()"]
    environment = os.environ | {"KUBECONFIG": str(hub.kubeconfig), "PYTHONPATH": ":".join(sys.path)}
    return subprocess.run(
        [*program, *arguments], capture_output=True, text=True, env=environment, timeout=timeout_seconds, check=False
    )


@functools.cache
def helm_binary() -> str:
    """Path of the real helm."""
    return outside(sys.executable, ROOT / "tests/chart/helm_binary.py")


def _helm(site: SiteLayout, *arguments: str, text: str = "") -> str:
    command = [helm_binary(), "--kubeconfig", str(site.kubeconfig), *arguments]
    answer = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout

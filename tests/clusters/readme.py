"""The README's section about clusters as its reader uses it: the very commands, typed into a shell, cluster by cluster.

What a reader has pushed to a registry is on the nodes already, under the names the commands give it.
"""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import yaml

from clusters import charts, node
from clusters.layout import Layout, SiteLayout
from clusters.processes import Processes
from clusters.pythons import REPOSITORY, PythonEnvironment

REGISTRY, TAG = "registry.example.com/team", "v1"
_SECTION = re.compile(r"^## On a cluster\n(.*?)^## ", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Commands:
    """The blocks of the section, in its order. One more or less is noticed."""

    images: str
    hub: str
    site: str
    secret: str
    job: str
    uninstall: str


def commands(readme: Path = REPOSITORY / "README.md") -> Commands:
    section = _SECTION.search(readme.read_text())
    assert section is not None, "the README has a section about clusters"
    return Commands(*_BLOCK.findall(section.group(1)))


def lines(block: str) -> list[str]:
    """The commands of a block, each in one line."""
    return block.replace("\\\n", "").splitlines()


@dataclass(frozen=True)
class Reader:
    """Somebody with the charts and examples before them, and kubectl pointing to one cluster at a time."""

    folder: Path

    @classmethod
    def with_examples(cls, folder: Path, python: PythonEnvironment, budget_tokens: int) -> "Reader":
        """The examples are shortened, and their pods find the interpreter where the tests have put it."""
        (folder / "helm").symlink_to(REPOSITORY / "helm")
        examples = folder / "crds/examples"
        examples.mkdir(parents=True)
        job = yaml.safe_load((REPOSITORY / "crds/examples/multi-site.yaml").read_text())
        job["spec"]["budget"] = {"tokens": budget_tokens}
        for part in ("learners", "synchronizer"):
            job["spec"][part]["template"] = python.pod_template
        (examples / "multi-site.yaml").write_text(yaml.safe_dump(job))
        return cls(folder)

    def types(self, site: SiteLayout, script: str, timeout_seconds: float = 240) -> str:
        """What is printed; the script stops at the first command that fails."""
        answer = self.tries(site, script, timeout_seconds)
        assert answer.returncode == 0, f"{script}\n{answer.stdout}{answer.stderr}"
        return answer.stdout

    def tries(self, site: SiteLayout, script: str, timeout_seconds: float = 240) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script], cwd=self.folder, env=self._environment(site),
            capture_output=True, text=True, timeout=timeout_seconds, check=False,
        )  # fmt: skip

    def watches(self, site: SiteLayout, command: str, until: str, timeout_seconds: float) -> str:
        """What a command without end prints until a word appears."""
        script = f'timeout {timeout_seconds} {command} | sed "/{until}/q"'
        return self.types(site, f"set +o pipefail; {script}", timeout_seconds + 30)

    def _environment(self, site: SiteLayout) -> dict[str, str]:
        programs = f"{Path(charts.helm_binary()).parent}:{site.clusters.bin}"
        return os.environ | {"KUBECONFIG": str(site.kubeconfig), "PATH": f"{programs}:{os.environ['PATH']}"}


def name_images(layout: Layout, python: PythonEnvironment) -> None:
    """As if they had been pushed to the registry that the README names, and pulled from it."""
    for site in layout.sites():
        names = {f"{REGISTRY}/diloco-trainer:{TAG}": python.image}
        if site == layout.hub:
            names[f"{REGISTRY}/diloco-operator:{TAG}"] = "localhost/diloco-operator:dev"
        for one in site.nodes():
            for name, image in names.items():
                tag = ("ctr", "-n", "k8s.io", "images", "tag", "--force", image, name)
                node.run(one, Processes(site.folder), *tag)

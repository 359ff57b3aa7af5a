"""Real Python, with torch, in pods of the test clusters without building an image.

The interpreter and its virtual environment are mounted read-only through `local` PersistentVolumes at the very paths
they have on this machine, since a restricted namespace refuses hostPath; a copy of the repository's packages comes the
same way. The image has only the links that make the machine's /usr a root file system.
"""

import compileall
import hashlib
import shutil
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from clusters import images, node, storage
from clusters.api import Api, Object
from clusters.layout import Layout, NodeLayout, SiteLayout
from clusters.processes import Processes

REPOSITORY = Path(__file__).resolve().parents[2]
_CODE = "/opt/diloco"
"""Where pods see the repository's packages."""
_PACKAGE_FOLDERS = ("crds", "operator", "trainer_image")


@dataclass(frozen=True)
class PythonEnvironment:
    """One interpreter with what is installed for it; by default those that run this."""

    prefix: Path = Path(sys.prefix)
    base_prefix: Path = Path(sys.base_prefix)
    repository: Path = REPOSITORY
    code_claim: str = "python-code"
    """Of the repository's packages; another one for packages of another time in the same namespace."""

    @property
    def folders(self) -> dict[str, Path]:
        """What is shown as it is on the machine, by the name of its claim."""
        chosen = {"python-usr": Path("/usr")}
        for claim, folder in {"python-base": self.base_prefix, "python-venv": self.prefix}.items():
            if not any(folder.is_relative_to(other) for other in chosen.values()):
                chosen[claim] = folder
        return chosen

    @property
    def image(self) -> str:
        return f"registry.test/python:{_short_digest(repr(sorted(self._environment.items())))}"

    @property
    def pod_template(self) -> Object:
        """What a pod template needs besides the image: volumes, and mounts for its first container."""
        return {"spec": {"containers": [{"volumeMounts": self.mounts}], "volumes": self.volumes}}

    @property
    def volumes(self) -> list[Object]:
        return [
            {"name": claim, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}} for claim in self._sources
        ]

    @property
    def mounts(self) -> list[Object]:
        paths = {claim: str(folder) for claim, folder in self.folders.items()} | {self.code_claim: _CODE}
        return [{"name": claim, "mountPath": path, "readOnly": True} for claim, path in paths.items()]

    def load(self, layout: Layout, site: SiteLayout) -> None:
        """Bring the image and the folders onto the nodes of a site; done again, it changes nothing."""
        processes = Processes(site.folder)
        archive = images.archive(layout, self._image())
        for one in site.nodes():
            node.load_image(one, processes, archive)
            for claim, folder in self.folders.items():
                node.mount_read_only(one, processes, folder, self._sources[claim])
            self._copy_code(one)

    def provide(self, site: SiteLayout, namespace: str) -> None:
        """Volumes and claims in one namespace of a site."""
        api = Api(site)
        for claim, path in self._sources.items():
            for manifest in storage.read_only_volume(site, namespace, claim, path):
                api.apply(manifest)

    def remove(self, site: SiteLayout, namespace: str) -> None:
        """Remove the volumes; the claims go with the namespace."""
        for claim in self._sources:
            Api(site).delete("v1", "PersistentVolume", None, f"{namespace}-{claim}")

    @cached_property
    def _sources(self) -> dict[str, str]:
        """Path on the nodes by claim. The code's path changes with the code: what runs keeps what it started with."""
        paths = {
            claim: f"/var/lib/read-only/{claim}-{_short_digest(str(folder))}" for claim, folder in self.folders.items()
        }
        return paths | {self.code_claim: f"/var/lib/read-only/python-code-{self._code_digest()}"}

    @property
    def _environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self.prefix}/bin:/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": ":".join(f"{_CODE}/{folder}" for folder in _PACKAGE_FOLDERS),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
        }

    def _image(self) -> images.Image:
        cache = {"etc/ld.so.cache": Path("/etc/ld.so.cache").read_bytes()}
        return images.Image(
            self.image,
            files=images.accounts() | cache,
            links={name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib64")},
            folders={"tmp": 0o1777, "etc": 0o755, "usr": 0o755},
            environment=self._environment,
            command=["python", "--version"],
        )

    def _code_digest(self) -> str:
        files = sorted(path for folder in _PACKAGE_FOLDERS for path in (self.repository / folder).rglob("*.py"))
        return _short_digest("".join(f"{path}\0{path.read_text()}\0" for path in files))

    def _copy_code(self, one: NodeLayout) -> None:
        target = Path(f"{one.folder}{self._sources[self.code_claim]}")
        if target.exists():
            return
        unfinished = target.with_name(f".{target.name}")
        for folder in _PACKAGE_FOLDERS:
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(self.repository / folder, unfinished / folder, ignore=ignored, dirs_exist_ok=True)
        compileall.compile_dir(unfinished, ddir=_CODE, quiet=1)  # once, not in every pod at its start
        unfinished.rename(target)


def _short_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]

"""What a user sets up before a job over three clusters: the operator by its chart, two sites as their chart says.

The operator runs in its own pod under the chart's rights, and reaches sites with their ServiceAccounts' kubeconfigs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from clusters import charts, workloads
from clusters.api import Api, Object, wait_until
from clusters.layout import Layout, SiteLayout
from clusters.operator_process import GROUP, job_of
from clusters.pythons import REPOSITORY, PythonEnvironment

EXAMPLES = REPOSITORY / "crds/examples"
CRD = REPOSITORY / "crds/dilocojobs.diloco.dev.yaml"
CPU_POOLS = [{"name": "cpu", "device": "cpu"}]


@dataclass(frozen=True)
class Installation:
    """One operator, and the namespace of its jobs: of the same name on the hub and at both sites."""

    layout: Layout
    python: PythonEnvironment
    own_namespace: str
    namespace: str

    @property
    def hub(self) -> Api:
        return Api(self.layout.hub)

    @property
    def sites(self) -> list[SiteLayout]:
        """All three clusters."""
        return [self.layout.hub, self.layout.site("site-1"), self.layout.site("site-2")]

    def set_up(self, folder: Path) -> None:
        self.hub.apply(yaml.safe_load(CRD.read_text()))
        for site in self.sites:
            self.python.provide(site, self.namespace)
        charts.install_operator(self.layout.hub, self.own_namespace, self.python.image, self.namespace)
        for site in self.sites[1:]:
            own_folder = folder / site.name
            own_folder.mkdir()
            file = charts.site_kubeconfig(site, self.namespace, own_folder)
            added = charts.diloco(
                self.layout.hub, "site", "add", site.name, "--kubeconfig", str(file), "-n", self.namespace
            )
            assert added.returncode == 0, added.stderr

    def take_down(self) -> None:
        """Jobs first, as only the operator lets them go. Its log is for whoever looks into a failure."""
        for job in self.hub.all(GROUP, "DiLoCoJob", self.namespace):
            self.hub.delete(GROUP, "DiLoCoJob", self.namespace, job["metadata"]["name"])
        try:
            wait_until("no job left", lambda: not self.hub.all(GROUP, "DiLoCoJob", self.namespace), 120)
        finally:
            for pod in self.operator_pods():
                print(workloads.logs(self.hub, self.own_namespace, pod["metadata"]["name"])[-8000:])
            charts.uninstall(self.layout.hub, "diloco", self.own_namespace)
            for site in self.sites:
                self.python.remove(site, self.namespace)

    def operator_pods(self) -> list[Object]:
        return self.hub.all("v1", "Pod", self.own_namespace, "app.kubernetes.io/component=operator")

    def example(self, name: str, change: Callable[[Object], None]) -> Object:
        """A manifest of crds/examples in the namespace, changed, with pods that have the interpreter of the tests."""
        manifest: Object = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
        manifest["metadata"]["namespace"] = self.namespace
        for part in ("learners", "synchronizer"):
            manifest["spec"].setdefault(part, {})["template"] = self.python.pod_template
        change(manifest)
        return manifest

    def job(self, name: str) -> Object:
        found = job_of(self.hub, self.namespace, name)
        assert found is not None, f"there is no job {name}"
        return found

    def wait_for(self, what: str, name: str, found: Callable[[Object], Any], timeout_seconds: float) -> Any:
        """Wait until something is true of a job; what `found` returned. A job that failed is not waited for."""

        def look() -> Any:
            job = self.job(name)
            assert job.get("status", {}).get("phase") != "Failed", job["status"]["conditions"]
            return found(job)

        try:
            return wait_until(what, look, timeout_seconds, every_seconds=1)
        except TimeoutError as error:
            error.add_note(f"{self.job(name).get('status')}")
            raise

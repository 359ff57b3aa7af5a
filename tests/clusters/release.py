"""A release of the operator's chart on hub and site-1 that runs a tree of the repository, without building an image."""

import os
from typing import Any

from chart.rendering import OPERATOR
from clusters import charts, cli, storage, workloads
from clusters.api import Api, Object, wait_until
from clusters.layout import Layout, SiteLayout
from clusters.operator_process import GROUP, job_of, kubeconfig_secret, pods
from clusters.pythons import REPOSITORY, PythonEnvironment

NAME = "diloco"


class Release:
    """The operator in a namespace of its own, and its jobs in another, of one name on both clusters."""

    def __init__(self, clusters: Layout, what_for: str, *environments: PythonEnvironment) -> None:
        self.name = f"{what_for}-{os.getpid()}"
        self.own = f"{self.name}-own"
        self.clusters, self._environments = clusters, environments
        self.hub, self.site = Api(clusters.hub), Api(clusters.site("site-1"))

    @property
    def sites(self) -> list[SiteLayout]:
        """Both clusters."""
        return [self.clusters.hub, self.clusters.site("site-1")]

    def prepare(self) -> None:
        """All but the release: namespaces, what pods run, the site's kubeconfig."""
        storage.provide(self.clusters.hub, self.clusters.hub.node(0), cli.FREE_VOLUMES)
        for site in self.sites:
            Api(site).apply(workloads.namespace(self.name))
        self.hub.apply(workloads.namespace(self.own))
        for environment in self._environments:
            environment.provide(self.clusters.hub, self.own)
            for site in self.sites:
                environment.load(self.clusters, site)
                environment.provide(site, self.name)
        self.hub.create(kubeconfig_secret(self.sites[1], self.name, "site-1"))

    def install(self, python: PythonEnvironment, **values: Any) -> None:
        """The chart of the tree `python` runs, and that tree's operator; or an upgrade to it."""
        repository, _, tag = python.image.rpartition(":")
        image = {"repository": repository, "tag": tag}
        own = {
            "image": image, "trainerImage": image,
            "extraVolumes": python.volumes, "extraVolumeMounts": python.mounts,
        }  # fmt: skip
        chart = python.repository / OPERATOR.relative_to(REPOSITORY)
        charts.install(self.clusters.hub, chart, NAME, self.own, own | values)

    def take_down(self) -> None:
        """Jobs first, as only the operator lets them go. Its log is for whoever looks into a failure."""
        for job in self.hub.all(GROUP, "DiLoCoJob", self.name):
            self.hub.delete(GROUP, "DiLoCoJob", self.name, job["metadata"]["name"])
        try:
            wait_until("no job left", lambda: not self.hub.all(GROUP, "DiLoCoJob", self.name), 120)
        finally:
            print(self.log()[-8000:])
            charts.uninstall(self.clusters.hub, NAME, self.own)
            self.hub.delete("v1", "Namespace", None, self.own)
            for site in self.sites:
                Api(site).delete("v1", "Namespace", None, self.name)
            for environment in self._environments:
                environment.remove(self.clusters.hub, self.own)
                for site in self.sites:
                    environment.remove(site, self.name)

    def log(self) -> str:
        return "".join(workloads.logs(self.hub, self.own, pod["metadata"]["name"]) for pod in self.operator_pods())

    def create_job(self, name: str, python: PythonEnvironment, sites: list[str]) -> str:
        """One Learner at each site; all its pods run the packages of `python`. The job's uid."""
        pools = {"nodePools": [{"name": "cpu", "device": "cpu"}], "learners": {"max": 1}}
        listed = {"hub": {"name": "hub"}, "site-1": {"name": "site-1", "kubeconfigSecretRef": {"name": "site-1"}}}
        template = python.pod_template
        manifest = {
            "apiVersion": GROUP,
            "kind": "DiLoCoJob",
            "metadata": {"name": name, "namespace": self.name},
            "spec": {
                "train": {
                    "data": {"uri": "{stdlib}/[a-c]*.py", "sequenceLength": 32},
                    "model": {"layers": 1, "hidden": 32, "heads": 2},
                    "batch": {"sequences": 2},
                },
                "algorithm": {"preset": "DecoupledDiLoCo", "fragments": 2, "syncEvery": 50},
                "budget": {"outerRounds": 1_000_000},
                "learners": {"replicas": len(sites), "template": template},
                "synchronizer": {
                    "template": template, "storage": {"size": "1Gi"}, "exposure": {"type": "NodePort"},
                },
                "sites": [listed[site] | pools for site in sites],
            },
        }  # fmt: skip
        return str(self.hub.create(manifest)["metadata"]["uid"])

    def job(self, name: str) -> Object | None:
        return job_of(self.hub, self.name, name)

    def status(self, name: str) -> Object:
        found: Object = (self.job(name) or {}).get("status", {})
        return found

    def at_work(self, name: str, incarnations: list[int]) -> Object:
        """The status, once the job's Learners are heard, of these incarnations, and steps are merged."""

        def found() -> Object | None:
            status = self.status(name)
            rows = [row["incarnation"] for row in status.get("learnerStatuses", []) if row["state"] == "Running"]
            merged = status.get("progress", {}).get("outerSteps", 0) > 0
            return status if rows == incarnations and merged else None

        return wait_until(f"job {name} at work as {incarnations}", found, 400, every_seconds=1)

    def learners(self, uid: str) -> dict[int, tuple[Object, Api]]:
        """(pod, API of its cluster) by index."""
        return {
            int(pod["metadata"]["labels"]["diloco.dev/learner-index"]): (pod, api)
            for api in (self.hub, self.site)
            for name, pod in pods(api, self.name, uid).items()
            if "synchronizer" not in name
        }

    def operator_pods(self) -> list[Object]:
        return self.hub.all("v1", "Pod", self.own, "app.kubernetes.io/component=operator")

"""A job under the operator as its chart runs it, over two clusters, seen through `diloco status` and `diloco logs`."""

from pathlib import Path

import pytest
import yaml

from clusters import charts, cli, storage, workloads
from clusters.api import Api, path_of, wait_until

ROOT = Path(__file__).resolve().parents[2]


def job(namespace, template):
    cpu = [{"name": "cpu", "device": "cpu"}]
    return {
        "apiVersion": "diloco.dev/v1alpha1",
        "kind": "DiLoCoJob",
        "metadata": {"name": "demo", "namespace": namespace},
        "spec": {
            "train": {"data": {"uri": "{stdlib}/*.py"}},
            "budget": {"tokens": 150_000},
            "learners": {"replicas": 2, "template": template},
            "synchronizer": {"template": template, "storage": {"size": "1Gi"}, "exposure": {"type": "NodePort"}},
            "sites": [
                {"name": "hub", "learners": {"max": 1}, "nodePools": cpu},
                {"name": "far", "kubeconfigSecretRef": {"name": "far"}, "learners": {"max": 1}, "nodePools": cpu},
            ],
        },
    }


@pytest.mark.timeout(900)
def test_a_job_over_two_clusters_under_the_charts_rights(
    hub, site_1, operator_image, new_namespace, python, tmp_path: Path
):
    own, namespace = new_namespace(hub), new_namespace(hub, site_1)
    storage.provide(hub, hub.node(0), cli.FREE_VOLUMES)
    for site in (hub, site_1):
        python.provide(site, namespace)
    Api(hub).apply(yaml.safe_load((ROOT / "crds/dilocojobs.diloco.dev.yaml").read_text()))
    try:
        charts.install_operator(hub, own, python.image, namespace)
        kubeconfig = charts.site_kubeconfig(site_1, namespace, tmp_path)
        charts.diloco(hub, "site", "add", "far", "--kubeconfig", str(kubeconfig), "-n", namespace)
        Api(hub).create(job(namespace, python.pod_template))
        _watch_it_train(hub, namespace)
        finished = wait_until("Complete", lambda: _complete(hub, namespace), 400)
        assert "Complete=True TokenBudgetReached" in finished
        begun = Api(hub).get("diloco.dev/v1alpha1", "DiLoCoJob", namespace, "demo")
        assert begun is not None
        assert all(row["restarts"] == 0 for row in begun["status"]["learnerStatuses"])
        _delete_it(hub, site_1, namespace)
    finally:
        charts.uninstall(hub, "diloco", own)
        for site in (hub, site_1):
            python.remove(site, namespace)


def _watch_it_train(hub, namespace):
    """Both Learners run, each in its cluster, and all three logs are to be had."""

    def both_run():
        told = charts.diloco(hub, "status", "demo", "-n", namespace)
        rows = [line.split() for line in told.stdout.splitlines()]
        return {row[2] for row in rows if len(row) > 4 and row[1] == "Running"} == {"hub", "far"}

    wait_until("both Learners run", both_run, 400, every_seconds=3)
    listed = charts.diloco(hub, "status", "-n", namespace).stdout.splitlines()
    assert [line.split()[:2] for line in listed] == [["job", "phase"], ["demo", "Running"]]
    for who in (["--learner", "0"], ["--learner", "1"], ["--synchronizer"]):
        log = charts.diloco(hub, "logs", "demo", "-n", namespace, *who)
        assert (log.returncode, log.stderr) == (0, "")
        assert "diloco_trainer." in log.stdout
    missing = charts.diloco(hub, "logs", "demo", "-n", namespace, "--learner", "7")
    assert (missing.returncode, missing.stderr) == (2, "error: job demo has no Learner 7; it has 0, 1\n")


def _complete(hub, namespace):
    told = charts.diloco(hub, "status", "demo", "-n", namespace).stdout
    assert "Failed=True" not in told
    return told if "Complete=True" in told else None


def _delete_it(hub, site_1, namespace):
    Api(hub).request("DELETE", path_of("diloco.dev/v1alpha1", "DiLoCoJob", namespace, "demo"))
    workloads.wait_until_gone(Api(hub), "diloco.dev/v1alpha1", "DiLoCoJob", namespace, "demo")
    for kind in ("Pod", "Secret", "ConfigMap", "NetworkPolicy"):
        version = "networking.k8s.io/v1" if kind == "NetworkPolicy" else "v1"
        assert Api(site_1).all(version, kind, namespace, "diloco.dev/job-uid") == []

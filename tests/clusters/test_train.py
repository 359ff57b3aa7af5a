"""The examples of crds/examples on real clusters, to their end: real pods, real torch, the operator by its chart."""

import pytest
import yaml
from safetensors.torch import load_file

from clusters import workloads
from clusters.api import Object
from clusters.installation import CPU_POOLS, Installation
from clusters.operator_process import condition, site_of
from diloco_api.accept import resolve_job
from diloco_api.v1alpha1 import DiLoCoJob

pytestmark = pytest.mark.timeout(900)


def outer_file(installation: Installation, name: str, uid: str):
    """The final outer parameters, as the disk behind the Synchronizer's claim has them."""
    claim = installation.hub.get(
        "v1", "PersistentVolumeClaim", installation.namespace, f"{name}-{uid[:8]}-synchronizer"
    )
    return installation.layout.hub.volumes / claim["spec"]["volumeName"] / "outer.safetensors"


def trained(installation: Installation, name: str, manifest: Object, tmp_path) -> Object:
    """Applied by kubectl as a user does it; the job once it is Complete."""
    file = tmp_path / f"{name}.yaml"
    file.write_text(yaml.safe_dump(manifest))
    workloads.kubectl(installation.layout.hub, "apply", "-f", str(file))
    return installation.wait_for(
        "Complete", name, lambda job: job if condition(job, "Complete")[0] == "True" else None, 600
    )


def test_multi_site_trains_four_learners_over_two_sites_to_complete(installation, tmp_path):
    def shorter(job):
        job["spec"]["budget"] = {"tokens": 80_000}

    job = trained(installation, "multi-site", installation.example("multi-site", shorter), tmp_path)
    status, uid = job["status"], job["metadata"]["uid"]
    assert condition(job, "Complete")[1] == "TokenBudgetReached"
    assert [(row["incarnation"], row["state"]) for row in status["learnerStatuses"]] == [(1, "Succeeded")] * 4
    assert sorted(row["site"] for row in status["learnerStatuses"]) == ["site-1", "site-1", "site-2", "site-2"]
    assert status["progress"]["percent"] == 100
    for name in ("site-1", "site-2"):
        of_site = site_of(job, name)
        for kind in ("Reachable", "Eligible", "SynchronizerReachable"):
            assert condition(of_site, kind)[0] == "True", of_site
    listed = workloads.kubectl(installation.layout.hub, "-n", installation.namespace, "get", "dlj").splitlines()
    print("\n".join(listed))
    row = dict(zip(listed[0].split(), listed[1].split(), strict=False))
    assert (row["NAME"], row["STATE"]) == ("multi-site", "Complete")
    tensors = load_file(outer_file(installation, "multi-site", uid))
    assert all(tensor.isfinite().all() for tensor in tensors.values())
    shape = resolve_job(DiLoCoJob.model_validate(job)).shape
    assert sum(tensor.numel() for tensor in tensors.values()) == shape.num_parameters


def test_minimal_reaches_complete_on_the_hub_alone(installation, tmp_path):
    def without_gpus(job):
        job["spec"]["sites"] = [{"name": "hub", "nodePools": CPU_POOLS}]
        job["spec"]["budget"] = {"tokens": 30_000}

    job = trained(installation, "minimal", installation.example("minimal", without_gpus), tmp_path)
    assert [(row["incarnation"], row["state"]) for row in job["status"]["learnerStatuses"]] == [(1, "Succeeded")] * 2
    assert outer_file(installation, "minimal", job["metadata"]["uid"]).exists()

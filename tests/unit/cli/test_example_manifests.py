"""What the operator would create for each example is valid for Kubernetes."""

from pathlib import Path

import kubernetes_validate
import pytest

from diloco_api.manifest import load_job
from diloco_operator.planning.types import Apply, CreatePod
from fakes.world import World

EXAMPLES = sorted((Path(__file__).resolve().parents[3] / "crds/examples").glob("*.yaml"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_object_planned_for_an_example_is_valid_for_kubernetes(example: Path) -> None:
    job = load_job(example.read_text(), example.name)
    metadata = job.metadata.model_copy(update={"uid": "0a1b2c3d-0000-4000-8000-000000000000"})
    world = World(job=job.model_copy(update={"metadata": metadata}))
    actions = [*world.step().actions]
    world.serve()
    actions += world.step().actions
    manifests = [action.manifest for action in actions if isinstance(action, (Apply, CreatePod))]
    kinds = [manifest["kind"] for manifest in manifests]
    assert kinds.count("Pod") == job.spec.learners.replicas
    assert kinds.count("Deployment") == 1
    for manifest in manifests:
        kubernetes_validate.validate(manifest, "1.34", strict=True)

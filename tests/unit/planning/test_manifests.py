"""The manifests: real, restricted-profile-clean Kubernetes objects that carry secrets nowhere but in Secrets."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest

from builders import job
from diloco_api import names
from diloco_api.run_config import RunConfig
from diloco_api.tokens import Identity, read_token
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_operator.planning.types import Apply, CreatePod
from fakes.world import KEY, POLICY, World, running_world

Manifest = dict[str, Any]


def all_manifests(of: DiLoCoJob | None = None) -> list[Manifest]:
    """Everything a job starts with."""
    world = World(job=of or job())
    found = [*world.step().actions]
    world.serve()
    found += world.step().actions
    return [action.manifest for action in found if isinstance(action, (Apply, CreatePod))]


def by_kind(kind: str, part: str = "") -> Manifest:
    return next(m for m in all_manifests() if m["kind"] == kind and part in m["metadata"]["name"])


def pod_specs() -> Iterator[Manifest]:
    for manifest in all_manifests():
        if manifest["kind"] == "Pod":
            yield manifest["spec"]
        elif manifest["kind"] == "Deployment":
            yield manifest["spec"]["template"]["spec"]


def test_a_job_of_three_learners_is_made_of_these_objects() -> None:
    found = sorted((m["kind"], m["metadata"]["name"].removeprefix("toy-0a1b2c3d-")) for m in all_manifests())
    assert found == [
        ("ConfigMap", "address"),
        ("ConfigMap", "config"),
        ("Deployment", "synchronizer"),
        ("PersistentVolumeClaim", "synchronizer"),
        ("Pod", "0-1"),
        ("Pod", "1-1"),
        ("Pod", "2-1"),
        ("Secret", "0-1"),
        ("Secret", "1-1"),
        ("Secret", "2-1"),
        ("Secret", "synchronizer"),
    ]


@pytest.mark.parametrize("manifest", all_manifests(), ids=lambda m: f"{m['kind']}-{m['metadata']['name'][-6:]}")
def test_every_manifest_is_valid_for_kubernetes(manifest: Manifest) -> None:
    kubernetes_validate.validate(manifest, "1.34", strict=True)


def test_every_pod_is_clean_under_the_restricted_profile_and_has_a_read_only_root() -> None:
    specs = list(pod_specs())
    assert len(specs) == 4
    for spec in specs:
        assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        assert spec["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & spec.keys()
        assert all("hostPath" not in volume for volume in spec["volumes"])
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"
        assert container["image"] == POLICY.image
        writable = {m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")}
        environment = {v["name"]: v["value"] for v in container["env"]}
        assert {environment["TMPDIR"], "/dev/shm"} <= writable


def test_every_folder_a_process_is_told_of_is_mounted() -> None:
    for spec in pod_specs():
        (container,) = spec["containers"]
        mounted = {m["mountPath"] for m in container["volumeMounts"]}
        told = {v["value"] for v in container["env"] if v["name"].endswith("_DIR")}
        assert told <= mounted
        assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in spec["volumes"]}


def test_a_learner_gets_the_token_of_its_own_incarnation_and_nothing_else_does() -> None:
    for manifest in all_manifests():
        text = json.dumps(manifest)
        assert KEY.decode() not in text
        if manifest["kind"] != "Secret":
            assert "v1." not in text
        elif "token" in manifest.get("stringData", {}):
            labels = manifest["metadata"]["labels"]
            identity = Identity(labels[names.LABEL_JOB_UID], int(labels[names.LABEL_LEARNER_INDEX]), 1)
            assert read_token(KEY, manifest["stringData"]["token"]) == identity
    assert base64.b64decode(by_kind("Secret", "synchronizer")["data"]["key"]) == KEY


def test_no_plan_shows_a_secret_when_it_is_printed() -> None:
    world = World()
    world.step()
    world.serve()
    shown = repr(world.plan()) + repr(world.observe())
    assert KEY.decode() not in shown
    assert base64.b64encode(KEY).decode() not in shown
    assert "v1.ey" not in shown


def test_the_run_config_is_what_was_accepted_and_does_not_follow_a_later_scaling() -> None:
    world = running_world()
    learners = world.job.spec.learners.model_copy(update={"replicas": 5})
    world.job = world.job.model_copy(update={"spec": world.job.spec.model_copy(update={"learners": learners})})
    assert [a.key for a in world.plan().actions if isinstance(a, Apply) and a.key[0] == "ConfigMap"] == []
    text = by_kind("ConfigMap", "config")["data"]["run.json"]
    config = RunConfig.model_validate_json(text)
    assert (config.replicas, config.job_uid, config.synchronizer_port) == (3, world.job.metadata.uid, 29400)


def test_names_of_the_longest_job_fit_and_labels_are_legal() -> None:
    longest = job()
    longest = longest.model_copy(update={"metadata": longest.metadata.model_copy(update={"name": "a" * 63})})
    for manifest in all_manifests(longest):
        assert len(manifest["metadata"]["name"]) <= 63
        assert all(len(value) <= 63 for value in manifest["metadata"]["labels"].values())


def test_the_synchronizer_is_never_there_twice_and_selects_its_own_pods() -> None:
    spec = by_kind("Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    assert by_kind("Pod")["spec"]["restartPolicy"] == "Never"


def test_the_hash_of_an_object_changes_with_its_content_alone() -> None:
    def hashes(of: DiLoCoJob) -> dict[str, str]:
        return {
            f"{m['kind']}/{m['metadata']['name']}": m["metadata"]["annotations"][names.ANNOTATION_SPEC_HASH]
            for m in all_manifests(of)
        }

    first, again, other = hashes(job()), hashes(job()), hashes(job({"train.seed": 1}))
    assert first == again
    assert [key for key in first if first[key] != other[key]] == ["ConfigMap/toy-0a1b2c3d-config"]

"""The CRD is current, structural, small, and keeps what may not change from changing."""

import copy
import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from builders import manifest
from diloco_api import crd, rules
from diloco_api.accept import resolve_job
from diloco_api.progress import LearnerState
from diloco_api.states import GoodputState
from diloco_api.status import MAX_LEARNERS, GoodputStatus, JobStatus, LearnerStatus, SiteStatus
from diloco_api.v1alpha1 import DiLoCoJob
from fakes.admission import admit, check, with_defaults

CRD = crd.build_crd()
SCHEMA = crd.build_schema()
NODES = dict(crd.walk(SCHEMA))


def test_the_file_is_what_the_models_say() -> None:
    assert crd.CRD_PATH.read_text(encoding="utf-8") == crd.to_yaml(CRD), "run make manifests"


def test_the_check_writes_nothing_and_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "crd.yaml"

    assert crd.main(["--check"], path) == 1
    assert not path.exists()
    assert capsys.readouterr().err == "error: crd.yaml is not what the models say; run `make manifests`\n"
    assert crd.main([], path) == 0
    assert path.read_text(encoding="utf-8") == crd.to_yaml(CRD)
    assert crd.main(["--check"], path) == 0


def test_the_file_is_a_custom_resource_definition() -> None:
    loaded = yaml.safe_load(crd.CRD_PATH.read_text(encoding="utf-8"))
    kubernetes_validate.validate(loaded, "1.37", strict=True)
    assert loaded == CRD


def test_it_is_small_enough_for_client_side_apply() -> None:
    assert len(json.dumps(CRD, separators=(",", ":"))) < crd.MAX_CRD_BYTES


def test_it_writes_nothing_by_reference() -> None:
    text = crd.CRD_PATH.read_text(encoding="utf-8")
    assert "&id" not in text
    assert "$ref" not in text


@pytest.mark.parametrize("path", [path for path in NODES if path])
def test_every_field_is_typed_described_and_bounded(path: str) -> None:
    node = NODES[path]
    assert node.get("type") or node["x-kubernetes-int-or-string"]
    assert not node.keys() & {"$ref", "$defs", "title", "anyOf", "oneOf", "const", "not"}
    assert node.get("additionalProperties") is not False
    assert node.get("default", 0) is not None
    if path.startswith(".spec.") and node.get("type") == "integer":
        assert node["maximum"] < 2**63
    if node.get("type") == "array":
        assert node["maxItems"] <= 4 * MAX_LEARNERS
        kind = node["x-kubernetes-list-type"]
        assert kind in ("map", "set", "atomic")
        assert (kind == "map") == ("x-kubernetes-list-map-keys" in node)
        for key in node.get("x-kubernetes-list-map-keys", []):
            assert key in node["items"]["required"]


def test_every_default_satisfies_its_own_schema_as_it_stands() -> None:
    for path, node in NODES.items():
        if "default" in node:
            wrapped = {"type": "object", "properties": {"x": node}}
            assert check(wrapped, {"x": node["default"]}) == [], path
            assert with_defaults(wrapped, {}) == {"x": node["default"]}, path


def test_the_defaults_of_schema_and_models_are_the_same() -> None:
    stored = with_defaults(SCHEMA, manifest())

    assert DiLoCoJob.model_validate(stored) == DiLoCoJob.model_validate(manifest())


def test_what_every_printer_column_and_the_scale_subresource_read_is_in_the_schema() -> None:
    version = CRD["spec"]["versions"][0]
    paths = [column["jsonPath"] for column in version["additionalPrinterColumns"]]
    paths += version["subresources"]["scale"].values()

    for path in paths:
        assert path in NODES or path == ".metadata.creationTimestamp"
    names = [column["name"] for column in version["additionalPrinterColumns"]]
    assert names == ["State", "Learners", "Sites", "Outer rounds", "Progress", "Goodput", "Age"]


CHANGES: list[tuple[str, object, str]] = [
    ("algorithm.preset", "DiLoCo", "algorithm"),
    ("algorithm.fragments", 4, "algorithm"),
    ("algorithm.outerOptimizer.learningRate", 0.1, "algorithm"),
    ("train.model.layers", 5, "train"),
    ("train.data.uri", "other.txt", "train"),
    ("train.optimizer.learningRate", 0.1, "train"),
    ("budget.tokens", 5, "budget"),
    ("synchronizer.port", 4000, "synchronizer.port"),
    ("synchronizer.storage.size", "1Gi", "synchronizer.storage"),
    ("synchronizer.storage.storageClassName", "fast", "synchronizer.storage"),
]


@pytest.mark.parametrize(("path", "value", "section"), CHANGES, ids=lambda value: str(value))
def test_what_may_not_change_can_be_neither_set_nor_unset_nor_changed(path: str, value: object, section: str) -> None:
    refused = [f"spec.{section}: {rules.IMMUTABLE}"]

    assert admit(SCHEMA, manifest({path: value}), manifest()) == refused
    assert admit(SCHEMA, manifest(), manifest({path: value})) == refused
    assert admit(SCHEMA, manifest({path: value}), manifest({path: value})) == []


def test_a_site_keeps_its_namespace_wherever_it_stands_in_the_list() -> None:
    def sites(*namespaces: tuple[str, str | None]) -> dict[str, Any]:
        listed = [
            {"name": name, "kubeconfigSecretRef": {"name": name}, **({"namespace": found} if found else {})}
            for name, found in namespaces
        ]
        return manifest({"sites": listed, "synchronizer.exposure": {"type": "NodePort"}})

    old = sites(("a", "x"), ("b", None))
    assert admit(SCHEMA, sites(("b", None), ("a", "x"), ("c", "x")), old) == []
    assert admit(SCHEMA, sites(("b", None)), old) == []
    assert admit(SCHEMA, sites(("b", None), ("a", "y")), old) == [
        f"spec.sites.1.namespace: {rules.SITE_NAMESPACE_FIXED}"
    ]
    assert admit(SCHEMA, sites(("a", "x"), ("b", "z")), old) == [
        f"spec.sites.1.namespace: {rules.SITE_NAMESPACE_FIXED}"
    ]
    assert admit(SCHEMA, sites(("a", None), ("b", None)), old) == [
        f"spec.sites.0.namespace: {rules.SITE_NAMESPACE_FIXED}"
    ]


def test_writing_a_default_out_is_no_change() -> None:
    assert admit(SCHEMA, manifest({"train.model.layers": 4, "budget": {}}), manifest()) == []


@pytest.mark.parametrize("path", ["learners.replicas", "learners.max", "failurePolicy.maxRestarts"])
def test_what_may_change_can_be_changed(path: str) -> None:
    assert admit(SCHEMA, manifest({path: 7}), manifest()) == []


def test_sites_and_the_way_to_the_synchronizer_may_change() -> None:
    more = {
        "sites": [{"name": "a"}, {"name": "b", "kubeconfigSecretRef": {"name": "b"}}],
        "synchronizer.exposure.type": "NodePort",
        "synchronizer.template": {"spec": {"nodeSelector": {"a": "b"}}},
    }
    assert admit(SCHEMA, manifest(more), manifest()) == []
    assert admit(SCHEMA, manifest(), manifest(more)) == []


def test_switching_clipping_off_is_admitted() -> None:
    assert admit(SCHEMA, manifest({"train.clipNorm": 1.0})) == []
    document = manifest()
    document["spec"]["train"]["clipNorm"] = None
    assert admit(SCHEMA, document) == []
    assert DiLoCoJob.model_validate(with_defaults(SCHEMA, document)).spec.train.clip_norm is None


def test_an_unknown_or_missing_field_is_refused() -> None:
    assert admit(SCHEMA, manifest({"train.data": None})) == ["spec.train: 'data' is a required property"]
    assert admit(SCHEMA, manifest({"algorithm.syncEvry": 3}))


def site_row(time: str) -> dict[str, Any]:
    return {
        "name": "local",
        "secretName": "local-kubeconfig",
        "namespace": "training",
        "conditions": [{"type": "Reachable", "status": "True", "reason": "Connected", "lastTransitionTime": time}],
        "lastContactTime": time,
        "clusterUID": "6b1c",
        "desired": 3,
        "ready": 2,
        "failed": 1,
        "reason": "NoQuota",
        "notBefore": time,
        "fullPools": ["a100"],
    }


def learner_row(time: str) -> dict[str, Any]:
    return {
        "index": 0,
        "site": "local",
        "pool": "a100",
        "incarnation": 2,
        "podName": "toy-0a1b2c3d-0-2",
        "state": "BackOff",
        "reason": "AppError",
        "reasonSince": time,
        "restarts": 1,
        "restartsCounted": 1,
        "failures": 1,
        "runningSince": time,
        "notBefore": time,
        "message": "exit code 1",
    }


def goodput(time: str) -> dict[str, Any]:
    return {
        "capacity": "0.9375",
        "accepted": "0.9",
        "uptime": "1",
        "windowSeconds": "400.000",
        "uptimeSeconds": "400.000",
        "wantedSeconds": "1600.000",
        "trainingSeconds": "1500.000",
        "idealTokensPerSecond": "81920",
        "accountedTime": time,
        "learnerTimes": [{"index": 0, "site": "", "milliseconds": {"training": 400_000, "lost": 1}}],
        "heardTimes": [{"index": 0, "incarnation": 2, "milliseconds": {"init": 1}, "openMilliseconds": 3}],
    }


def full_status() -> dict[str, Any]:
    time = "2026-01-01T00:00:00Z"
    resolved = resolve_job(DiLoCoJob.model_validate(manifest()))
    return {
        "observedGeneration": 3,
        "phase": "Running",
        "conditions": [
            {
                "type": "Accepted",
                "status": "True",
                "reason": "Valid",
                "message": "m" * 256,
                "lastTransitionTime": time,
                "observedGeneration": 3,
            }
        ],
        "startTime": time,
        "completionTime": time,
        "lastProgressTime": time,
        "executionAttempt": 1,
        "learners": {"desired": 3, "ready": 2, "active": 3, "failed": 0, "summary": "2/3"},
        "sites": [site_row(time)],
        "siteSummary": "1/1",
        "learnerStatuses": [learner_row(time)],
        "progress": {"percent": 40, "tokens": 5, "outerSteps": 7, "outerRounds": 2, "lastUpdatedTime": time},
        "resolved": {
            "policy": resolved.policy.model_dump(mode="json", by_alias=True),
            "budgetTokens": resolved.budget_tokens,
            "budgetReason": resolved.budget_reason.value,
            "replicas": resolved.replicas,
            "templateVersion": 1,
            "protocolVersion": 1,
            "ports": {"synchronizer": 1, "admin": 2, "metrics": 3},
            "images": {"trainer": "trainer:1"},
        },
        "goodput": goodput(time),
        "selector": "diloco.dev/job-uid=x",
    }


def test_the_schema_knows_every_status_field_that_is_written() -> None:
    document = manifest()
    status = JobStatus.model_validate(full_status())
    document["status"] = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    policy = NODES[".status.resolved.policy"]
    open_schema = copy.deepcopy(SCHEMA)
    open_schema["properties"]["status"]["properties"]["resolved"]["properties"]["policy"] = {"type": "object"}

    assert set(site_row("")) == {info.alias for info in SiteStatus.model_fields.values()}
    assert set(goodput("")) == {info.alias for info in GoodputStatus.model_fields.values()}
    assert set(learner_row("")) == {info.alias for info in LearnerStatus.model_fields.values()}
    assert policy["x-kubernetes-preserve-unknown-fields"] is True
    assert admit(open_schema, document) == []
    assert JobStatus.model_validate(document["status"]) == status
    assert {path.split(".")[2] for path in NODES if path.startswith(".status.") and "[" not in path} == {
        info.alias for info in JobStatus.model_fields.values()
    }


def test_a_status_of_a_newer_operator_can_be_read() -> None:
    assert JobStatus.model_validate({**full_status(), "later": {"x": 1}}).phase == "Running"


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"$ref": "#/x"}, "not allowed"),
        ({"description": "x"}, "without a type"),
        ({"type": "integer", "maximum": 3}, "without a description"),
        ({"type": "integer", "description": "x"}, "without an upper bound"),
        ({"type": "string", "description": "x"}, "without maxLength"),
        ({"type": "array", "description": "x"}, "without maxItems"),
        ({"type": "object", "description": "x", "additionalProperties": {"type": "string"}}, "without bounds"),
        ({"type": "number", "description": "x", "exclusiveMinimum": 0}, "numeric exclusiveMinimum"),
    ],
)
def test_the_generator_refuses_what_an_api_server_would(node: dict[str, Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        crd._check(".spec.x", node)


def test_the_generator_refuses_an_immutable_field_that_can_be_removed() -> None:
    child = {"type": "object", "x-kubernetes-validations": [rules.NEVER_CHANGES]}
    parent = {"type": "object", "description": "x", "properties": {"x": child}}
    with pytest.raises(AssertionError, match="can be added and removed"):
        crd._check(".spec", parent)
    crd._check(".spec", {**parent, "required": ["x"]})


def test_the_status_of_the_largest_job_fits_into_an_object() -> None:
    times = [
        {"index": index, "site": f"site-{place}", "milliseconds": dict.fromkeys(GoodputState, 10**12)}
        for index in range(MAX_LEARNERS)
        for place in range(2)
    ]
    heard = [
        {"index": index, "incarnation": 1000, "milliseconds": dict.fromkeys(LearnerState, 10**12)}
        for index in range(MAX_LEARNERS)
    ]
    rows = [
        {**learner_row("2026-01-01T00:00:00Z"), "index": index, "message": "m" * 256} for index in range(MAX_LEARNERS)
    ]
    status = {**full_status(), "learnerStatuses": rows}
    status["goodput"] = {**status["goodput"], "learnerTimes": times, "heardTimes": heard}
    document = JobStatus.model_validate(status).model_dump_json(by_alias=True, exclude_none=True)
    assert len(document.encode()) < 750_000, "half of what etcd takes"

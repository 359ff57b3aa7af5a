"""Every rule between fields, broken once: what the CLI and the operator say, and what an API server says."""

from dataclasses import dataclass
from typing import Any

import pytest

from builders import job, manifest
from diloco_api import accept, rules
from diloco_api.crd import build_schema, walk
from fakes.admission import admit


@dataclass(frozen=True)
class Breach:
    id: str
    changes: dict[str, object]
    path: str
    value: str
    rule: str
    preset: str = "DecoupledDiLoCo"
    cel: bool = True  # an API server can tell


A = "algorithm"
REMOTE: dict[str, object] = {"name": "site-1", "kubeconfigSecretRef": {"name": "one"}}
EXPOSED: dict[str, object] = {"synchronizer.exposure": {"type": "NodePort"}}
BREACHES = [
    Breach("delay is H", {f"{A}.syncEvery": 24, f"{A}.syncDelay": 24}, f"{A}.syncDelay", "24", rules.BELOW_SYNC_EVERY),
    Breach("delay above the default H", {f"{A}.syncDelay": 30}, f"{A}.syncDelay", "30", rules.BELOW_SYNC_EVERY),
    Breach(
        "delay above DiLoCo's H", {f"{A}.syncDelay": 500}, f"{A}.syncDelay", "500", rules.BELOW_SYNC_EVERY, "DiLoCo"
    ),
    Breach(
        "streaming with H of 1",
        {f"{A}.syncEvery": 1},
        f"{A}.syncDelay",
        "1 (default of StreamingDiLoCo)",
        rules.BELOW_SYNC_EVERY,
        "StreamingDiLoCo",
        cel=False,
    ),
    Breach(
        "more fragments than steps",
        {f"{A}.syncEvery": 8, f"{A}.fragments": 9},
        f"{A}.fragments",
        "9",
        rules.AT_MOST_SYNC_EVERY,
    ),
    Breach(
        "more fragments than H by default", {f"{A}.fragments": 25}, f"{A}.fragments", "25", rules.AT_MOST_SYNC_EVERY
    ),
    Breach(
        "more fragments than tensors",
        {f"{A}.syncEvery": 100, f"{A}.fragments": 36},
        f"{A}.fragments",
        "36",
        rules.AT_MOST_TENSORS,
        cel=False,
    ),
    Breach(
        "more fragments than layers",
        {f"{A}.fragmentation": "Layer", f"{A}.fragments": 5},
        f"{A}.fragments",
        "5",
        rules.AT_MOST_LAYERS,
        cel=False,
    ),
    Breach(
        "blend without delay", {f"{A}.blendAlpha": 0.5}, f"{A}.blendAlpha", "0.5", rules.BLEND_NEEDS_DELAY, "DiLoCo"
    ),
    Breach(
        "blend with delay switched off",
        {f"{A}.blendAlpha": 0.25, f"{A}.syncDelay": 0},
        f"{A}.blendAlpha",
        "0.25",
        rules.BLEND_NEEDS_DELAY,
    ),
    Breach(
        "blocking streaming",
        {f"{A}.syncDelay": 0},
        f"{A}.syncDelay",
        "0",
        rules.STREAMING_NEEDS_DELAY,
        "StreamingDiLoCo",
    ),
    Breach(
        "quorum above replicas",
        {f"{A}.quorum.minLearners": 4},
        f"{A}.quorum.minLearners",
        "4",
        rules.QUORUM_AT_MOST_LEARNERS,
    ),
    Breach(
        "quorum above max",
        {f"{A}.quorum.minLearners": 6, "learners.max": 5},
        f"{A}.quorum.minLearners",
        "6",
        rules.QUORUM_AT_MOST_LEARNERS,
    ),
    Breach(
        "all with turns",
        {f"{A}.quorum.minLearners": "All"},
        f"{A}.quorum.minLearners",
        "All",
        rules.ALL_NEEDS_SYNCHRONOUS,
    ),
    Breach(
        "number without turns",
        {f"{A}.quorum.minLearners": 2},
        f"{A}.quorum.minLearners",
        "2",
        rules.NUMBER_NEEDS_TURNS,
        "StreamingDiLoCo",
    ),
    Breach(
        "adaptive without turns",
        {f"{A}.quorum.grace": "Adaptive"},
        f"{A}.quorum.grace",
        "Adaptive",
        rules.ADAPTIVE_NEEDS_TURNS,
        "DiLoCo",
    ),
    Breach(
        "seconds without turns",
        {f"{A}.quorum.grace": 0},
        f"{A}.quorum.grace",
        "0",
        rules.ADAPTIVE_NEEDS_TURNS,
        "DiLoCo",
    ),
    Breach(
        "deadline with turns",
        {f"{A}.quorum.grace": "Deadline"},
        f"{A}.quorum.grace",
        "Deadline",
        rules.DEADLINE_NEEDS_ALL,
    ),
    Breach(
        "gamma of seconds",
        {f"{A}.quorum.grace": 3, f"{A}.quorum.gamma": 0.5},
        f"{A}.quorum.gamma",
        "0.5",
        rules.GAMMA_NEEDS_ADAPTIVE,
    ),
    Breach(
        "gamma of a deadline", {f"{A}.quorum.gamma": 1}, f"{A}.quorum.gamma", "1", rules.GAMMA_NEEDS_ADAPTIVE, "DiLoCo"
    ),
    Breach(
        "feedback without loss",
        {f"{A}.encoding.errorFeedback": True, f"{A}.encoding.up": "fp32"},
        f"{A}.encoding.errorFeedback",
        "true",
        rules.FEEDBACK_NEEDS_LOSS,
    ),
    Breach(
        "feedback without loss by default",
        {f"{A}.encoding.errorFeedback": True},
        f"{A}.encoding.errorFeedback",
        "true",
        rules.FEEDBACK_NEEDS_LOSS,
        "DiLoCo",
    ),
    Breach("odd head", {"train.model.hidden": 132}, "train.model.hidden", "132", rules.EVEN_HEAD),
    Breach("heads do not divide", {"train.model.heads": 3}, "train.model.hidden", "128", rules.EVEN_HEAD),
    Breach(
        "micro-batch does not divide",
        {"train.batch.microBatch": 3},
        "train.batch.microBatch",
        "3",
        rules.MICRO_BATCH_DIVIDES,
    ),
    Breach(
        "two budgets",
        {"budget.tokens": 10, "budget.innerSteps": 20},
        "budget",
        "tokens 10, innerSteps 20",
        rules.ONE_BUDGET,
    ),
    Breach(
        "endless budget",
        {"budget.outerRounds": 10**9, f"{A}.syncEvery": 10**6},
        "budget.outerRounds",
        f"{10**15 * 3 * 8 * 256} tokens",
        rules.BUDGET_TOO_LARGE,
        cel=False,
    ),
    Breach("fewer than min", {"learners.min": 4}, "learners.replicas", "3", rules.REPLICAS_AT_LEAST_MIN),
    Breach("more than max", {"learners.max": 2}, "learners.replicas", "3", rules.REPLICAS_AT_MOST_MAX),
    Breach(
        "one port twice",
        {"synchronizer.port": 4000, "synchronizer.adminPort": 4000},
        "synchronizer.adminPort",
        "4000",
        rules.PORTS_DIFFER,
    ),
    Breach(
        "metrics on the grpc port",
        {"synchronizer.port": 4000, "synchronizer.metricsPort": 4000},
        "synchronizer.metricsPort",
        "4000",
        rules.PORTS_DIFFER,
    ),
    Breach(
        "metrics on the admin port",
        {"synchronizer.adminPort": 4000, "synchronizer.metricsPort": 4000},
        "synchronizer.metricsPort",
        "4000",
        rules.PORTS_DIFFER,
    ),
    Breach(
        "remote site and ClusterIP",
        {"sites": [REMOTE]},
        "synchronizer.exposure.type",
        "ClusterIP",
        rules.EXPOSURE_NEEDED,
    ),
    Breach("two hubs", {"sites": [{"name": "a"}, {"name": "b"}]}, "sites", "a, b", rules.ONE_HUB),
    Breach(
        "minima above replicas",
        {"sites": [{**REMOTE, "learners": {"min": 2}}, {"name": "b", "learners": {"min": 2}}], **EXPOSED},
        "sites",
        "4",
        rules.SITE_MINIMA,
    ),
    Breach(
        "no room at the sites",
        {"sites": [{**REMOTE, "learners": {"max": 1}}, {"name": "b", "learners": {"max": 1}}], **EXPOSED},
        "learners.replicas",
        "3",
        rules.SITE_MAXIMA,
    ),
    Breach(
        "minimum of a site above its maximum",
        {"sites": [{"name": "b", "learners": {"min": 5, "max": 4}}], "learners.max": 9},
        "sites.0.learners.min",
        "5",
        rules.SITE_MIN_AT_MOST_MAX,
    ),
    Breach(
        "namespace at the hub",
        {"sites": [{"name": "b", "namespace": "other"}]},
        "sites.0.namespace",
        "other",
        rules.NAMESPACE_NEEDS_KUBECONFIG,
    ),
    Breach(
        "a hub that is none",
        {"sites": [{**REMOTE, "name": "hub"}], **EXPOSED},
        "sites.0.kubeconfigSecretRef",
        "one",
        rules.HUB_HAS_NO_KUBECONFIG,
    ),
    Breach(
        "one name twice",
        {"sites": [REMOTE, {"name": "site-1"}], **EXPOSED},
        "sites.1.name",
        "site-1",
        rules.ONE_NAME,
        cel=False,
    ),
    Breach(
        "one pool twice",
        {"sites": [{"name": "b", "nodePools": [{"name": "p"}, {"name": "p"}]}]},
        "sites.0.nodePools.1.name",
        "p",
        rules.ONE_NAME,
        cel=False,
    ),
    Breach(
        "two sites of one namespace",
        {"sites": [REMOTE, {**REMOTE, "name": "site-2", "namespace": "default"}], **EXPOSED},
        "sites.1.kubeconfigSecretRef",
        "one",
        rules.SAME_TARGET,
        cel=False,
    ),
    Breach(
        "address without one",
        {"synchronizer.exposure.type": "Address"},
        "synchronizer.exposure.addresses",
        "",
        rules.ADDRESSES_NEEDED,
    ),
    Breach(
        "addresses nobody uses",
        {"synchronizer.exposure": {"type": "LoadBalancer", "addresses": ["a:1"]}},
        "synchronizer.exposure.addresses",
        "a:1",
        rules.ADDRESSES_UNUSED,
    ),
    Breach(
        "address without port",
        {"synchronizer.exposure": {"type": "Address", "addresses": ["a:1", "b"]}},
        "synchronizer.exposure.addresses",
        "b",
        rules.ADDRESS,
    ),
]
SCHEMA = build_schema()


@pytest.mark.parametrize("breach", BREACHES, ids=lambda breach: breach.id)
def test_a_breach_names_field_value_and_rule(breach: Breach) -> None:
    (problem,) = accept.problems(job(breach.changes, preset=breach.preset))

    assert problem.path == f"spec.{breach.path}"
    assert problem.value == breach.value
    assert problem.rule.startswith(breach.rule)
    shown = f"{breach.value}: " if breach.value else ""
    assert str(problem).startswith(f"spec.{breach.path}: {shown}{breach.rule}")


@pytest.mark.parametrize("breach", [b for b in BREACHES if b.cel], ids=lambda breach: breach.id)
def test_an_api_server_refuses_it_in_the_same_words(breach: Breach) -> None:
    (message,) = admit(SCHEMA, manifest(breach.changes, preset=breach.preset))

    assert message == f"spec.{breach.path}: {breach.rule}"


@pytest.mark.parametrize("breach", [b for b in BREACHES if not b.cel], ids=lambda breach: breach.id)
def test_what_an_api_server_cannot_know_is_admitted(breach: Breach) -> None:
    assert admit(SCHEMA, manifest(breach.changes, preset=breach.preset)) == []


GOOD: list[tuple[str, dict[str, object]]] = [
    ("DecoupledDiLoCo", {}),
    ("DecoupledDiLoCo", {f"{A}.syncDelay": 23, f"{A}.blendAlpha": 0.5, f"{A}.fragments": 24}),
    ("DecoupledDiLoCo", {f"{A}.quorum.minLearners": 3, f"{A}.quorum.grace": 0}),
    ("DecoupledDiLoCo", {f"{A}.quorum.grace": "Adaptive", f"{A}.quorum.gamma": 0.9}),
    ("DecoupledDiLoCo", {f"{A}.quorum.minLearners": 5, "learners.max": 5}),
    ("DecoupledDiLoCo", {f"{A}.encoding.up": "fp32", f"{A}.encoding.errorFeedback": False}),
    ("DecoupledDiLoCo", {f"{A}.syncEvery": 1}),
    ("DiLoCo", {f"{A}.quorum.minLearners": "All", f"{A}.quorum.grace": "Deadline", f"{A}.blendAlpha": 0}),
    ("DiLoCo", {f"{A}.syncDelay": 5, f"{A}.blendAlpha": 1, f"{A}.fragments": 35}),
    ("DiLoCo", {f"{A}.encoding.up": "int8", f"{A}.encoding.errorFeedback": True}),
    ("StreamingDiLoCo", {f"{A}.syncEvery": 2, f"{A}.fragments": 2}),
    ("StreamingDiLoCo", {f"{A}.encoding.errorFeedback": True, f"{A}.fragmentation": "BalancedTensor"}),
    ("DecoupledDiLoCo", {"train.batch.microBatch": 4, "train.model.tieEmbeddings": True, "budget.innerSteps": 3}),
    ("DecoupledDiLoCo", {"learners.min": 3, "learners.max": 3}),
    ("DecoupledDiLoCo", {"sites": [REMOTE, {"name": "hub"}], **EXPOSED}),
    ("DecoupledDiLoCo", {"sites": [REMOTE, {**REMOTE, "name": "site-2", "namespace": "b"}], **EXPOSED}),
    ("DecoupledDiLoCo", {"sites": [{"name": "here", "learners": {"min": 3, "max": 3}}]}),
    ("DecoupledDiLoCo", {"sites": [REMOTE], "synchronizer.exposure": {"type": "Address", "addresses": ["[::1]:443"]}}),
    (
        "DecoupledDiLoCo",
        {"sites": [REMOTE], "synchronizer.exposure": {"type": "NodePort", "addresses": ["a.b", "c:1"]}},
    ),
    ("DecoupledDiLoCo", {"synchronizer.port": 1, "synchronizer.adminPort": 2, "synchronizer.metricsPort": 3}),
]


@pytest.mark.parametrize(("preset", "changes"), GOOD, ids=lambda value: str(value))
def test_a_job_within_the_rules_is_accepted_by_both(preset: str, changes: dict[str, object]) -> None:
    assert accept.problems(job(changes, preset=preset)) == []
    assert admit(SCHEMA, manifest(changes, preset=preset)) == []


def test_all_problems_are_reported_not_just_the_first() -> None:
    changes: dict[str, object] = {f"{A}.syncDelay": 24, f"{A}.fragments": 30, "learners.min": 9}

    paths = [problem.path for problem in accept.problems(job(changes))]

    assert paths == ["spec.algorithm.fragments", "spec.algorithm.syncDelay", "spec.learners.replicas"]
    with pytest.raises(ValueError, match=r"^spec\.algorithm\.fragments: 30: .* \(and 2 more\)$"):
        accept.resolve_job(job(changes))


def test_every_cel_rule_but_those_of_single_values_is_broken_by_a_case() -> None:
    messages = {rule["message"] for _, node in walk(SCHEMA) for rule in node.get("x-kubernetes-validations", [])}
    elsewhere = {
        rules.IMMUTABLE,
        rules.SITE_NAMESPACE_FIXED,
        rules.GRACE,
        rules.MIN_LEARNERS,
        f"metadata.name {rules.JOB_NAME}",
    }

    assert messages - elsewhere == {breach.rule for breach in BREACHES if breach.cel}


SINGLE: list[tuple[dict[str, object], str]] = [
    ({f"{A}.quorum.minLearners": 0}, f"spec.{A}.quorum.minLearners: {rules.MIN_LEARNERS}"),
    ({f"{A}.quorum.minLearners": "Most"}, f"spec.{A}.quorum.minLearners: {rules.MIN_LEARNERS}"),
    ({f"{A}.quorum.minLearners": 257, "learners.max": 256}, f"spec.{A}.quorum.minLearners: {rules.MIN_LEARNERS}"),
    ({f"{A}.quorum.grace": "Ever"}, f"spec.{A}.quorum.grace: {rules.GRACE}"),
    ({f"{A}.quorum.grace": 601}, f"spec.{A}.quorum.grace: {rules.GRACE}"),
    ({f"{A}.quorum.grace": -1}, f"spec.{A}.quorum.grace: {rules.GRACE}"),
]


@pytest.mark.parametrize(("changes", "message"), SINGLE, ids=lambda value: str(value))
def test_numbers_or_words_are_bounded_by_cel_and_by_the_models(changes: dict[str, object], message: str) -> None:
    assert message in admit(SCHEMA, manifest(changes))
    with pytest.raises(ValueError, match=message.split(": ")[1]):
        job(changes)


@pytest.mark.parametrize("name", ["Toy", "1toy", "toy-", "a.b", "", "t" * 64])
def test_a_job_name_that_would_break_child_names_is_refused_by_both(name: str) -> None:
    document: dict[str, Any] = manifest()
    document["metadata"]["name"] = name

    assert admit(SCHEMA, document) == [f": metadata.name {rules.JOB_NAME}"]
    with pytest.raises(ValueError, match="DNS label"):
        type(job()).model_validate(document)

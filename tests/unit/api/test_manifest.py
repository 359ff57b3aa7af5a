"""A manifest's faults are one line each that name file and field; nothing is guessed."""

from pathlib import Path

import pytest

from diloco_api import manifest, rules
from diloco_api.accept import resolve_job
from diloco_api.errors import SpecError
from diloco_api.manifest import load_job, parse_override

EXAMPLES = sorted((Path(__file__).parents[3] / "crds" / "examples").glob("*.yaml"))
GOOD = """\
apiVersion: diloco.dev/v1alpha1
kind: DiLoCoJob
metadata:
  name: toy
spec:
  algorithm:
    syncEvery: 30
  train:
    data:
      uri: texts/*.txt
  learners:
    replicas: 3
"""


def failure(text: str, *overrides: tuple[str, str]) -> str:
    with pytest.raises(SpecError) as caught:
        load_job(text, "job.yaml", overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_valid_and_resolves(path: Path) -> None:
    job = load_job(path.read_text(encoding="utf-8"), path.name)

    assert job.metadata.name == path.stem
    assert resolve_job(job).budget_tokens > 0


def test_the_least_manifest_has_at_most_ten_lines() -> None:
    (minimal,) = [path for path in EXAMPLES if path.stem == "minimal"]
    assert len(minimal.read_text(encoding="utf-8").splitlines()) <= 10


def test_there_is_a_quickstart() -> None:
    assert "quickstart.yaml" in {path.name for path in EXAMPLES}


def test_ten_lines_are_enough() -> None:
    job = load_job(GOOD.replace("  algorithm:\n    syncEvery: 30\n", ""), "job.yaml")

    assert job.spec.algorithm.preset == "DecoupledDiLoCo"
    assert job.metadata.namespace == "default"


BAD = [
    (
        "unknown field",
        GOOD.replace("syncEvery", "syncEvry"),
        "spec.algorithm.syncEvry: unknown field (did you mean syncEvery?)",
    ),
    ("unknown section", GOOD.replace("learners:", "workers:"), "spec.workers: unknown field (and 1 more)"),
    (
        "python's spelling",
        GOOD.replace("syncEvery", "sync_every"),
        "spec.algorithm.sync_every: unknown field (did you mean syncEvery?)",
    ),
    (
        "no data",
        GOOD.replace("    data:\n      uri: texts/*.txt\n", "    seed: 1\n"),
        f"spec.train.data: {manifest._DATA_HINT}",
    ),
    ("no uri", GOOD.replace("uri: texts/*.txt", "format: text"), f"spec.train.data: {manifest._DATA_HINT}"),
    (
        "no train",
        GOOD.replace("  train:\n    data:\n      uri: texts/*.txt\n", ""),
        f"spec.train.data: {manifest._DATA_HINT}",
    ),
    ("no replicas", GOOD.replace("replicas: 3", "min: 1"), "spec.learners.replicas: is required"),
    ("no name", GOOD.replace("name: toy", "labels: {}"), "metadata.name: is required"),
    ("no spec", GOOD.split("spec:")[0], "spec: is required"),
    (
        "text for a number",
        GOOD.replace("replicas: 3", 'replicas: "3"'),
        'spec.learners.replicas: "3": must be a valid integer',
    ),
    (
        "yes for a number",
        GOOD.replace("replicas: 3", "replicas: yes"),
        "spec.learners.replicas: true: must be a valid integer",
    ),
    ("number for a text", GOOD.replace("texts/*.txt", "5"), "spec.train.data.uri: 5: must be a valid string"),
    ("out of bounds", GOOD.replace("replicas: 3", "replicas: 0"), "spec.learners.replicas: 0: must be at least 1"),
    (
        "one too many",
        GOOD.replace("replicas: 3", "replicas: 257"),
        "spec.learners.replicas: 257: must be less than or equal to 256",
    ),
    (
        "not a choice",
        GOOD.replace("syncEvery: 30", "merge: Median"),
        "spec.algorithm.merge: \"Median\": must be 'RadialDirectional' or 'Mean'",
    ),
    (
        "quorum",
        GOOD.replace("syncEvery: 30", "quorum: {minLearners: some}"),
        'spec.algorithm.quorum.minLearners: "some": must be a whole number from 1 to 256, or All',
    ),
    ("section is a number", GOOD.replace("    replicas: 3", "    - 3"), "spec.learners: [3]: must be a mapping"),
    (
        "job name",
        GOOD.replace("name: toy", "name: My_Job"),
        f'metadata.name: "My_Job": {rules.JOB_NAME}',
    ),
    (
        "rule between fields",
        GOOD.replace("syncEvery: 30", "syncDelay: 24"),
        f"spec.algorithm.syncDelay: 24: {rules.BELOW_SYNC_EVERY} (syncEvery is 24)",
    ),
    (
        "two rules",
        GOOD.replace("syncEvery: 30", "syncDelay: 24\n    fragments: 30"),
        f"spec.algorithm.fragments: 30: {rules.AT_MOST_SYNC_EVERY} (syncEvery is 24) (and 1 more)",
    ),
    (
        "infinity",
        GOOD.replace("syncEvery: 30", "blendAlpha: .inf"),
        "spec.algorithm.blendAlpha: must be a finite number",
    ),
    (
        "a loop",
        GOOD.replace("syncEvery: 30", "quorum: &q\n      grace: *q"),
        "document: cannot be written as JSON: Circular reference detected",
    ),
    (
        "bytes",
        GOOD.replace("texts/*.txt", "!!binary aGk="),
        "document: cannot be written as JSON: Object of type bytes is not JSON serializable",
    ),
    ("another kind", GOOD.replace("DiLoCoJob", "PyTorchJob"), 'kind: must be DiLoCoJob, is "PyTorchJob"'),
    ("another version", GOOD.replace("v1alpha1", "v1"), 'apiVersion: must be diloco.dev/v1alpha1, is "diloco.dev/v1"'),
    ("no kind", GOOD.replace("kind: DiLoCoJob\n", ""), "kind: must be DiLoCoJob, is missing"),
    ("two documents", GOOD + "---\n" + GOOD, "must hold one document, holds 2"),
    ("empty", "# nothing\n", "must hold one document, holds none"),
    ("a list", "- 1\n", "must be a mapping with apiVersion, kind, metadata and spec"),
    (
        "key twice",
        GOOD.replace("    replicas: 3", "    replicas: 3\n    replicas: 4"),
        "line 13, column 5: key 'replicas' comes twice",
    ),
    ("not YAML", GOOD.replace("metadata:", "metadata: ["), "line 5, column 5: expected ',' or ']', but got ':'"),
    ("tab", GOOD.replace("  name", "\tname"), "line 4, column 1: found character '\\t' that cannot start any token"),
    (
        "python object",
        GOOD.replace("texts/*.txt", "!!python/name:os.system"),
        "line 10, column 12: could not determine a constructor for the tag 'tag:yaml.org,2002:python/name:os.system'",
    ),
    (
        "control character",
        GOOD + "\x07",
        "is not YAML: unacceptable character #x0007: special characters are not allowed in "
        '"<unicode string>", position 177',
    ),
    ("too deep", "[" * 5_000, "is nested too deeply"),
]


@pytest.mark.parametrize(("text", "message"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_a_fault_is_one_line_naming_file_and_field(text: str, message: str) -> None:
    assert failure(text) == f"job.yaml: {message}"


def test_yaml_is_read_as_kubernetes_reads_it() -> None:
    text = GOOD.replace("texts/*.txt", "2024-01-01") + "  budget:\n    tokens: 1200000\n"
    text = text.replace("    syncEvery: 30", "    outerOptimizer: {learningRate: 5e-1}\n    blendAlpha: 1")

    job = load_job(text, "job.yaml")

    assert job.spec.train.data.uri == "2024-01-01"
    assert job.spec.algorithm.outer_optimizer.learning_rate == 0.5
    assert job.spec.algorithm.blend_alpha == 1


def test_anchors_and_merges_are_no_duplicate_keys() -> None:
    base = "    data: &data\n      uri: a.txt\n      sequenceLength: 16\n"
    text = GOOD.replace("    data:\n      uri: texts/*.txt\n", base.replace("uri", "<<: {uri: b.txt}\n      uri"))

    assert load_job(text, "job.yaml").spec.train.data.uri == "a.txt"


def test_a_status_in_the_file_is_ignored() -> None:
    assert load_job(GOOD + "status:\n  phase: 5\n", "job.yaml").status.phase == ""


def test_unknown_metadata_is_carried_along() -> None:
    job = load_job(GOOD.replace("name: toy", "name: toy\n  selfLink: /x"), "job.yaml")
    assert job.metadata.model_dump(by_alias=True)["selfLink"] == "/x"


def test_overrides_are_typed_as_yaml_and_win_in_order() -> None:
    job = load_job(
        GOOD,
        "job.yaml",
        [
            ("spec.learners.replicas", "4"),
            ("spec.learners.replicas", "5"),
            ("spec.train.optimizer.learningRate", "3e-4"),
            ("spec.train.clipNorm", "null"),
            ("spec.algorithm.quorum", "{minLearners: 2}"),
            ("spec.algorithm.quorum.grace", "Adaptive"),
            ("spec.train.data.uri", "{stdlib}/**/*.py".join('""')),
            ("metadata.name", "other"),
        ],
    )

    assert job.spec.learners.replicas == 5
    assert job.spec.train.optimizer.learning_rate == 3e-4
    assert job.spec.train.clip_norm is None
    assert (job.spec.algorithm.quorum.min_learners, job.spec.algorithm.quorum.grace) == (2, "Adaptive")
    assert job.spec.train.data.uri == "{stdlib}/**/*.py"
    assert job.metadata.name == "other"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("spec.algorithm.syncEvry", "3", "--set spec.algorithm.syncEvry: unknown field (did you mean syncEvery?)"),
        ("spec.trian.seed", "3", "--set spec.trian.seed: unknown field (did you mean train?)"),
        ("spec.learners.replicas.x", "3", "--set spec.learners.replicas.x: unknown field"),
        ("learners.replicas", "3", "--set learners.replicas: a path begins with spec or metadata"),
        ("status.phase", "Running", "--set status.phase: a path begins with spec or metadata"),
        ("spec.", "3", "--set spec.: unknown field"),
        ("spec.learners.replicas", "[", "--set spec.learners.replicas: '[' is not a YAML value"),
        ("spec.learners.replicas", "lots", '--set: spec.learners.replicas: "lots": must be a valid integer'),
        ("spec.learners.replicas", "", "--set: spec.learners.replicas: null: must be a valid integer"),
        ("spec.learners", "{replicas: 0}", "--set: spec.learners.replicas: 0: must be at least 1"),
        ("spec.learners.min", "4", "job.yaml: spec.learners.replicas: 3: must not be below learners.min (4)"),
    ],
    ids=lambda value: str(value),
)
def test_a_bad_override_is_one_line_too(path: str, value: str, message: str) -> None:
    assert failure(GOOD, (path, value)) == message


def test_an_override_does_not_replace_what_is_not_a_mapping() -> None:
    message = failure(
        GOOD.replace("  algorithm:\n    syncEvery: 30", "  algorithm: 5"), ("spec.algorithm.syncEvery", "3")
    )
    assert message == "--set spec.algorithm.syncEvery: algorithm is not a mapping in the file"


def test_an_override_may_open_a_section_the_file_left_empty() -> None:
    text = GOOD.replace("  algorithm:\n    syncEvery: 30", "  algorithm:")
    assert load_job(text, "job.yaml", [("spec.algorithm.syncEvery", "30")]).spec.algorithm.sync_every == 30


def test_path_and_value_are_split_at_the_first_equals_sign() -> None:
    assert parse_override("spec.train.data.uri=a=b") == ("spec.train.data.uri", "a=b")
    for text in ("spec.train", "=3", ""):
        with pytest.raises(SpecError, match="must be path=value"):
            parse_override(text)

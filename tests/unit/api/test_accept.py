"""What acceptance works out: budgets in tokens, bounds, and the run config of the job's processes."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from builders import job
from diloco_api import names
from diloco_api.accept import Ports, make_run_config, resolve_job
from diloco_api.errors import SpecError
from diloco_api.model_size import gpt_shape
from diloco_api.run_config import read_run_config
from diloco_api.states import Reason
from diloco_api.timeouts import Timeouts


@pytest.mark.parametrize(
    ("changes", "tokens", "reason"),
    [
        ({"budget.tokens": 12345}, 12345, Reason.TOKEN_BUDGET_REACHED),
        ({"budget.innerSteps": 10}, 10 * 3 * 8 * 256, Reason.STEP_BUDGET_REACHED),
        ({"budget.innerSteps": 10, "learners.replicas": 2}, 10 * 2 * 8 * 256, Reason.STEP_BUDGET_REACHED),
        ({"budget.outerRounds": 10}, 10 * 24 * 3 * 8 * 256, Reason.ROUND_BUDGET_REACHED),
        ({"budget.outerRounds": 1, "algorithm.syncEvery": 7}, 7 * 3 * 8 * 256, Reason.ROUND_BUDGET_REACHED),
        ({}, 20 * 853_376, Reason.TOKEN_BUDGET_REACHED),
        ({"budget": {}}, 20 * 853_376, Reason.TOKEN_BUDGET_REACHED),
    ],
    ids=lambda value: str(value),
)
def test_every_kind_of_budget_becomes_tokens(changes: dict[str, object], tokens: int, reason: Reason) -> None:
    resolved = resolve_job(job(changes))

    assert (resolved.budget_tokens, resolved.budget_reason) == (tokens, reason)


def test_max_is_replicas_where_it_is_not_set() -> None:
    assert resolve_job(job()).max_learners == 3
    assert resolve_job(job({"learners.max": 9})).max_learners == 9
    assert resolve_job(job({"learners.min": 2})).min_learners == 2


def test_max_passes_reach_the_policy() -> None:
    assert resolve_job(job({"train.data.maxPasses": 4})).policy.max_passes == 4
    assert resolve_job(job()).policy.max_passes is None


def test_a_run_config_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    accepted = job({"train.clipNorm": 0.5, "algorithm.quorum.grace": 3})
    ports = Ports(synchronizer=4000, admin=4001, metrics=4002, learner_metrics=0)
    config = make_run_config(accepted, resolve_job(accepted), ports, Timeouts(heartbeat_seconds=1))
    path = tmp_path / names.FILE_RUN_CONFIG
    path.write_text(config.model_dump_json(), encoding="utf-8")

    assert read_run_config(path) == config
    assert config.job_uid == accepted.metadata.uid
    assert config.train == accepted.spec.train
    assert (config.synchronizer_port, config.admin_port) == (4000, 4001)
    assert (config.synchronizer_metrics_port, config.learner_metrics_port) == (4002, 0)
    assert config.timeouts.heartbeat_seconds == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read: No such file or directory"),
        ("{", "document: Invalid JSON"),
        ("{}", "job_name: Field required"),
    ],
)
def test_a_run_config_that_cannot_be_used_names_file_and_field(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "run.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")

    with pytest.raises(SpecError) as caught:
        read_run_config(path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


def test_a_run_config_of_another_version_is_refused(tmp_path: Path) -> None:
    accepted = job()
    config = make_run_config(accepted, resolve_job(accepted), Ports())
    path = tmp_path / "run.json"
    path.write_text(config.model_copy(update={"schema_version": 2}).model_dump_json(), encoding="utf-8")

    with pytest.raises(SpecError, match="schema_version"):
        read_run_config(path)


def test_a_run_config_of_a_newer_operator_is_read_as_far_as_it_is_known(tmp_path: Path) -> None:
    accepted = job()
    config = make_run_config(accepted, resolve_job(accepted), Ports())
    document = config.model_dump(mode="json") | {"mood": "good"}
    for section in ("policy", "train", "timeouts"):
        document[section] = {**document[section], "tempo": 2}
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document), encoding="utf-8")

    assert read_run_config(path) == config


def test_nothing_in_a_run_config_can_be_changed() -> None:
    accepted = job()
    config = make_run_config(accepted, resolve_job(accepted), Ports())
    with pytest.raises(ValidationError):
        config.budget_tokens = 1  # type: ignore[misc]


@pytest.mark.parametrize("tied", [False, True])
def test_the_shape_of_the_gpt_is_the_sum_of_its_tensors(tied: bool) -> None:
    changes: dict[str, object] = {
        "train.model": {"layers": 3, "hidden": 48, "heads": 4, "mlpRatio": 2, "tieEmbeddings": tied}
    }
    layer = [(48,), (144, 48), (12,), (12,), (48, 48), (48,), (96, 48), (48, 96)]
    tensors = [(256, 48), *(layer * 3), (48,), *([] if tied else [(256, 48)])]
    numbers = [rows[0] * (rows[1] if len(rows) == 2 else 1) for rows in tensors]

    shape = gpt_shape(job(changes).spec.train)

    assert (shape.num_parameters, shape.num_tensors, shape.num_layers) == (sum(numbers), len(tensors), 3)

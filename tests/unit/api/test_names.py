"""Names fit everywhere they are used, and closed sets are complete."""

import re

import pytest

from diloco_api import names
from diloco_api.accept import resolve_job
from diloco_api.exit_codes import ExitCode
from diloco_api.states import CONDITION_REASONS, SITE_CONDITION_REASONS, ConditionType, Reason, SiteConditionType

UID = "0A1B2C3D-4444-4000-8000-000000000000"
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def test_a_learners_name_holds_job_uid_index_and_incarnation() -> None:
    assert names.learner_name("toy", UID, 2, 7) == "toy-0a1b2c3d-2-7"
    assert names.synchronizer_name("toy", UID) == "toy-0a1b2c3d-synchronizer"


@pytest.mark.parametrize("job", ["j" * 63, "a" * 37 + "-" + "b" * 20, "x"])
def test_every_object_name_is_a_dns_label(job: str) -> None:
    made = [
        names.learner_name(job, UID, 255, 99_999_999_999),
        names.synchronizer_name(job, UID),
        names.config_name(job, UID),
        names.address_name(job, UID),
        names.external_name(job, UID),
        names.learners_name(job, UID),
    ]
    for name in made:
        assert len(name) <= 63
        assert LABEL.fullmatch(name)
    assert len(set(made)) == len(made)


def test_two_jobs_of_one_name_share_no_object() -> None:
    assert names.synchronizer_name("toy", UID) != names.synchronizer_name("toy", UID.replace("0A", "0B"))


@pytest.mark.parametrize("text", ["local", "a.b_c-D", "x" * 63, ""])
def test_a_legal_label_value_stays(text: str) -> None:
    assert names.label_value(text) == text


@pytest.mark.parametrize("text", ["x" * 64, "-a", "a b", "ünïcode", "/", "a" * 63 + "-"])
def test_an_illegal_label_value_becomes_a_legal_one_of_its_own(text: str) -> None:
    value = names.label_value(text)

    assert len(value) <= 63
    assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", value)
    assert value != names.label_value(text + "x")
    assert value == names.label_value(text)


def test_a_spec_hash_sees_every_value_but_not_the_order_of_keys() -> None:
    first = names.spec_hash({"a": 1, "b": [1, 2]})

    assert first == names.spec_hash({"b": [1, 2], "a": 1})
    assert first != names.spec_hash({"a": 1, "b": [2, 1]})
    assert re.fullmatch(r"[0-9a-f]{16}", first)


def test_every_condition_has_its_reasons_and_every_reason_a_condition() -> None:
    both = [*CONDITION_REASONS.values(), *SITE_CONDITION_REASONS.values()]

    assert set(CONDITION_REASONS) == set(ConditionType)
    assert set(SITE_CONDITION_REASONS) == set(SiteConditionType)
    assert {reason for true, false in both for reason in true | false} == set(Reason)
    assert all(not true & false for true, false in both)


def test_a_resolved_budget_reason_is_a_reason_of_complete() -> None:
    from builders import job

    assert resolve_job(job()).budget_reason in CONDITION_REASONS[ConditionType.COMPLETE][0]


def test_exit_codes_are_distinct_and_stay() -> None:
    assert {code.name: code.value for code in ExitCode} == {
        "COMPLETE": 0,
        "BAD_CONFIG": 64,
        "DATA_ERROR": 65,
        "PORT_IN_USE": 66,
        "STATE_FOREIGN": 67,
        "STATE_CORRUPT": 68,
        "STATE_UNWRITABLE": 69,
        "DEVICE": 70,
        "FENCED": 80,
        "JOB_ENDED": 81,
        "INCOMPATIBLE": 82,
        "ORPHANED": 83,
        "TLS": 84,
        "UNAUTHENTICATED": 85,
    }

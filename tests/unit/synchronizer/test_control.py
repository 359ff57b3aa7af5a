"""The durable state as the fold of records, where no engine is needed to see it."""

import json

import pytest

from diloco_trainer.algorithm.events import GoneReason
from diloco_trainer.synchronizer.assembly import make_pool
from diloco_trainer.synchronizer.control import Control, new_control
from diloco_trainer.synchronizer.records import (
    AdmitRecord,
    Contributor,
    FinishRecord,
    GoneRecord,
    MergeRecord,
    OpenRecord,
    Record,
)
from fakes.sync_jobs import decoupled, run_config
from fakes.toy_task import ToyTask

CONTRIBUTOR = Contributor(0, 1, 1, 1, 0, 3, 96, 96, 6, 1e-3, 1.0, 1.0)
MERGE = MergeRecord(1, 1, 1, "everyone", (CONTRIBUTOR,), "rda", "bodies", 1, 2, "d" * 64, 0.1, 5.0, 3, 0.01, 2.0)
LEFT = GoneRecord(0, 1, GoneReason.LEFT, 96, 4.0)


def fold(*records: Record) -> Control:
    """A job of two fragments of the same size whose only Learner has one of them merged beyond its frontier."""
    control = new_control((10, 10), make_pool(run_config(decoupled()), ToyTask()))
    for record in (AdmitRecord(0, 1, "here", 1.0), MERGE, *records):
        control.apply(record)
    return control


@pytest.mark.parametrize(
    ("records", "repeated"),
    [
        pytest.param([LEFT], 48, id="while the job runs its work is done again"),
        pytest.param([FinishRecord("TokenBudgetReached", 3.0), LEFT], 0, id="after the end nobody does it again"),
        pytest.param([FinishRecord(None, 3.0), LEFT], 48, id="after a drain somebody may"),
        pytest.param([FinishRecord(None, 3.0), OpenRecord(2, 3.5, True), LEFT], 48, id="after a resume somebody does"),
    ],
)
def test_a_goodbye_makes_work_to_repeat_only_while_somebody_may_do_it(records: list[Record], repeated: int) -> None:
    totals = fold(*records).ledger.totals()
    assert totals.repeated == repeated
    assert (totals.trained, totals.merged, totals.discarded) == (96, 48, {"Left": 48})


def test_it_comes_back_from_a_snapshot_as_it_was() -> None:
    control = fold(FinishRecord("TokenBudgetReached", 3.0), LEFT)
    text = json.dumps(control.to_json())
    assert json.dumps(Control.from_json(json.loads(text)).to_json()) == text

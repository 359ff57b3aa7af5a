"""Numbers of incarnations."""

import pytest

from diloco_api.progress import LearnerProgress, LearnerState, Phase, Progress, TokenTotals
from diloco_api.status import LearnerStatus
from diloco_operator.planning.incarnations import newest_known


def heard(*learners: tuple[int, int]) -> Progress:
    rows = [
        LearnerProgress(
            index=index,
            incarnation=incarnation,
            site="local",
            live=False,
            heartbeat_age_seconds=0.0,
            step=1,
            token_clock=1,
            state=LearnerState.TRAINING,
        )
        for index, incarnation in learners
    ]
    return Progress(
        job_uid="u",
        epoch=1,
        phase=Phase.RUNNING,
        served_seconds=1,
        uptime_seconds=1,
        budget_tokens=1,
        percent=0,
        outer_steps=0,
        outer_rounds=0,
        tokens=TokenTotals(),
        learners=rows,
    )


def row(incarnation: int) -> LearnerStatus:
    return LearnerStatus(index=1, site="local", incarnation=incarnation, pod_name="pod", state="Running")


@pytest.mark.parametrize(
    ("known", "progress", "newest"),
    [
        pytest.param(None, None, 0, id="never started"),
        pytest.param(row(3), None, 3, id="known from the status"),
        pytest.param(None, heard((1, 4), (2, 9)), 4, id="known to the Synchronizer alone, the status was lost"),
        pytest.param(row(3), heard((1, 2)), 3, id="the status is newer"),
    ],
)
def test_no_incarnation_is_used_twice(known: LearnerStatus | None, progress: Progress | None, newest: int) -> None:
    assert newest_known(1, known, [], progress) == newest

"""A run in mid-course, as the Synchronizer and the operator would tell it."""

from diloco_api.progress import FragmentDigest, LearnerProgress, LearnerState, Phase, Progress, TokenTotals
from diloco_api.status import Condition, GoodputStatus, JobStatus, LearnerStatus, LearnerTimeStatus
from diloco_cli.view import Headline

HEADLINE = Headline("quickstart", "DecoupledDiLoCo", 3, 853_888, 10_000_000, "runs/quickstart")


def learner(index: int, incarnation: int = 1, **changes: object) -> LearnerProgress:
    known: dict[str, object] = {
        "index": index,
        "incarnation": incarnation,
        "site": "local",
        "live": True,
        "heartbeat_age_seconds": 1.0,
        "state": LearnerState.TRAINING,
        "step": 120,
        "token_clock": 245_760,
        "loss": 2.5,
        "staleness": 1,
        "step_seconds": 0.25,
        "state_seconds": {LearnerState.INIT: 4.0, LearnerState.TRAINING: 30.5},
    }
    return LearnerProgress.model_validate(known | changes)


def progress(**changes: object) -> Progress:
    known: dict[str, object] = {
        "job_uid": "0" * 32,
        "epoch": 1,
        "phase": Phase.RUNNING,
        "served_seconds": 40.0,
        "uptime_seconds": 38.0,
        "budget_tokens": 10_000_000,
        "percent": 42.5,
        "eta_seconds": 75.0,
        "tokens_per_second": 61_234.0,
        "outer_steps": 71,
        "outer_rounds": 2,
        "tokens": TokenTotals(
            trained=4_250_000, merged=4_000_000, overlap=50_000, discarded={"Gone": 100_000, "NonFinite": 50_000},
            in_flight=50_000, repeated=7_000,
        ),
        "loss_initial": 5.561,
        "bytes_up": 12_345_678,
        "bytes_down": 45_678_901,
        "learners": [
            learner(0),
            learner(1, 1, live=False, gone=True, step=40, state_seconds={LearnerState.TRAINING: 10.0}),
            learner(2),
            learner(1, 2, step=15, warmup_left=85),
        ],
        "digests": {10: FragmentDigest(version=3, digest="b" * 64), 2: FragmentDigest(version=2, digest="a" * 64)},
    }  # fmt: skip
    return Progress.model_validate(known | changes)


def status(phase: str = "Running", **changes: object) -> JobStatus:
    rows = [
        LearnerStatus(
            index=index, site="local", incarnation=2 if index == 1 else 1, pod_name=f"p{index}", state="Running"
        )
        for index in range(3)
    ]
    known: dict[str, object] = {
        "phase": phase,
        "learner_statuses": rows,
        "goodput": GoodputStatus(
            capacity="0.9712", accepted="0.9421", uptime="1.0000",
            learner_times=[
                LearnerTimeStatus(index=1, site="", milliseconds={"init": 1000}),
                LearnerTimeStatus(index=1, site="local", milliseconds={"init": 3000, "lost": 500, "training": 40_500}),
                LearnerTimeStatus(index=2, site="", milliseconds={"pending": 9000}),
            ],
        ),
    }  # fmt: skip
    return JobStatus.model_validate(known | changes)


def ended(condition: str, reason: str) -> list[Condition]:
    return [
        Condition(type="Accepted", status="True", reason="Valid", last_transition_time="2026-01-01T00:00:00Z"),
        Condition(type=condition, status="True", reason=reason, last_transition_time="2026-01-01T00:00:00Z"),
    ]

"""A Learner's heartbeat: its account as the message the Synchronizer keeps."""

from dataclasses import dataclass

from diloco_api.tokens import Identity
from diloco_trainer.learner.account import Report
from diloco_trainer.wire.gen import synchronizer_pb2 as pb


@dataclass(frozen=True)
class Self:
    """Who this Learner is."""

    identity: Identity
    site: str
    layout_digest: str
    metrics_port: int


def heartbeat(me: Self, report: Report, *, drained: bool) -> pb.HeartbeatRequest:
    """What is said of `report`; a step time of 0 and a loss of NaN mean: none yet."""
    return pb.HeartbeatRequest(
        index=me.identity.index,
        incarnation=me.identity.incarnation,
        state=report.state.value,
        step=report.step,
        job_step=report.job_step,
        token_clock=report.token_clock,
        step_seconds=report.step_seconds or 0.0,
        loss=report.loss,
        learning_rate=report.learning_rate,
        warmup_left=report.warmup_left,
        staleness=report.staleness,
        drained=drained,
        state_seconds={state.value: seconds for state, seconds in report.state_seconds.items()},
        bytes_up=report.bytes_up,
        bytes_down=report.bytes_down,
        digest_mismatches=report.digest_mismatches,
        metrics_port=me.metrics_port,
    )

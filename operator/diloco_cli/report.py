"""`report.json`: the result of one `diloco run` as a document other programs can rely on.

Pure: built from the last progress, the job's status and the drills. Field by field in docs/report.md; a test compares
the two. A change that would break a reader raises `SCHEMA_VERSION`.
"""

from collections import defaultdict
from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from diloco_api.progress import LearnerProgress, Progress
from diloco_api.states import ConditionType, GoodputState
from diloco_api.status import JobStatus
from diloco_cli.drill_plan import DrillState
from diloco_cli.view import Goodput, read_goodput

SCHEMA_VERSION = 1


class _Part(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, use_attribute_docstrings=True
    )


class TokensReport(_Part):
    """Tokens of the whole job: trained = merged + overlap + discarded + inFlight."""

    trained: float
    """Tokens the Learners computed gradients on."""
    merged: float
    """Tokens whose progress is in the outer parameters."""
    overlap: float
    """Tokens trained between a stage and the adoption that overwrote them."""
    repeated: float
    """Tokens leased a second time although some fragments had merged them already; not part of the sum."""
    discarded: float
    """Tokens thrown away, for whatever reason."""
    in_flight: float
    """Tokens trained, neither merged nor thrown away when the run ended."""


class LossReport(_Part):
    """Validation loss of the outer parameters, nats per token (with the byte-level model: per byte)."""

    initial: float | None
    """Of version 0; null when the run ended before it was evaluated."""
    final: float | None
    """Of the outer parameters this run left: the final ones of a Complete job, those a second run goes on from of a
    drained one; null where the run ended before it was evaluated."""


class GoodputReport(_Part):
    """Shares from 0 to 1; null when the run ended before they were known."""

    capacity: float | None
    """Learner-seconds spent training over Learner-seconds wanted."""
    accepted: float | None
    """Tokens merged over tokens the wanted Learners could have trained."""
    uptime: float | None
    """Share of the time in which outer steps advanced within their deadline."""


class BytesReport(_Part):
    """Payload bytes over the wire, of all Learners, resends included."""

    up: int
    """Contributions."""
    down: int
    """Published deltas and whole parameters."""


class LearnerReport(_Part):
    """One Learner index over all its incarnations."""

    index: int
    """Stable index."""
    site: str
    """Site of its newest incarnation."""
    incarnations: int
    """Incarnations the Synchronizer admitted; 0 where none ever reached it."""
    inner_steps: int
    """Inner steps of all of them, as last heard."""
    states: dict[GoodputState, float]
    """Seconds in each state; what goodput is made of."""


class DrillReport(_Part):
    """One `--drill` of this run."""

    kind: str
    """As on the command line."""
    target: int | None
    """Learner index; null for the Synchronizer."""
    at_seconds: float | None
    """When it struck, counted from the first outer step; null: the run ended before it could."""
    replaced_after_seconds: float | None
    """From the strike until the successor of what was killed was at work; null: nothing was replaced."""


class DigestReport(_Part):
    """State of one fragment at the end."""

    version: int
    """Outer steps it has taken."""
    digest: str
    """sha256 over epoch, fragment, version and the little-endian fp32 values, hex."""


class ReportV1(_Part):
    """The whole document."""

    schema_version: int = SCHEMA_VERSION
    """Layout of this document: 1."""
    phase: str
    """Complete, Failed or Stopped (drained; a second run with the same work folder resumes)."""
    reason: str
    """Why, one CamelCase word: TokenBudgetReached, StepBudgetReached, RoundBudgetReached, DataExhausted; Drained or
    Interrupted (a second Ctrl-C) where it was stopped; the reason of its condition where it Failed."""
    wall_seconds: float
    """Duration of this invocation, from its first process to its end."""
    outer_steps: int
    """Merges of all fragments."""
    outer_rounds: int
    """Outer steps of the fragment that has fewest."""
    tokens: TokensReport
    """What became of the tokens."""
    loss: LossReport
    """Validation loss before and after."""
    goodput: GoodputReport
    """How well the capacity was used."""
    bytes: BytesReport
    """Traffic."""
    learners: list[LearnerReport]
    """One entry per Learner index."""
    drills: list[DrillReport]
    """One entry per `--drill`, in the order given."""
    digests: dict[int, DigestReport] = Field(default={})
    """By fragment."""

    def to_json(self) -> str:
        """Two-space indented JSON with a newline at the end."""
        return self.model_dump_json(by_alias=True, indent=2) + "\n"


def make_report(
    status: JobStatus, progress: Progress, drills: Iterable[DrillState], wall_seconds: float, reason: str = ""
) -> ReportV1:
    """`progress` is the last one heard; `reason` is used where no condition of the job gives one."""
    tokens, goodput = progress.tokens, read_goodput(status)
    return ReportV1(
        phase=status.phase,
        reason=_reason(status) or reason,
        wall_seconds=round(wall_seconds, 3),
        outer_steps=progress.outer_steps,
        outer_rounds=progress.outer_rounds,
        tokens=TokensReport(
            trained=tokens.trained,
            merged=tokens.merged,
            overlap=tokens.overlap,
            repeated=tokens.repeated,
            discarded=sum(tokens.discarded.values()),
            in_flight=tokens.in_flight,
        ),
        loss=LossReport(initial=progress.loss_initial, final=progress.loss_final),
        goodput=_goodput(goodput),
        bytes=BytesReport(up=progress.bytes_up, down=progress.bytes_down),
        learners=_learners(status, progress.learners),
        drills=[_drill(state) for state in drills],
        digests={
            fragment: DigestReport(version=known.version, digest=known.digest)
            for fragment, known in sorted(progress.digests.items())
        },
    )


def _reason(status: JobStatus) -> str:
    """Reason of the condition that ended the job."""
    ended = {ConditionType.COMPLETE, ConditionType.FAILED}
    true = [
        condition.reason for condition in status.conditions if condition.type in ended and condition.status == "True"
    ]
    return true[0] if true else ""


def _goodput(goodput: Goodput) -> GoodputReport:
    return GoodputReport(capacity=goodput.capacity, accepted=goodput.accepted, uptime=goodput.uptime)


def _learners(status: JobStatus, admitted: Iterable[LearnerProgress]) -> list[LearnerReport]:
    """Of every index that was ever started, also of one the Synchronizer never admitted."""
    sites = {row.index: row.site for row in status.learner_statuses}
    by_index: dict[int, list[LearnerProgress]] = {index: [] for index in sites}
    for learner in admitted:
        by_index.setdefault(learner.index, []).append(learner)
    times = _states(status)
    return [_learner(index, sites.get(index, ""), by_index[index], times.get(index, {})) for index in sorted(by_index)]


def _states(status: JobStatus) -> dict[int, dict[GoodputState, float]]:
    """Seconds by index and state, over all sites, in the order of the states."""
    found: dict[int, dict[str, int]] = {}
    for row in status.goodput.learner_times:
        here = found.setdefault(row.index, defaultdict(int))
        for state, milliseconds in row.milliseconds.items():
            here[state] += milliseconds
    return {
        index: {state: here[state.value] / 1000 for state in GoodputState if state.value in here}
        for index, here in found.items()
    }


def _learner(
    index: int, site: str, incarnations: list[LearnerProgress], states: dict[GoodputState, float]
) -> LearnerReport:
    return LearnerReport(
        index=index,
        site=max(incarnations, key=lambda learner: learner.incarnation).site if incarnations else site,
        incarnations=len(incarnations),
        inner_steps=sum(learner.step for learner in incarnations),
        states=states,
    )


def _drill(state: DrillState) -> DrillReport:
    return DrillReport(
        kind=state.drill.kind.value,
        target=state.drill.target,
        at_seconds=_rounded(state.struck_seconds),
        replaced_after_seconds=_rounded(state.replaced_after_seconds),
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)

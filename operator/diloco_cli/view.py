"""What is shown of a run at one instant: a plain value between the run and the screens that print it.

Pure. `screen` draws it, `plain` prints it as lines; both show the same.
"""

from dataclasses import dataclass

from diloco_api.progress import LearnerProgress, LearnerState, Phase, Progress, TokenTotals
from diloco_api.states import ConditionType, LearnerPhase, Reason
from diloco_api.status import JobStatus
from diloco_api.timeouts import Timeouts
from diloco_operator.planning.conditions import find, is_final

_CLOSING = {
    Phase.CLOSING: "closing: one last round of every fragment",
    Phase.DRAINING: "draining: one last round of every fragment",
    Phase.COMPLETE: "everything is merged, the processes end",
    Phase.STOPPED: "everything is merged, the processes end",
}
"""Said instead of what is waited for, once the end has begun."""
PACE_KNOWN_SECONDS = 2 * Timeouts().heartbeat_seconds
"""Time a Learner has trained before a pace is worth telling: the first step of a process is far from typical."""
_ENDED_WELL = "Completed"
"""The kubelet's reason for a process that ended with 0; the state says it already."""


@dataclass(frozen=True, slots=True)
class Goodput:
    """The three shares of `status.goodput`; None where not known yet."""

    capacity: float | None = None
    accepted: float | None = None
    uptime: float | None = None


@dataclass(frozen=True, slots=True)
class LearnerRow:
    """One Learner index, its newest incarnation."""

    index: int
    site: str
    incarnation: int
    state: str
    note: str = ""
    """What is unusual: back-off, ramp of a replacement, silence."""
    step: int | None = None
    tokens: int | None = None
    tokens_per_second: float | None = None
    loss: float | None = None
    staleness: int | None = None


@dataclass(frozen=True, slots=True)
class Headline:
    """What does not change during a run."""

    job: str
    preset: str
    replicas: int
    parameters: int
    budget_tokens: int
    workdir: str


@dataclass(frozen=True, slots=True)
class View:
    """The run at one instant."""

    headline: Headline
    elapsed_seconds: float
    phase: str
    waiting_for: str | None
    """Start-up and interruptions: what the run waits for; None while it trains."""
    percent: float
    eta_seconds: float | None
    tokens_per_second: float | None
    outer_rounds: int
    outer_steps: int
    tokens: TokenTotals
    goodput: Goodput
    learners: tuple[LearnerRow, ...]
    message: str = ""


@dataclass(frozen=True, slots=True)
class Happening:
    """Something worth a line, and when it was."""

    elapsed_seconds: float
    text: str


@dataclass(frozen=True, slots=True)
class News:
    """How new what is known of the Synchronizer is."""

    answers: bool
    """It answered at the last look."""
    heard: bool
    """It has answered in this run; else its progress is of an earlier one."""


def make_view(
    headline: Headline, step_tokens: int, status: JobStatus, progress: Progress | None, elapsed: float, news: News
) -> View:
    """`step_tokens`: tokens of one inner step; `elapsed`: seconds of this run."""
    return View(
        headline=headline,
        elapsed_seconds=elapsed,
        phase=status.phase,
        waiting_for=waiting_for(status, progress if news.heard else None, news.answers),
        percent=min(100.0, progress.percent) if progress else 0.0,
        eta_seconds=_eta(progress) if progress and news.heard else None,
        tokens_per_second=progress.tokens_per_second if progress else None,
        outer_rounds=progress.outer_rounds if progress else 0,
        outer_steps=progress.outer_steps if progress else 0,
        tokens=progress.tokens if progress else TokenTotals(),
        goodput=read_goodput(status),
        learners=learner_rows(headline.replicas, step_tokens, status, progress),
        message=(progress.message or "") if progress else "",
    )


def waiting_for(status: JobStatus, progress: Progress | None, answers: bool) -> str | None:
    """What stands between now and training, in words; `progress` of this run."""
    progressing = find(status.conditions, ConditionType.PROGRESSING)
    if is_final(status.conditions) or (progressing is not None and progressing.reason == Reason.STOPPED):
        return None
    ready = find(status.conditions, ConditionType.SYNCHRONIZER_READY)
    if not answers and ready is not None and ready.reason == Reason.CRASH_LOOP:
        return f"the Synchronizer keeps crashing and is started again: {ready.message}"
    if progress is None:
        verb = "waiting for" if status.learner_statuses else "starting"
        return f"{verb} the Synchronizer: importing torch, building version 0"
    if progress.phase in _CLOSING:
        return _CLOSING[progress.phase]
    if not answers:
        return "the Synchronizer does not answer; Learners train on"
    live = sum(learner.live for learner in progress.learners)
    if live == 0:
        return "waiting for Learners: importing torch, pulling the parameters"
    if progress.outer_steps > 0:
        return None
    if progress.tokens.trained == 0:
        return f"{live} Learner{'s' if live > 1 else ''} joined, first inner steps"
    step = max(learner.job_step for learner in progress.learners)
    if progress.turns.announced == 0 and progress.turns.interval_seconds is None:
        return f"training, step {step}: the first outer step comes with the first exchange (syncEvery)"
    return f"training, step {step}: the first turn has been announced"


def _eta(progress: Progress) -> float | None:
    trained = [learner.state_seconds.get(LearnerState.TRAINING, 0.0) for learner in progress.learners if learner.live]
    return progress.eta_seconds if max(trained, default=0.0) >= PACE_KNOWN_SECONDS else None


def read_goodput(status: JobStatus) -> Goodput:
    shares = status.goodput
    return Goodput(*(float(text) if text else None for text in (shares.capacity, shares.accepted, shares.uptime)))


def learner_rows(
    replicas: int, step_tokens: int, status: JobStatus, progress: Progress | None
) -> tuple[LearnerRow, ...]:
    newest: dict[int, LearnerProgress] = {}
    for learner in progress.learners if progress else []:
        if learner.index not in newest or learner.incarnation > newest[learner.index].incarnation:
            newest[learner.index] = learner
    placed = {row.index: row for row in status.learner_statuses}
    rows = []
    for index in sorted({*range(replicas), *placed, *newest}):
        row, heard = placed.get(index), newest.get(index)
        if row is not None and heard is not None and heard.incarnation < row.incarnation:
            heard = None  # the new incarnation has not been heard yet
        rows.append(_row(index, step_tokens, heard, row.site if row else "", row.incarnation if row else 0,
                         row.state if row else "Pending", row.reason if row else ""))  # fmt: skip
    return tuple(rows)


def _row(
    index: int, step_tokens: int, heard: LearnerProgress | None, site: str, incarnation: int, phase: str, reason: str
) -> LearnerRow:
    if heard is None:
        return LearnerRow(index, site or "-", incarnation, phase, note=reason)
    return LearnerRow(
        index=index,
        site=heard.site,
        incarnation=heard.incarnation,
        state=_state(heard, phase),
        note=_note(heard, reason),
        step=heard.step,
        tokens=heard.token_clock,
        tokens_per_second=step_tokens / heard.step_seconds if heard.step_seconds and heard.live else None,
        loss=heard.loss,
        staleness=heard.staleness,
    )


def _state(heard: LearnerProgress, phase: str) -> str:
    """What the Learner says of itself while it is heard, else what the operator sees."""
    if heard.gone:
        return "left" if phase == LearnerPhase.RUNNING else phase
    return heard.state.value if heard.live else "unheard"


def _note(heard: LearnerProgress, reason: str) -> str:
    if heard.gone:
        return "" if reason == _ENDED_WELL else reason
    if not heard.live:
        return f"silent for {heard.heartbeat_age_seconds:.0f} s"
    return f"ramp, {heard.warmup_left} left" if heard.warmup_left > 0 else reason

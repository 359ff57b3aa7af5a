"""The job's progress as `Admin` tells it. Reads the engine's state, changes nothing."""

from diloco_api.progress import FragmentDigest, LearnerProgress, LearnerState, Phase, Progress, TokenTotals, TurnCounts
from diloco_trainer.synchronizer.core import Core
from diloco_trainer.synchronizer.enrolled import Enrolled
from diloco_trainer.synchronizer.finale import Finale


def progress(core: Core, finale: Finale) -> Progress:
    """Everything known of the job now. Runs on the engine thread."""
    now = core.now()
    control = core.control
    tokens = control.ledger.totals()
    useful = tokens.trained - sum(tokens.discarded.values())
    rate = core.tokens_per_second()
    phase = shown_phase(core, finale)
    served, up = core.uptime.totals(now)
    running = phase in (Phase.RUNNING, Phase.CLOSING)
    left = max(0.0, core.run.budget_tokens - useful)
    return Progress(
        job_uid=core.run.job_uid,
        epoch=core.context.epoch,
        phase=phase,
        reason=control.finish.reason if control.finish is not None and phase == Phase.COMPLETE else None,
        served_seconds=now - core.began_at,
        total_served_seconds=served,
        uptime_seconds=up,
        budget_tokens=core.run.budget_tokens,
        percent=100.0 * useful / core.run.budget_tokens,
        eta_seconds=left / rate if running and rate > 0 else None,
        tokens_per_second=rate if running else None,
        outer_steps=sum(state.version for state in core.fragments),
        outer_rounds=min(state.version for state in core.fragments),
        last_merge_age_seconds=_last_merge_age(core, now),
        tokens=tokens,
        loss_initial=control.loss_initial,
        loss_final=control.loss_final if phase in (Phase.COMPLETE, Phase.STOPPED) else None,
        turns=_turns(core),
        fenced_updates=core.counters.fenced_updates,
        bytes_up=core.counters.bytes_up,
        bytes_down=core.counters.bytes_down,
        learners=[_learner(core, item, now) for item in control.enrolled.values()],
        digests={
            state.index: FragmentDigest(version=state.version, digest=state.newest.digest) for state in core.fragments
        },
        message=_message(core, tokens),
    )


def shown_phase(core: Core, finale: Finale) -> Phase:
    """The phase for people and operator: the end is shown once its losses and files are on disk."""
    phase = core.phase()
    if phase == Phase.COMPLETE and not finale.over:
        return Phase.CLOSING
    if phase == Phase.STOPPED and not finale.over:
        return Phase.DRAINING
    return phase


def _last_merge_age(core: Core, now: float) -> float | None:
    """By this process's clock where it has merged, else by the wall clock of the last merge on record."""
    age = core.uptime.last_merge_age(now)
    if age is None and core.control.last_merge_wall is not None:
        return max(0.0, core.clock.wall() - core.control.last_merge_wall)
    return age


def _turns(core: Core) -> TurnCounts:
    return TurnCounts(
        announced=core.counters.turns_announced,
        skipped=core.counters.turns_skipped,
        void=core.counters.turns_void,
        interval_seconds=core.rounds.interval_seconds(),
        lengthened=core.rounds.pace.lengthened,
    )


def _learner(core: Core, item: Enrolled, now: float) -> LearnerProgress:
    seen = core.roster.find(item.who)
    totals = seen.totals if seen is not None else item.totals
    member = core.rounds.members.get(item.who)
    states = {state.value for state in LearnerState}
    return LearnerProgress(
        index=item.index,
        incarnation=item.incarnation,
        site=item.site,
        live=member is not None and member.live,
        gone=item.gone is not None,
        heartbeat_age_seconds=now - (seen.heard_at if seen is not None else core.began_at),
        state=LearnerState(totals.state) if totals.state in states else LearnerState.INIT,
        step=totals.step,
        job_step=totals.job_step,
        token_clock=max(totals.token_clock, core.control.ledger.clock(*item.who)),
        loss=totals.loss,
        staleness=totals.staleness,
        step_seconds=totals.step_seconds,
        learning_rate=totals.learning_rate,
        warmup_left=totals.warmup_left,
        metrics_port=totals.metrics_port,
        state_seconds={
            LearnerState(name): seconds
            for name, seconds in totals.state_seconds.items()
            if seconds > 0 and name in states
        },
        bytes_up=totals.bytes_up,
        bytes_down=totals.bytes_down,
        digest_mismatches=totals.digest_mismatches,
    )


def _message(core: Core, tokens: TokenTotals) -> str | None:
    """One line when something needs attention, the worst first."""
    unheard = sorted(m.index for m in core.rounds.members.values() if not m.alive)
    if unheard:
        return f"unheard: learners {unheard}"
    if core.rounds.pace.lengthened:
        return "turns come less often than syncEvery asks for: more than 5 % had to be skipped"
    refused = {reason: count for reason, count in tokens.discarded.items() if reason in ("NonFinite", "NormOutlier")}
    if refused:
        return "contributions were refused by the guard: " + ", ".join(
            f"{reason} ({count:.0f} tokens)" for reason, count in refused.items()
        )
    return None

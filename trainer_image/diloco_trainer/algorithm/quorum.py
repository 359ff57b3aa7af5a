"""When a round closes: quorum, adaptive grace and deadlines as pure questions, each with its reason.

Decoupled DiLoCo (arXiv 2604.21428, section 3 and equation 3): merge at K answers, after waiting for at most
gamma * slack more, slack = tau * xi_step - (xi_quorum + xi_sync), never below zero. Synchronous policies wait for all
expected Learners until a deadline.
"""

from dataclasses import dataclass
from statistics import median

from diloco_trainer.algorithm.round_state import FragmentRound, RoundConfig, RoundState

PATIENCE_STEPS = 2
"""Median inner steps a round waits for its quorum once as many Learners have answered in one way or another."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a round closes now, why, and if not, when time alone may change that (None: it cannot)."""

    close: bool
    reason: str
    look_again_at: float | None = None


def effective_quorum(min_quorum: int, num_live: int) -> int:
    """K cannot ask for more Learners than are alive, nor for none."""
    return max(1, min(min_quorum, num_live))


def quorum_of(state: RoundState) -> int:
    """The quorum with the Learners that are alive now."""
    return effective_quorum(state.config.min_quorum, len(state.live()))


def grace_seconds(
    config: RoundConfig, step_seconds: float | None, quorum_seconds: float, merge_seconds: float | None
) -> float:
    """How long to wait on after the quorum. 0 while the times the formula needs are unknown."""
    if config.grace_seconds is not None:
        return config.grace_seconds
    if config.grace_gamma is None or step_seconds is None:
        return 0.0
    slack = config.sync_delay * step_seconds - (quorum_seconds + (merge_seconds or 0.0))
    return max(0.0, config.grace_gamma * slack)


def round_deadline(config: RoundConfig, current: FragmentRound) -> float | None:
    """Absolute time at which a round that waits for everyone closes; None before its first counted body."""
    if current.first_at is None:
        return None
    usual = median(current.round_seconds) if current.round_seconds else 0.0
    return current.first_at + max(config.deadline_floor, config.deadline_factor * usual)


def judge(state: RoundState, current: FragmentRound, now: float) -> Verdict:
    """Whether the open round of a fragment closes at `now`."""
    if state.config.synchronous or current.closing:
        return _judge_everyone(state, current, now)
    return _judge_quorum(state, current, now)


def _judge_everyone(state: RoundState, current: FragmentRound, now: float) -> Verdict:
    missing = current.expected - current.answered
    if not current.closing:  # without work there is no step to answer with; only a closing round asks again
        missing -= {member.who for member in state.members.values() if member.drained}
    if not missing and (current.answers or current.closing):
        if current.expected or current.closing:
            return Verdict(True, "everyone expected answered")
        return Verdict(False, "nobody is expected")
    deadline = round_deadline(state.config, current)
    if current.closing and deadline is None:
        deadline = current.opened_at + state.config.deadline_floor
    if deadline is None:
        return Verdict(False, "no contribution yet")
    if now >= deadline:
        return Verdict(True, f"deadline, without learners {sorted(index for index, _ in missing)}")
    return Verdict(False, "waiting for everyone expected", look_again_at=deadline)


def _judge_lean(state: RoundState, current: FragmentRound, quorum: int, now: float) -> Verdict:
    """A round without its quorum, which late bodies and answers of nothing do not make.

    They must not wait for Learners that are lost and not yet known to be: who is going to answer does so in two steps,
    or in the time a body may be under way where that is longer.
    """
    step_seconds = state.median_step_seconds()
    if len(current.answered) < quorum or step_seconds is None:
        return Verdict(False, f"{current.num_counted} of {quorum} answers")
    patience_ends = current.opened_at + max(PATIENCE_STEPS * step_seconds, state.config.answer_patience)
    if now >= patience_ends:
        return Verdict(True, f"{current.num_counted} of {quorum} answers, and no more for a while")
    return Verdict(False, "the others may still answer", look_again_at=patience_ends)


def _judge_quorum(state: RoundState, current: FragmentRound, now: float) -> Verdict:
    live = state.live_whos()
    if live <= current.answered:
        return Verdict(True, "every live learner answered")
    quorum = quorum_of(state)
    if current.num_counted < quorum or current.quorum_at is None:
        return _judge_lean(state, current, quorum, now)
    merge_seconds = median(current.merge_seconds) if current.merge_seconds else None
    grace = grace_seconds(
        state.config, state.median_step_seconds(), current.quorum_at - current.opened_at, merge_seconds
    )
    if now >= current.quorum_at + grace:
        return Verdict(True, f"quorum of {quorum} and {grace:.3f} s of grace")
    return Verdict(False, "grace", look_again_at=current.quorum_at + grace)

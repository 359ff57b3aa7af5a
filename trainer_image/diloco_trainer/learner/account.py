"""What a Learner knows of itself: where its seconds went, steps, loss, bytes.

The training thread writes, the exchange thread and the metrics endpoint read; every access holds one lock. Nothing is
decided from it here.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median

from diloco_api.progress import LearnerState
from diloco_trainer.algorithm.goodput import PULSE_SECONDS, StateClock

_STEPS_REMEMBERED = 32
HANG_SECONDS = 60.0
HANG_STEPS = 20
"""A step that takes longer than this, and than so many others, hangs: from then on its Learner does not train."""


@dataclass(frozen=True)
class Report:
    """One reading."""

    state: LearnerState
    state_seconds: dict[LearnerState, float]
    step: int = 0
    job_step: int = 0
    token_clock: int = 0
    step_seconds: float | None = None
    """Median of the last inner steps."""
    loss: float = math.nan
    """Mean since the last heartbeat; NaN when there was no step."""
    learning_rate: float = 0.0
    warmup_left: int = 0
    taken_sequences: int = 0
    """Leased sequences that have been taken for training."""
    bytes_up: int = 0
    bytes_down: int = 0
    digest_mismatches: int = 0
    staleness: int = 0


@dataclass
class _Numbers:
    step: int = 0
    job_step: int = 0
    token_clock: int = 0
    learning_rate: float = 0.0
    warmup_left: int = 0
    taken_sequences: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    digest_mismatches: int = 0
    staleness: int = 0
    losses: list[float] = field(default_factory=list)


class Account:
    """Thread-safe; `clock` is the process's monotonic clock in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._entered_at = clock()
        self._states = StateClock(self._entered_at)
        self._numbers = _Numbers()
        self._step_times: deque[float] = deque(maxlen=_STEPS_REMEMBERED)

    def enter(self, state: LearnerState) -> None:
        """From now on the Learner is in `state`."""
        with self._lock:
            now = self._clock()
            self._entered_at = now
            if state is not self._states.state:
                self._states.enter(state, now)

    def beat_pulse(self) -> None:
        """Give a sign of life every second from a thread of its own, for as long as the process lives."""

        def beat() -> None:
            while True:
                self.pulse()
                time.sleep(PULSE_SECONDS)

        threading.Thread(target=beat, name="pulse", daemon=True).start()

    def pulse(self) -> None:
        """A sign of life: without them for a while, the process stood still."""
        with self._lock:
            now = self._clock()
            self._states.pulse(now)
            usual = median(self._step_times) if self._step_times else math.inf
            if self._states.state is LearnerState.TRAINING and now - self._entered_at > max(
                HANG_SECONDS, HANG_STEPS * usual
            ):
                self._states.enter(LearnerState.STALLED, now)

    def stepped(
        self, *, step: int, job_step: int, token_clock: int, seconds: float, loss: float, rate: float, warmup_left: int
    ) -> None:
        """An inner step is done."""
        with self._lock:
            self._step_times.append(seconds)
            self._numbers.losses.append(loss)
            self._numbers = replace(
                self._numbers,
                step=step,
                job_step=job_step,
                token_clock=token_clock,
                learning_rate=rate,
                warmup_left=warmup_left,
            )

    def took(self, num_sequences: int) -> None:
        with self._lock:
            self._numbers.taken_sequences += num_sequences

    def sent(self, num_bytes: int) -> None:
        with self._lock:
            self._numbers.bytes_up += num_bytes

    def received(self, num_bytes: int) -> None:
        with self._lock:
            self._numbers.bytes_down += num_bytes

    def mismatched(self) -> None:
        with self._lock:
            self._numbers.digest_mismatches += 1

    def stale_by(self, versions: int) -> None:
        with self._lock:
            self._numbers.staleness = versions

    @property
    def step_seconds(self) -> float | None:
        """Median of the last inner steps; None before the first."""
        with self._lock:
            return median(self._step_times) if self._step_times else None

    def report(self, *, forget_losses: bool = False) -> Report:
        """Everything as of now; `forget_losses` starts a new mean."""
        with self._lock:
            numbers = self._numbers
            losses = [loss for loss in numbers.losses if math.isfinite(loss)]
            if forget_losses:
                self._numbers = replace(numbers, losses=[])
            return Report(
                state=self._states.state,
                state_seconds=self._states.totals(self._clock()),
                step=numbers.step,
                job_step=numbers.job_step,
                token_clock=numbers.token_clock,
                step_seconds=median(self._step_times) if self._step_times else None,
                loss=sum(losses) / len(losses) if losses else math.nan,
                learning_rate=numbers.learning_rate,
                warmup_left=numbers.warmup_left,
                taken_sequences=numbers.taken_sequences,
                bytes_up=numbers.bytes_up,
                bytes_down=numbers.bytes_down,
                digest_mismatches=numbers.digest_mismatches,
                staleness=numbers.staleness,
            )

"""Watches one run: looks at it ten times a second, carries out drills, listens to Ctrl-C, tells the display.

Owns no decision about the job: those are the operator's. Signals to processes are sent here and nowhere else.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from diloco_api.states import ConditionType
from diloco_cli.display import Display
from diloco_cli.drill_plan import DrillPlan, Seen, Signal, announcements
from diloco_cli.drills import Drill
from diloco_cli.run_seam import EventReader, Run
from diloco_cli.sight import look
from diloco_cli.view import Happening, Headline, News, View, make_view
from diloco_operator.local import LocalOutcome
from diloco_operator.planning.conditions import is_true

TICK_SECONDS = 0.1
_DRAINING = "stopping: merging what is trained (Ctrl-C again ends at once)"
_ENDING = "ending all processes now"


class Session:
    """Watches one run until it ends."""

    def __init__(
        self,
        run: Run,
        headline: Headline,
        step_tokens: int,
        drills: Sequence[Drill],
        resumed: bool,
        nobody_reads: Callable[[], None] = lambda: None,
    ) -> None:
        """`step_tokens`: tokens of one inner step; `resumed`: the job may have taken outer steps before this run.

        `nobody_reads` is called once when the terminal is closed or the reader of the output has ended.
        """
        self.drills = DrillPlan.of(list(drills))
        self.stop_requests = 0
        self.was_complete: bool | None = None
        """The job was Complete before this run; None before the first look."""
        self._problem = ""
        self._run = run
        self.headline = headline
        self._step_tokens = step_tokens
        self._nobody_reads = nobody_reads
        self._unread = False
        self._began = time.monotonic()
        self._events = EventReader(run.folder)
        self._heard = False
        self._steps_before: int | None = None if resumed else 0

    @property
    def stop_reason(self) -> str:
        """Drained or Interrupted where the run was asked to stop, else empty."""
        return ("", "Drained", "Interrupted")[min(self.stop_requests, 2)]

    @property
    def elapsed_seconds(self) -> float:
        return time.monotonic() - self._began

    async def watch(self, display: Display) -> LocalOutcome:
        """Until the run is over; what it raises is raised here."""
        run = asyncio.create_task(self._run.run(), name="run")
        with self._listening(display):
            try:
                while not run.done():
                    self._look(display)
                    await asyncio.wait([run], timeout=TICK_SECONDS)
            finally:
                self._send(self.drills.release(self._seen()), display)
                if not run.done():
                    run.cancel()
                    await asyncio.wait([run])
            self._look(display)
        return await run

    def _look(self, display: Display) -> None:
        for message in self._events.new():
            self._say(display, message)
        observed = self._run.observed
        if self.was_complete is None and observed is not None:
            self.was_complete = is_true(observed.status.conditions, ConditionType.COMPLETE)
        if observed is not None and observed.problem not in ("", self._problem):
            self._problem = observed.problem
            self._say(display, f"trouble: {observed.problem}")
        before = list(self.drills.states)
        if self.stop_requests == 0:
            self._send(self.drills.advance(self._seen(), time.monotonic()), display)
        for text in announcements(before, self.drills.states):
            self._say(display, text)
        view = self._view()
        if view is not None:
            self._print(display, lambda: display.show(view))

    def _seen(self) -> Seen:
        observed = self._run.observed
        if self._steps_before is None and observed is not None and observed.fresh and observed.progress is not None:
            self._steps_before = observed.progress.outer_steps
        return look(self._run, self._steps_before)

    def _view(self) -> View | None:
        seen = self._run.observed
        if seen is None:
            return None
        self._heard = self._heard or seen.fresh
        news = News(seen.fresh, self._heard)
        return make_view(self.headline, self._step_tokens, seen.status, seen.progress, self.elapsed_seconds, news)

    def _say(self, display: Display, text: str) -> None:
        self._print(display, lambda: display.happened(Happening(self.elapsed_seconds, text)))

    def _print(self, display: Display, what: Callable[[], None]) -> None:
        """A screen that has gone away is a wish to stop, like the signal that usually comes with it."""
        try:
            what()
        except OSError:
            self._lose_screen(display)

    def _lose_screen(self, display: Display) -> None:
        if self._unread:
            return
        self._unread = True
        self._nobody_reads()
        if self.stop_requests == 0:
            self._ask_to_stop(display)

    def _ask_to_stop(self, display: Display) -> None:
        """The first time in good order, then at once."""
        self.stop_requests += 1
        if self.stop_requests == 1:
            self._run.drain()
        else:
            self._run.stop_now()
        self._send(self.drills.release(self._seen()), display)
        self._say(display, _DRAINING if self.stop_requests == 1 else _ENDING)

    def _send(self, signals: Sequence[Signal], display: Display) -> None:
        for what in signals:
            try:
                os.kill(what.pid, getattr(signal, what.name))
            except ProcessLookupError:
                self._say(display, f"drill: process {what.pid} had ended by itself")
                continue
            if what.why:
                self._say(display, what.why)

    @contextmanager
    def _listening(self, display: Display) -> Iterator[None]:
        """Ctrl-C and SIGTERM: the first drains, the second ends at once. A closed terminal drains."""
        loop = asyncio.get_running_loop()
        answers: dict[signal.Signals, Callable[[Display], None]] = {
            signal.SIGINT: self._ask_to_stop,
            signal.SIGTERM: self._ask_to_stop,
        }
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup: the run shall outlive its terminal
            answers[signal.SIGHUP] = self._lose_screen
        for number, answer in answers.items():
            loop.add_signal_handler(number, answer, display)
        try:
            yield
        finally:
            for number in answers:
                loop.remove_signal_handler(number)

"""Shows a run while it goes on: a live picture in a terminal, plain lines elsewhere. Decides nothing."""

import os
import stat
import time
from types import TracebackType
from typing import Protocol

from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner

from diloco_cli import plain
from diloco_cli.screen import draw
from diloco_cli.view import Happening, Headline, View

PICTURE_EVERY_SECONDS = 0.25
PLAIN_WIDTH = 120


class Display(Protocol):
    """Somewhere a run is shown; used as a context manager."""

    def __enter__(self) -> "Display": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def happened(self, what: Happening) -> None:
        """Something worth a line."""

    def show(self, view: View) -> None:
        """The present state; called often, shown now and then."""


class PlainDisplay:
    """Lines on a stream that is not a terminal."""

    def __init__(self, console: Console, headline: Headline) -> None:
        self._console = console
        self._headline = headline
        self._said_at: float | None = None
        self._said = ""

    def __enter__(self) -> "PlainDisplay":
        self._print(plain.headline(self._headline))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def happened(self, what: Happening) -> None:
        self._print(plain.happening(what))

    def show(self, view: View) -> None:
        waiting = view.waiting_for or ""
        due = self._said_at is None or view.elapsed_seconds - self._said_at >= plain.LINE_EVERY_SECONDS
        if due or (waiting and waiting != self._said):
            self._said_at, self._said = view.elapsed_seconds, waiting
            self._print(plain.line(view))

    def _print(self, line: str) -> None:
        self._console.file.write(line + "\n")
        self._console.file.flush()


class LiveDisplay:
    """A picture that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._spinner = Spinner("dots", style="yellow")
        self._happenings: list[Happening] = []
        self._drawn_at = 0.0
        self._last: View | None = None

    def __enter__(self) -> "LiveDisplay":
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._last is not None:
            self._draw(self._last)
        self._live.__exit__(kind, error, trace)

    def happened(self, what: Happening) -> None:
        self._happenings.append(what)

    def show(self, view: View) -> None:
        self._last = view
        if time.monotonic() - self._drawn_at >= PICTURE_EVERY_SECONDS:
            self._draw(view)

    def _draw(self, view: View) -> None:
        self._drawn_at = time.monotonic()
        self._live.update(draw(view, self._happenings, self._console.width, self._spinner), refresh=True)


def make_display(console: Console, headline: Headline) -> Display:
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(console, headline)


def make_console() -> Console:
    """Standard output; without a terminal wide enough that nothing need be wrapped."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)


def print_last(console: Console, what: RenderableType) -> None:
    """Print a finished table; without a terminal without the blanks that fill its lines."""
    if console.is_terminal:
        console.print(what)
        return
    with console.capture() as captured:
        console.print(what)
    console.file.write("\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n")


def silence() -> None:
    """Nobody reads any more: what is still said goes nowhere instead of failing. Regular files are written on."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.dup2(nowhere, descriptor)
    os.close(nowhere)

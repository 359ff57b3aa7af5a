"""On which thread the engine runs, and on which its long work.

In the process: one engine thread with a mailbox, one worker thread per kind of work. Under scripted time: everything on
the caller's thread, finished before `post` returns. The engine itself cannot tell which.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Protocol, TypeVar

T = TypeVar("T")
Command = Callable[[], None]


class Served(Protocol):
    """What a runner drives; all methods are called on one thread."""

    def after_batch(self) -> None:
        """The commands at hand have been executed: make their records durable."""

    def tick(self) -> float:
        """Time has passed; returns the seconds after which to be called again."""


class Runner(Protocol):
    """Executes commands one after another."""

    def serve(self, served: Served) -> None:
        """Begin; commands posted before wait until now."""

    def post(self, command: Command) -> None:
        """Execute `command` on the engine's thread; callable from any thread."""

    def close(self) -> None:
        """Execute what has been posted, then stop."""


class Worker(Protocol):
    """Does one piece of long work at a time."""

    def submit(self, work: Callable[[], T], done: Callable[[T], None], failed: Callable[[BaseException], None]) -> None:
        """Run `work`, then one of the two others on the engine's thread."""

    def close(self) -> None:
        """Wait for what runs."""


class ThreadRunner:
    """An engine thread. An exception that escapes a command ends it and is handed to `on_crash`."""

    def __init__(self, on_crash: Callable[[BaseException], None]) -> None:
        self._queue: SimpleQueue[Command | None] = SimpleQueue()
        self._on_crash = on_crash
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._served: Served | None = None

    def serve(self, served: Served) -> None:
        self._served = served
        self._thread.start()

    def post(self, command: Command) -> None:
        self._queue.put(command)

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as error:  # noqa: BLE001 - the outermost loop of the engine: the process must hear of it
            self._on_crash(error)

    def _loop(self) -> None:
        assert self._served is not None
        wait = 0.0
        while True:
            try:
                command = self._queue.get(timeout=wait) if wait > 0 else self._queue.get_nowait()
            except Empty:
                wait = self._served.tick()
                self._served.after_batch()
                continue
            while command is not None:
                command()
                try:
                    command = self._queue.get_nowait()
                except Empty:
                    break
            else:
                self._served.after_batch()
                return
            wait = self._served.tick()
            self._served.after_batch()


class InlineRunner:
    """Everything on the thread that posts; commands posted by commands run after them."""

    def __init__(self) -> None:
        self._queue: deque[Command] = deque()
        self._served: Served | None = None
        self._running = False

    def serve(self, served: Served) -> None:
        self._served = served
        self._drain()

    def post(self, command: Command) -> None:
        self._queue.append(command)
        self._drain()

    def close(self) -> None:
        self._drain()

    def _drain(self) -> None:
        if self._running or self._served is None:
            return
        self._running = True
        try:
            while self._queue:
                while self._queue:
                    self._queue.popleft()()
                self._served.after_batch()
        finally:
            self._running = False


class ThreadWorker:
    """One thread."""

    def __init__(self, name: str, post: Callable[[Command], None]) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._post = post

    def submit(self, work: Callable[[], T], done: Callable[[T], None], failed: Callable[[BaseException], None]) -> None:
        def run() -> None:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - the outermost loop of this thread
                caught = error
                self._post(lambda: failed(caught))
            else:
                self._post(lambda: done(result))

        self._pool.submit(run)

    def close(self) -> None:
        self._pool.shutdown(wait=True)


class InlineWorker:
    """The caller's thread, at once; an exception escapes to the caller."""

    def __init__(self, post: Callable[[Command], None]) -> None:
        self._post = post

    def submit(self, work: Callable[[], T], done: Callable[[T], None], failed: Callable[[BaseException], None]) -> None:
        result = work()
        self._post(lambda: done(result))

    def close(self) -> None:
        pass

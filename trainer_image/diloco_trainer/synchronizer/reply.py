"""How the engine answers: once, from its own thread, to whoever asked.

`Reply` is the seam; `FutureReply` carries the answer to an asyncio loop. An asker that has gone away is no error.
"""

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Reply(Protocol[T_contra]):
    """Exactly one of the two methods is called."""

    def ok(self, value: T_contra) -> None: ...

    def fail(self, error: Exception) -> None: ...


class FutureReply(Generic[T]):
    """Completes a future of another thread's loop (or of this thread's, under scripted time)."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self._loop.create_future()

    def ok(self, value: T) -> None:
        def complete() -> None:
            if not self.future.done():
                self.future.set_result(value)

        self._call(complete)

    def fail(self, error: Exception) -> None:
        def complete() -> None:
            if not self.future.done():
                self.future.set_exception(error)

        self._call(complete)

    def _call(self, action: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(action)

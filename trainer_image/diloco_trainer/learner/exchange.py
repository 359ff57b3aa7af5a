"""The exchange thread: an event loop of its own that runs the session with the Synchronizer.

The training thread talks to it through `post` and listens on a queue; nothing else is shared but the account, the
tape and one clock reading. It ends by saying `Ended`, whatever happens.
"""

import asyncio
import queue
import random
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor

from diloco_api.exit_codes import ExitCode
from diloco_api.reach import Failure, Unreached
from diloco_api.run_config import RunConfig
from diloco_trainer.algorithm.fragments import FragmentLayout
from diloco_trainer.learner.account import Account
from diloco_trainer.learner.downlink import Downlink
from diloco_trainer.learner.heartbeat import Self
from diloco_trainer.learner.messages import Ended, ToExchange, ToTraining
from diloco_trainer.learner.patience import JoinAgain, Orphaned, Patience
from diloco_trainer.learner.session import Session
from diloco_trainer.learner.tape import Tape
from diloco_trainer.learner.transfers import Transfers
from diloco_trainer.learner.uplink import Uplink
from diloco_trainer.wire.errors import (
    CertificateRefused,
    Fenced,
    Reason,
    Refused,
    SynchronizerFault,
    SynchronizerUnavailable,
    Unauthenticated,
    WireError,
)
from diloco_trainer.wire.service import Synchronizer

BROKEN = 1
"""Exit code of a process that broke down: a traceback says more."""


class Exchange:
    """Starts with `start`, ends after a `Depart` or by an error."""

    def __init__(
        self,
        make_client: Callable[[], Synchronizer],
        run: RunConfig,
        me: Self,
        layout: FragmentLayout,
        *,
        account: Account,
        tape: Tape,
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self._make_client = make_client
        self._run = run
        self._me = me
        self._layout = layout
        self._account = account
        self._tape = tape
        self._patience = Patience(clock, rng, run.timeouts.orphan_timeout_seconds)
        self.inbox: queue.SimpleQueue[ToTraining] = queue.SimpleQueue()
        """What the training thread has to know."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: Session | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, name="exchange", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()

    def join(self, timeout_seconds: float | None = None) -> None:
        """Wait for the thread's end."""
        self._thread.join(timeout_seconds)

    def post(self, message: ToExchange) -> None:
        """From the training thread; after the end it has no effect."""
        if self._loop is None or self._session is None or self._loop.is_closed():
            return
        try:
            self._loop.call_soon_threadsafe(self._session.mail.put_nowait, message)
        except RuntimeError:
            return  # the loop was closed in between; `Ended` is in the inbox

    @property
    def unheard_seconds(self) -> float:
        """Seconds since the Synchronizer was last heard."""
        return self._patience.unheard_seconds

    def _main(self) -> None:
        ended = Ended(BROKEN, "the exchange thread broke down")
        try:
            asyncio.run(self._talk())
            ended = Ended(ExitCode.COMPLETE, "")
        except (WireError, Orphaned, JoinAgain) as error:
            ended = Ended(_exit_code(error), _line(error))
        finally:
            self._ready.set()
            self.inbox.put(ended)
            self._tape.flush()

    async def _talk(self) -> None:
        policy, identity = self._run.policy, self._me.identity
        uplink = Uplink(identity, self._layout, policy, self._run.train.seed)
        client = self._make_client()

        with ThreadPoolExecutor(1, thread_name_prefix="payload") as helper:

            def make_transfers(spawn: "Callable[[Coroutine[None, None, None]], asyncio.Task[None]]") -> Transfers:
                return Transfers(
                    client,
                    identity,
                    self._layout,
                    uplink,
                    Downlink(policy.encode_down),
                    account=self._account,
                    tape=self._tape,
                    patience=self._patience,
                    helper=helper,
                    tell=self.inbox.put,
                    spawn=spawn,
                )

            session = Session(
                client,
                self._run,
                self._me,
                account=self._account,
                tape=self._tape,
                patience=self._patience,
                make_transfers=make_transfers,
                tell=self.inbox.put,
            )
            self._loop, self._session = asyncio.get_running_loop(), session
            self._ready.set()
            try:
                await session.run()
            finally:
                await client.close()


def _line(error: Exception) -> str:
    """Begins with the step of the way to the Synchronizer that failed, where it was the last one."""
    return str(Unreached(Failure.AUTH, str(error)) if isinstance(error, Unauthenticated) else error)


def _exit_code(error: Exception) -> int:
    match error:
        case Orphaned():
            return ExitCode.ORPHANED
        case CertificateRefused():
            return ExitCode.TLS
        case Unauthenticated():
            return ExitCode.UNAUTHENTICATED
        case Fenced():
            return ExitCode.FENCED
        case Refused(reason=Reason.JOB_ENDED):
            return ExitCode.JOB_ENDED
        case SynchronizerFault() | SynchronizerUnavailable() | JoinAgain():
            return BROKEN
    return ExitCode.INCOMPATIBLE

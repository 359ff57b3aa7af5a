"""The Learner process: one incarnation of one Learner, from its environment to its exit code."""

import logging
import os
import random
import signal
import sys
import time
from typing import NoReturn

import torch

from diloco_api.errors import SpecError
from diloco_api.exit_codes import ExitCode
from diloco_api.names import FILE_TAPE, server_name
from diloco_api.run_config import RunConfig, read_run_config
from diloco_api.tokens import Identity
from diloco_trainer.algorithm.codec import CodecUnavailable, make_codec
from diloco_trainer.learner.account import Account
from diloco_trainer.learner.core import LearnerCore
from diloco_trainer.learner.device import DeviceUnusable, describe
from diloco_trainer.learner.exchange import Exchange
from diloco_trainer.learner.heartbeat import Self
from diloco_trainer.learner.loop import Link, TrainingLoop
from diloco_trainer.learner.messages import Depart, Ended
from diloco_trainer.learner.metrics import LOOPBACK, Place, serve_metrics
from diloco_trainer.learner.settings import Settings, read_settings
from diloco_trainer.learner.tape import Tape
from diloco_trainer.task.errors import DataError
from diloco_trainer.task.task import make_task
from diloco_trainer.wire.client import SynchronizerClient
from diloco_trainer.wire.errors import PortInUse
from diloco_trainer.wire.protocol import every_address
from diloco_trainer.wire.tls import ClientTls, Credentials

logger = logging.getLogger(__name__)


def main() -> int:
    """Run to the end; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        settings = read_settings(os.environ)
        run = read_run_config(settings.run_config)
        ended = _learn(settings, run)
    except DataError as error:
        ended = Ended(ExitCode.DATA_ERROR, str(error))
    except DeviceUnusable as error:
        ended = Ended(ExitCode.DEVICE, str(error))
    except PortInUse as error:
        ended = Ended(ExitCode.PORT_IN_USE, str(error))
    except (SpecError, CodecUnavailable) as error:
        ended = Ended(ExitCode.BAD_CONFIG, str(error))
    if ended.line:
        print(f"error: {ended.line}", file=sys.stderr, flush=True)
    return ended.code


def _tls(settings: Settings, run: RunConfig) -> ClientTls | None:
    """Raises SpecError when the files are missing or no certificates."""
    if not run.tls:
        return None
    own = Credentials(settings.credentials)
    own.check()
    return ClientTls(own, server_name(run.job_uid))


def _learn(settings: Settings, run: RunConfig) -> Ended:
    tls = _tls(settings, run)
    clock = time.monotonic
    account = Account(clock)
    account.beat_pulse()
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    torch.manual_seed(run.train.seed)
    for kind in {run.policy.encode_up, run.policy.encode_down}:
        make_codec(kind).self_test()
    task = make_task(run.train)
    _ = task.num_sequences  # reads the text now: what is wrong with it is found before anyone counts on this Learner
    try:
        core = LearnerCore(task, run.train, run.policy, settings.device)
    except ValueError as error:  # more fragments than tensors, a head that cannot be split
        raise SpecError(str(error)) from error
    tape = Tape(settings.scratch / FILE_TAPE if settings.scratch else None)
    identity = Identity(run.job_uid, settings.index, settings.incarnation)
    place = Place(run.job_name, run.job_namespace, settings.site, settings.index)
    port = serve_metrics(account, place, run.learner_metrics_port, every_address() if run.tls else LOOPBACK)
    rng = random.Random()

    def make_client() -> SynchronizerClient:
        return SynchronizerClient(settings.addresses, settings.token, rng=rng, timeouts=run.timeouts, tls=tls)

    me = Self(identity, settings.site, core.layout.digest, port)
    exchange = Exchange(make_client, run, me, core.layout, account=account, tape=tape, clock=clock, rng=rng)
    link = Link(exchange.inbox, exchange.post, lambda: exchange.unheard_seconds)
    loop = TrainingLoop(task, core, run, link, account=account, tape=tape, clock=clock)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: loop.stop())
    logger.info("training on %s", describe(settings.device))
    exchange.start()
    try:
        return loop.run()
    finally:
        seconds = run.timeouts.failed_goodbye_seconds
        exchange.post(Depart("Failed", within_seconds=seconds))  # no effect where it has left already
        exchange.join(timeout_seconds=2 * seconds)
        tape.flush()


def end(code: int) -> NoReturn:
    """End the process here and now.

    Nothing is left to be done: the tape is written, the exchange thread is over, the Synchronizer has been told. An
    orderly end of the interpreter would spend a second or more on taking torch down, and wait for threads that an
    error may have left behind.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

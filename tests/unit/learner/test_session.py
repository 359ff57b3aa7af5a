"""The conversation of a Learner with the Synchronizer, against a client that says what the test wants."""

import asyncio
from types import SimpleNamespace

import pytest

from diloco_api.tokens import Identity
from diloco_trainer.learner.account import Account
from diloco_trainer.learner.messages import Depart
from diloco_trainer.learner.patience import Patience
from diloco_trainer.learner.session import Self, Session
from diloco_trainer.learner.tape import Tape
from diloco_trainer.wire.errors import Reason, Refused
from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from fakes import sync_jobs

IDENTITY = Identity(sync_jobs.UID, 0, 1)


class ForgetfulClient:
    """Forgets the Learner as soon as it says goodbye; `slow_goodbye` keeps the answer to that back."""

    def __init__(self, *, slow_goodbye):
        self.slow_goodbye = slow_goodbye
        self.joins = 0
        self.forgotten = asyncio.Event()

    async def join(self, request):
        self.joins += 1
        return pb.JoinReply(epoch=1, started=True, heartbeat_seconds=0.001)

    async def heartbeat(self, request):
        if self.forgotten.is_set():
            raise Refused(Reason.NOT_ADMITTED, "join first")
        return pb.HeartbeatReply(phase=pb.COMPLETE)

    async def turns(self):
        yield pb.Notice(phase=pb.COMPLETE)
        await asyncio.Event().wait()

    async def lease(self, request):
        return pb.LeaseReply(exhausted=True)

    async def leave(self, request):
        self.forgotten.set()
        if self.slow_goodbye:
            await asyncio.Event().wait()


class NoTransfers:
    """Nothing is under way."""

    def __init__(self):
        self.uplink = SimpleNamespace(is_quiet=True)

    async def restore(self, reply):
        pass

    async def delivered(self, within_seconds):
        pass

    def resend_open(self):
        pass


@pytest.mark.parametrize("slow_goodbye", [True, False])
async def test_a_call_that_comes_after_the_goodbye_does_not_make_it_join_again(slow_goodbye):
    clock = asyncio.get_running_loop().time
    client, told = ForgetfulClient(slow_goodbye=slow_goodbye), []
    session = Session(
        client,
        sync_jobs.run_config(sync_jobs.decoupled()),
        Self(IDENTITY, "here", "", 0),
        account=Account(clock),
        tape=Tape(None),
        patience=Patience(clock, None, 60.0),
        make_transfers=lambda spawn: NoTransfers(),
        tell=told.append,
    )
    async with asyncio.timeout(10):
        running = asyncio.create_task(session.run())
        while not told:  # it has heard that the job is complete
            await asyncio.sleep(0)
        session.mail.put_nowait(Depart("JobOver", within_seconds=60.0))
        await running
    assert client.joins == 1

"""What a user sees of gRPC on the terminal: nothing."""

import subprocess
import sys

_SCRIPT = """
import asyncio, tempfile
from contextlib import aclosing
from pathlib import Path
from fakes.exchanges import GrpcExchange
from fakes.synchronizer_backend import FakeBackend, join_request
from diloco_trainer.wire.errors import PortInUse, SynchronizerUnavailable

async def main():
    folder = Path(tempfile.mkdtemp())
    backend = FakeBackend()
    exchange = await GrpcExchange.start(backend, folder)
    try:
        await GrpcExchange.start(backend, folder, port=exchange.server.port)
    except PortInUse:
        print("in use")
    learner = exchange.learner(call_retry_seconds=0.3)
    await learner.join(join_request())
    async with aclosing(learner.turns()) as notices:
        await anext(notices)
        await exchange.server.stop(0)
        try:
            await anext(notices)
        except SynchronizerUnavailable:
            print("broken")
    try:
        await learner.join(join_request())
    except SynchronizerUnavailable:
        print("unavailable")
    await exchange.close()

asyncio.run(main())
"""


def test_lost_connections_and_taken_ports_write_nothing_to_the_terminal() -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{_SCRIPT}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split("\n") == ["in use", "broken", "unavailable", ""]
    assert done.stderr == ""

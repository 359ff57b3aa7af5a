"""The product's Synchronizer under scripted time: its real engine behind its real wire, and the tiny jobs it serves.

Nothing sleeps: the engine runs on the caller's thread under a manual clock and logs into a real folder; messages travel
over gRPC on loopback. No algorithm is written here.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import builders
from diloco_api.accept import Ports, make_run_config, resolve_job
from diloco_api.run_config import RunConfig
from diloco_trainer.synchronizer.assembly import EPOCH, inline
from diloco_trainer.synchronizer.engine import Engine
from diloco_trainer.synchronizer.state import FragmentState
from diloco_trainer.task.task import Task, make_task
from fakes.clock import ManualClock
from fakes.exchanges import GrpcExchange
from reference import arithmetic
from reference.diloco import Version

if TYPE_CHECKING:
    from reference.hand_learner import HandLearner


def text_file(folder: Path, lines: int) -> Path:
    """A small text whose bytes can be predicted from those before."""
    text = [f"line {number}: {'abcdefghij'[number % 10] * (number % 7)} {number * number}\n" for number in range(lines)]
    path = folder / "text.txt"
    path.write_text("".join(text), encoding="utf-8")
    return path


def run_config(
    folder: Path, preset: str, *, replicas: int, steps: int, changes: dict[str, object], lines: int = 900
) -> RunConfig:
    """A tiny model and a small text: hidden 16, one layer, sequences of 16 bytes, `steps` inner steps per Learner."""
    spec: dict[str, object] = {
        "train.data.uri": str(text_file(folder, lines)),
        "train.data.sequenceLength": 16,
        "train.model": {"layers": 1, "hidden": 16, "heads": 2},
        "train.batch.sequences": 4,
        "train.schedule.warmupSteps": 3,
        "train.optimizer.learningRate": 3e-3,
        "learners.replicas": replicas,
        "budget.innerSteps": steps,
    }
    job = builders.job({**spec, **changes}, preset=preset)
    return make_run_config(job, resolve_job(job), Ports(0, 0, 0, 0))


@dataclass
class Scripted:
    """A Synchronizer whose time stands still; remembers every version there was."""

    run: RunConfig
    task: Task
    clock: ManualClock
    engine: Engine
    exchange: GrpcExchange
    fragments: list[FragmentState]
    versions: list[Version] = field(default_factory=list)
    learners: "list[HandLearner]" = field(default_factory=list)
    serving: bool = True

    @classmethod
    async def start(cls, run: RunConfig, folder: Path) -> "Scripted":
        task, clock = make_task(run.train), ManualClock()
        made = inline(run, task, folder, clock)
        engine = made.engine
        exchange = await GrpcExchange.start(made.backend, folder)
        scripted = cls(run, task, clock, engine, exchange, engine.fragments)
        scripted.remember()
        engine.start()
        return scripted

    def remember(self) -> None:
        """Note the versions that have become visible since the last time: at most one of each fragment."""
        known = {version.fragment: version.version for version in self.versions}
        for state in self.fragments:
            if state.version != known.get(state.index):
                assert state.version == known.get(state.index, -1) + 1, "a version went unseen"
                tensors = (state.theta.clone(), state.momentum.clone(), state.published.clone())
                self.versions.append(Version(state.index, state.version, *tensors))
                assert state.newest.digest == arithmetic.digest(EPOCH, state.index, state.version, state.published)

    def advance(self, seconds: float) -> None:
        """Let time pass, as the engine's own thread would notice it."""
        self.clock.advance(seconds)
        self.engine.post(lambda: self.engine.tick() and None)
        self.remember()

    async def close(self) -> None:
        """End everything; a second time changes nothing."""
        learners, self.learners = self.learners, []
        for learner in learners:
            await learner.close()
        if self.serving:
            self.serving = False
            await self.exchange.close()
            self.engine.close()

    async def __aenter__(self) -> "Scripted":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

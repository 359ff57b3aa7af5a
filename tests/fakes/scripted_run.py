"""A run that only tells a story: real `sleep` processes to send signals to, made-up progress, no training."""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

from diloco_api import names, states
from diloco_api.progress import LearnerProgress, LearnerState, Phase, Progress, TokenTotals
from diloco_api.status import GoodputStatus, JobStatus, LearnerStatus
from diloco_operator.local import LocalOutcome, Snapshot
from fakes.cli_sample import ended


class ScriptedRun:
    """Trains for `length_seconds`; a killed process is replaced `replace_seconds` later; draining takes as told."""

    def __init__(
        self,
        folder: Path,
        length_seconds: float,
        start_seconds: float = 0.2,
        replace_seconds: float = 0.3,
        drain_seconds: float = 0.1,
    ) -> None:
        self.folder = folder
        self.stops: list[str] = []
        self._length, self._start, self._replace = length_seconds, start_seconds, replace_seconds
        self._drain = drain_seconds
        self._began = time.monotonic()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._incarnations = {0: 1, 1: 1, 2: 1}
        self._born: dict[int, float] = {}
        self._phase = states.JobPhase.STARTING

    outer_file = property(lambda self: self.folder / "outer.safetensors")

    @property
    def observed(self) -> Snapshot | None:
        return Snapshot(self.status, self.progress, self.answers, time.time())

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    @property
    def answers(self) -> bool:
        return self.elapsed > self._start

    @property
    def status(self) -> JobStatus:
        rows = [
            LearnerStatus(index=i, site="local", incarnation=n, pod_name=f"pod-{i}-{n}", state="Running")
            for i, n in self._incarnations.items()
        ]
        goodput = GoodputStatus(capacity="0.9712", accepted="0.9421", uptime="1.0000")
        kinds = {states.JobPhase.COMPLETE: "Complete", states.JobPhase.FAILED: "Failed"}
        conditions = ended(kinds[self._phase], "TokenBudgetReached") if self._phase in kinds else []
        return JobStatus(phase=self._phase, learner_statuses=rows, goodput=goodput, conditions=conditions)

    @property
    def progress(self) -> Progress | None:
        if not self.answers:
            return None
        share = max(0.0, self.elapsed - 2 * self._start) / self._length
        trained = 1_200_000 * min(1.0, share)
        return Progress(
            job_uid="0" * 32,
            epoch=1,
            phase=Phase.RUNNING,
            served_seconds=self.elapsed - self._start,
            uptime_seconds=self.elapsed - self._start,
            budget_tokens=1_200_000,
            percent=100 * min(1.0, share),
            eta_seconds=max(0.0, self._length - self.elapsed),
            tokens_per_second=1_200_000 / self._length,
            outer_steps=int(share * 400),
            outer_rounds=int(share * 16),
            tokens=TokenTotals(
                trained=trained, merged=trained * 0.96, overlap=trained * 0.03, in_flight=trained * 0.01
            ),
            loss_initial=5.561,
            loss_final=2.41 if self._phase == states.JobPhase.COMPLETE else None,
            bytes_up=int(trained * 3),
            bytes_down=int(trained * 5),
            learners=[self._learner(i) for i in self._incarnations if i in self._born],
        )

    def pids(self, role: names.Role, index: int | None = None) -> list[int]:
        if role is names.Role.SYNCHRONIZER:
            return []
        return [p.pid for i, p in self._processes.items() if p.poll() is None and index in (None, i)]

    def drain(self) -> None:
        self.stops.append("drain")

    def stop_now(self) -> None:
        self.stops.append("now")

    def tell(self, message: str) -> None:
        with (self.folder / "events.jsonl").open("a") as file:
            file.write(json.dumps({"message": message}) + "\n")

    async def run(self) -> LocalOutcome:
        try:
            for index in self._incarnations:
                self._spawn(index)
            while self.elapsed < self._start * 2 + self._length and not self.stops:
                await asyncio.sleep(0.05)
                if self.answers and self._phase == states.JobPhase.STARTING:
                    self._phase = states.JobPhase.RUNNING
                for index, process in list(self._processes.items()):
                    if process.poll() is not None:
                        self.tell(f"Learner {index}: killed by signal 9 (SIGKILL)")
                        await asyncio.sleep(self._replace)
                        self._incarnations[index] += 1
                        self._spawn(index)
                        self.tell(f"Learner {index}: incarnation {self._incarnations[index]} started")
            drained = time.monotonic() + self._drain
            while self.stops and "now" not in self.stops and time.monotonic() < drained:
                await asyncio.sleep(0.05)
            self._phase = states.JobPhase.STOPPED if self.stops else states.JobPhase.COMPLETE
            assert self.observed is not None
            return LocalOutcome(self._phase, "TokenBudgetReached", "", self.observed)
        finally:
            for process in self._processes.values():
                process.kill()
                process.wait()

    def _spawn(self, index: int) -> None:
        self._processes[index] = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        self._born[index] = time.monotonic()

    def _learner(self, index: int) -> LearnerProgress:
        age = time.monotonic() - self._born[index]
        return LearnerProgress(
            index=index,
            incarnation=self._incarnations[index],
            site="local",
            live=True,
            heartbeat_age_seconds=0.5,
            state=LearnerState.TRAINING if age > self._start * 2 else LearnerState.INIT,
            step=int(20 * max(0.0, age - 2 * self._start)) + (age > self._start * 2),
            token_clock=int(20 * age) * 512,
            loss=5.5 - 3 * min(1.0, age / 60),
            staleness=1,
            step_seconds=0.05,
            state_seconds={LearnerState.INIT: 0.4, LearnerState.TRAINING: age},
        )

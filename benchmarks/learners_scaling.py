"""Does one more Learner help? Validation loss of the outer parameters for 1, 2 and 4 Learners, Decoupled preset.

Everything runs in one process, through the product's own pure core (Learner core, uplink, merge, outer step, codecs)
and without any waiting: Learners of one speed, one turn a step, an answer from the boundary a turn falls on, adopted
one step later. Wall time is therefore modelled, one core per Learner: median step time times steps. Two comparisons:
equal inner steps per Learner (M Learners see M times the tokens of one) and equal tokens (M Learners take 1/M of the
steps each). `plain` is one AdamW loop without any outer step. Figures are reported as they come out.

The toy: a byte GPT of 0.86 million parameters on the standard library's sources, batch 8 of 64 bytes, AdamW 2e-3.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / part) for part in ("crds", "trainer_image")]
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402

from diloco_api.accept import Ports, make_run_config, resolve_job  # noqa: E402
from diloco_api.run_config import RunConfig  # noqa: E402
from diloco_api.tokens import Identity  # noqa: E402
from diloco_api.v1alpha1 import DiLoCoJob  # noqa: E402
from diloco_trainer.algorithm.events import Key  # noqa: E402
from diloco_trainer.algorithm.fragments import scatter  # noqa: E402
from diloco_trainer.algorithm.schedule import offset  # noqa: E402
from diloco_trainer.learner.core import Adoption, LearnerCore  # noqa: E402
from diloco_trainer.learner.uplink import Contribution, Uplink  # noqa: E402
from diloco_trainer.synchronizer.merge_exec import Body, MergeContext, merge_bodies, take_step  # noqa: E402
from diloco_trainer.synchronizer.state import FragmentState, Version, first_state  # noqa: E402
from diloco_trainer.task.lr import make_learning_rate  # noqa: E402
from diloco_trainer.task.task import Task, make_task  # noqa: E402
from diloco_trainer.wire.gen import synchronizer_pb2 as pb  # noqa: E402

ADOPTED_AFTER_STEPS = 1
LEARNERS = (1, 2, 4)


@dataclass
class Outcome:
    """One run."""

    loss: float
    bytes_up: int = 0
    step_seconds: list[float] = field(default_factory=list)


def run_config(replicas: int, steps: int, seed: int) -> RunConfig:
    """The job of one run, accepted as any other."""
    job = DiLoCoJob.model_validate(
        {
            "apiVersion": "diloco.dev/v1alpha1",
            "kind": "DiLoCoJob",
            "metadata": {"name": "scaling", "namespace": "default", "uid": "00000000-0000-4000-8000-000000000000"},
            "spec": {
                "algorithm": {"preset": "DecoupledDiLoCo"},
                "train": {
                    "model": {"layers": 4, "hidden": 128, "heads": 4},
                    "data": {"uri": "{stdlib}/**/*.py", "sequenceLength": 64},
                    "optimizer": {"learningRate": 2e-3},
                    "schedule": {"warmupSteps": min(100, steps // 10)},
                    "batch": {"sequences": 8},
                    "evaluation": {"sequences": 512},
                    "seed": seed,
                },
                "budget": {"innerSteps": steps},
                "learners": {"replicas": replicas},
            },
        }
    )
    return make_run_config(job, resolve_job(job), Ports())


class Simulation:
    """M Learners and a Synchronizer in lock-step."""

    def __init__(self, run: RunConfig, task: Task) -> None:
        self.run, self.task = run, task
        device = torch.device("cpu")
        self.cores = [LearnerCore(task, run.train, run.policy, device) for _ in range(run.replicas)]
        layout = self.cores[0].layout
        self.context = MergeContext(run.policy, layout, epoch=1)
        self.states = first_state(
            layout, task.parameters(self.cores[0].model), epoch=1, retained=run.policy.retained_versions
        )
        self.uplinks = []
        for index, core in enumerate(self.cores):
            uplink = Uplink(Identity(run.job_uid, index, 1), layout, run.policy, run.train.seed)
            version_0 = [0 for _ in self.states], [state.published.clone() for state in self.states]
            core.install(*version_0, job_step=0)
            uplink.install(1, *version_0)
            self.uplinks.append(uplink)
        self.outcome = Outcome(loss=float("nan"))

    def train(self, steps: int) -> Outcome:
        """All steps, the closing rounds, the loss of the outer parameters."""
        policy, rate = self.run.policy, make_learning_rate(self.run.train, self.run.replicas, self.run.budget_tokens)
        under_way: dict[int, int] = {}  # fragment -> step at which it is adopted
        for t in range(1, steps + 1):
            for index, core in enumerate(self.cores):
                first = ((t - 1) * self.run.replicas + index) * self.run.train.batch.sequences
                positions = range(first, first + self.run.train.batch.sequences)
                began_at = time.perf_counter()
                core.train_step(self.task.batch(0, positions), rate.at(t / steps))
                self.outcome.step_seconds.append(time.perf_counter() - began_at)
            for f in [f for f, due in under_way.items() if due == t]:
                self.adopt(f)
                del under_way[f]
            for f in range(policy.num_fragments):
                if (t - offset(f, policy.sync_every, policy.num_fragments)) % policy.sync_every == 0:
                    self.merge(f, t)
                    under_way[f] = t + ADOPTED_AFTER_STEPS
        for f in range(policy.num_fragments):
            if f in under_way:
                self.adopt(f)
            if self.cores[0].clocks[f].c_steps > 0:
                self.merge(f, steps)
        self.outcome.loss = evaluate(self.task, self.states, self.cores[0])
        return self.outcome

    def merge(self, f: int, step: int) -> None:
        """One round of one fragment: everybody's body, the merge, the outer step, the published delta."""
        state = self.states[f]
        made = [
            uplink.make_contribution(core.stage(f), step) for core, uplink in zip(self.cores, self.uplinks, strict=True)
        ]
        bodies = [_body(contribution) for contribution in made]
        self.outcome.bytes_up += sum(body.data.numel() for body in bodies)
        contributors = [self.context.contributor(body) for body in bodies]
        delta, _ = merge_bodies(self.context, state, contributors, [body.data for body in bodies])
        done = take_step(self.context, state, Version(state.version + 1, ""), delta, contributors)
        state.publish(done.retained, done.norms)

    def adopt(self, f: int) -> None:
        """Everybody takes the newest version of a fragment over."""
        state = self.states[f]
        for core, uplink in zip(self.cores, self.uplinks, strict=True):
            sequence = uplink.fragments[f].sequence
            settlement = pb.Settlement(fragment=f, sequence=sequence, outcome=pb.MERGED, version=state.version)
            contribution = uplink.settle(settlement)
            assert contribution is not None, "one contribution is open"
            uplink.published(f, state.version, state.published.clone())
            core.adopt(Adoption(f, state.version, state.published, contribution.stage))
            uplink.adopted(f)


def _body(contribution: Contribution) -> Body:
    header = contribution.header
    return Body(
        key=Key(header.index, header.incarnation, header.fragment, header.sequence),
        turn=header.turn,
        base_version=header.base_version,
        stage_step=header.stage_step,
        token_clock=header.token_clock,
        c_tokens=header.c_tokens,
        c_steps=header.c_steps,
        mean_lr=header.mean_lr,
        norm=0.0,  # no guard here
        checksum=header.checksum,
        data=torch.frombuffer(contribution.payload, dtype=torch.uint8),
    )


def evaluate(task: Task, states: list[FragmentState], core: LearnerCore) -> float:
    """Validation loss of what Learners hold, nats per byte."""
    model = task.build_model()
    for fragment, state in zip(core.layout.fragments, states, strict=True):
        scatter(fragment, state.published, task.parameters(model))
    return task.evaluate(model)


def plain(run: RunConfig, task: Task, steps: int) -> Outcome:
    """One AdamW loop."""
    core, outcome = LearnerCore(task, run.train, run.policy, torch.device("cpu")), Outcome(loss=float("nan"))
    rate = make_learning_rate(run.train, 1, run.budget_tokens)
    for t in range(1, steps + 1):
        positions = range((t - 1) * run.train.batch.sequences, t * run.train.batch.sequences)
        began_at = time.perf_counter()
        core.train_step(task.batch(0, positions), rate.at(t / steps))
        outcome.step_seconds.append(time.perf_counter() - began_at)
    outcome.loss = task.evaluate(core.model)
    return outcome


def measure(case: str, replicas: int, steps: int, seeds: list[int], *, outer: bool = True) -> list[dict[str, object]]:
    """Rows of one case over all seeds."""
    outcomes = []
    for seed in seeds:
        run = run_config(replicas, steps, seed)
        task = make_task(run.train)
        outcomes.append(Simulation(run, task).train(steps) if outer else plain(run, task, steps))
        print(f"{case}, {replicas} learner(s), {steps} steps, seed {seed}: {outcomes[-1].loss:.4f}", file=sys.stderr)
    system = f"decoupled M={replicas}" if outer else "plain"
    figures = {
        ("loss", "nats/byte"): [outcome.loss for outcome in outcomes],
        ("modelled wall time", "s"): [statistics.median(outcome.step_seconds) * steps for outcome in outcomes],
        ("sent by a learner", "bytes/step"): [outcome.bytes_up / replicas / steps for outcome in outcomes],
    }
    return [
        {
            "case": case,
            "system": system,
            "metric": metric,
            "unit": unit,
            "median": statistics.median(values),
            "min": min(values),
            "max": max(values),
            "runs": len(values),
        }
        for (metric, unit), values in figures.items()
    ]


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(1)
    steps, seeds = arguments.steps, list(range(arguments.seeds))
    rows = measure(f"{steps} steps each", 1, steps, seeds, outer=False)
    for replicas in arguments.learners:
        rows += measure(f"{steps} steps each", replicas, steps, seeds)
    for replicas in arguments.learners:
        if replicas > 1:
            rows += measure(f"tokens of {steps} steps", replicas, max(1, steps // replicas), seeds)
    report = {
        "schemaVersion": 1,
        "script": "learners_scaling",
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "rows": rows,
        "aims": [] if arguments.quick else _aims(rows, f"{steps} steps each", max(arguments.learners)),
    }
    _print(rows, report["aims"])
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def _aims(rows: list[dict[str, object]], case: str, most: int) -> list[dict[str, object]]:
    """Several Learners beat a single plain loop at equal inner steps by at least 0.1 nats/byte."""
    losses = {row["system"]: row["median"] for row in rows if row["case"] == case and row["metric"] == "loss"}
    value = float(str(losses[f"decoupled M={most}"])) - float(str(losses["plain"]))
    metric = f"loss of {most} Decoupled Learners minus that of one plain loop, equal inner steps, nats/byte"
    return [{"metric": metric, "op": "<=", "bound": -0.1, "value": value, "met": value <= -0.1}]


def _print(rows: list[dict[str, object]], aims: object) -> None:
    print(f"{'case':<24}{'system':<16}{'metric':<22}{'median':>12}{'min':>12}{'max':>12}  unit (runs)")
    for row in rows:
        figures = "".join(f"{row[name]:>12.4f}" for name in ("median", "min", "max"))
        print(f"{row['case']:<24}{row['system']:<16}{row['metric']:<22}{figures}  {row['unit']} ({row['runs']})")
    for aim in aims:  # type: ignore[attr-defined]
        print(
            f"aim: {aim['metric']} {aim['op']} {aim['bound']}: {aim['value']:.4f}, {'met' if aim['met'] else 'NOT met'}"
        )


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there")
    parser.add_argument("--quick", action="store_true", help="96 steps, one seed: under 3 minutes on one core")
    parser.add_argument("--steps", type=int, default=1500, help="inner steps of a Learner (1500)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0, 1, ... (3)")
    parser.add_argument("--learners", type=int, nargs="+", default=list(LEARNERS), help="numbers of Learners (1 2 4)")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.steps, arguments.seeds = 96, 1
    return arguments


if __name__ == "__main__":
    main()

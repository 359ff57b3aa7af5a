"""`make test-gpu`: codecs, copies, training and a whole job on this machine's GPU, compared with its CPU.

Prints a line for everything that was tried and ends with 1 if anything was wrong. Where there is no GPU that is an
error, unless a person says --allow-missing. `--device cpu` runs the same code without a GPU, so that it can be tested.
At most eight minutes. Absolute times are reported, not judged.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diloco_api.exit_codes import ExitCode
from diloco_api.manifest import load_job
from diloco_api.names import ENV_DEVICE
from diloco_api.sync_policy import Codec, Fragmentation, Rounding
from diloco_api.train import TrainSpec
from diloco_trainer.algorithm.codec import CodecOverflowError, NonFiniteError, TensorCodec, make_codec
from diloco_trainer.algorithm.codec_block import BLOCK
from diloco_trainer.algorithm.fragments import TensorSpec, gather, make_layout, scatter
from diloco_trainer.learner.device import DRIVER_FILE, DeviceUnusable, choose_device, describe
from diloco_trainer.learner.staging import Stager
from diloco_trainer.task.optimizer import inner_step
from diloco_trainer.task.task import make_task

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "crds/examples/quickstart.yaml"
LIMIT_SECONDS = 480
MIB = 2**20


@dataclass(frozen=True)
class Row:
    """One thing that was tried."""

    what: str
    good: bool
    detail: str


@dataclass(frozen=True)
class Size:
    """How much of it."""

    values: int
    steps: int
    job: tuple[str, ...]
    """Arguments of `diloco run`."""


FULL = Size(values=16 * MIB + 37, steps=40, job=())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--allow-missing", action="store_true", help="no GPU is no error; for people, never for CI")
    arguments = parser.parse_args(argv)
    try:
        device = choose_device(arguments.device)
    except DeviceUnusable as error:
        if arguments.allow_missing and not DRIVER_FILE.exists() and torch.cuda.device_count() == 0:
            print("no GPU: nothing was verified")
            return 0
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"on {describe(device)}", flush=True)
    return 0 if run(device, FULL) else 1


def run(device: torch.device, size: Size) -> bool:
    """Everything, in about the order of its cost; whether all of it was good."""
    began_at, good = time.monotonic(), True
    for part in (refusal, lambda: codecs(device, size), lambda: copies(device, size), lambda: steps(device, size)):
        good &= _shown(part())
    left = LIMIT_SECONDS - (time.monotonic() - began_at)
    good &= _shown(job(device, size, left))
    print(f"{'good' if good else 'NOT good'}, {time.monotonic() - began_at:.0f} s")
    return good


def _shown(rows: Iterator[Row]) -> bool:
    good = True
    for row in rows:
        print(f"{'ok  ' if row.good else 'BAD '} {row.what}: {row.detail}", flush=True)
        good &= row.good
    return good


# --- a GPU that cannot be used ----------------------------------------------------------------------------------------


def refusal() -> Iterator[Row]:
    """A Learner that asks for a GPU and is shown none ends with its own code and one line; no CPU takes its place."""
    environment = {**os.environ, ENV_DEVICE: "cuda", "CUDA_VISIBLE_DEVICES": ""}
    answer = subprocess.run(
        [sys.executable, "-m", "diloco_trainer.learner"], env=environment, capture_output=True, text=True, check=False
    )
    lines = answer.stderr.splitlines()
    named = len(lines) == 1 and "driver" in lines[0] and f"torch {torch.__version__}" in lines[0]
    yield Row("GPU hidden", answer.returncode == ExitCode.DEVICE and named, f"code {answer.returncode}, {lines[-1:]}")


# --- codecs -----------------------------------------------------------------------------------------------------------


def codecs(device: torch.device, size: Size) -> Iterator[Row]:
    """The same bytes as on the CPU where rounding is to the nearest, within the proven bound where it is by chance."""
    vectors = _vectors(size.values)
    large = vectors["ordinary"].to(device)
    plain = _seconds(device, lambda: large.clone())
    for kind in Codec:
        codec = make_codec(kind)
        for name, x in vectors.items():
            yield Row(f"{kind.value} {name}", *_same_as_on_the_cpu(codec, x, device))
        yield Row(f"{kind.value} by chance", *_within_bound(codec, vectors["ordinary"], device))
        yield Row(f"{kind.value} not finite", *_refuses(codec, device))
        data = codec.encode(large)
        encode = _seconds(device, lambda codec=codec: codec.encode(large)) / plain
        decode = _seconds(device, lambda codec=codec, data=data: codec.decode(data, large.numel())) / plain
        yield Row(f"{kind.value} time", True, f"encode {encode:.1f}, decode {decode:.1f} times a copy_ on the device")


def _vectors(num_values: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    ordinary = torch.randn(num_values, generator=generator) * torch.rand(num_values, generator=generator).exp2()
    powers = torch.arange(-40, 10, dtype=torch.float32).exp2().repeat_interleave(256)
    ties = powers * torch.arange(powers.numel()).remainder(255).sub(127) / 2
    return {
        "ordinary": ordinary,
        "ties": ties,
        "scales": _at_scales(),
        "denormal": ties[:4001] * 2.0**-130,
        "zeros": torch.zeros(700),
    }


def _at_scales() -> Tensor:
    """Blocks whose largest value is a bf16 number times 7 or 127, or a neighbour of that: the worst for a division."""
    scales = torch.arange(0x3F80, 0x4000, dtype=torch.int32).bitwise_left_shift(16).view(torch.float32)  # all of [1, 2)
    largest = torch.cat([scales * 7, scales * 127])
    neighbours = [largest.view(torch.int32).add(change).view(torch.float32) for change in (-1, 0, 1)]
    return torch.nn.functional.pad(torch.cat(neighbours).unsqueeze(1), (0, BLOCK - 1)).flatten()


def _same_as_on_the_cpu(codec: TensorCodec, x: Tensor, device: torch.device) -> tuple[bool, str]:
    here, there = codec.encode(x), codec.encode(x.to(device))
    differ = int((here != there.cpu()).sum())
    base = torch.linspace(-1.0, 1.0, x.numel())
    decoded = torch.equal(codec.decode(here, x.numel()), codec.decode(here.to(device), x.numel()).cpu())
    added = torch.equal(
        codec.accumulate(here, x.numel(), base.clone()),
        codec.accumulate(here.to(device), x.numel(), base.to(device)).cpu(),
    )
    finite = codec.is_finite(there, x.numel())
    told = f"{differ} of {here.numel()} bytes differ, decode {_equal(decoded)}, accumulate {_equal(added)}"
    return differ == 0 and decoded and added and finite, told


def _equal(same: bool) -> str:
    return "equal" if same else "DIFFERENT"


def _within_bound(codec: TensorCodec, x: Tensor, device: torch.device) -> tuple[bool, str]:
    moved = x.to(device)
    data = codec.encode(moved, Rounding.STOCHASTIC, torch.Generator(device).manual_seed(1))
    error = (codec.decode(data, x.numel()) - moved).cpu()
    good = bool((error.abs() <= codec.error_bound(x, Rounding.STOCHASTIC)).all())
    return good, f"largest error {float(error.abs().max()):.3g}, mean {float(error.mean()):.1e}"


def _refuses(codec: TensorCodec, device: torch.device) -> tuple[bool, str]:
    x = torch.ones(1000, device=device)
    x[777] = float("nan")
    try:
        codec.encode(x)
    except CodecOverflowError as error:
        return False, str(error)
    except NonFiniteError as error:
        return "777" in str(error), str(error)
    return False, "was encoded"


# --- copies -----------------------------------------------------------------------------------------------------------


def copies(device: torch.device, size: Size) -> Iterator[Row]:
    """A stage has the values of its step boundary although the device is busy and the parameters change right after."""
    task = make_task(_quickstart())
    model = task.build_model().to(device)
    params = task.parameters(model)
    layout = make_layout(task.tensor_specs(model), 4, Fragmentation.BALANCED_TENSOR)
    stager, busy = Stager(device), torch.eye(4096 if device.type == "cuda" else 64, device=device)
    wanted = [gather(fragment, params) for fragment in layout.fragments]
    staged = []
    for _ in range(40):
        busy = busy @ busy
    for fragment in layout.fragments:
        staged.append(stager.copy(fragment, params))
    stager.before_change()
    with torch.no_grad():
        for tensor in params.values():
            tensor.add_(1.0)
    for _, ready in staged:
        ready()
    values = [flat for flat, _ in staged]
    yield Row("stages", all(map(torch.equal, values, wanted)), f"{len(values)} of a model that changed right after")
    pinned = all(flat.is_pinned() for flat in values) if device.type == "cuda" else True
    yield Row("stages' memory", pinned, "pinned" if device.type == "cuda" else "plain, as for a CPU")
    for fragment, flat in zip(layout.fragments, wanted, strict=True):
        scatter(fragment, flat, params)
    back = [gather(fragment, params) for fragment in layout.fragments]
    yield Row("adoption", all(map(torch.equal, back, wanted)), "what is scattered is what is gathered")
    yield _copy_time(device, size.values)


def _copy_time(device: torch.device, num_values: int) -> Row:
    """A stage against one plain copy of as many values to where a stage puts them."""
    rows = num_values // 1024
    weight = torch.nn.Parameter(torch.randn(rows, 1024, device=device))
    spec = TensorSpec("weight", (rows, 1024), is_embedding=False, layer=None)
    (fragment,) = make_layout([spec], 1, Fragmentation.BALANCED_TENSOR).fragments
    params, stager = {"weight": weight}, Stager(device)
    target = torch.empty(rows, 1024, pin_memory=device.type == "cuda")
    plain = _seconds(device, lambda: target.copy_(weight.detach()))
    staged = _seconds(device, lambda: stager.copy(fragment, params)[1]())
    return Row("stage time", True, f"{staged / plain:.2f} times a copy_ of {4 * weight.numel() / MIB:.0f} MiB")


# --- training ---------------------------------------------------------------------------------------------------------


def steps(device: torch.device, size: Size) -> Iterator[Row]:
    """The same batches on the CPU and on the device: nearly the same losses, which fall; bf16 falls as well."""
    here, there = _losses(torch.device("cpu"), size, "fp32"), _losses(device, size, "fp32")
    apart = max(abs(left - right) for left, right in zip(here, there, strict=True))
    yield Row("steps fp32", apart < 0.02 and there[-1] < there[0] - 0.5, f"{_fall(there)}, at most {apart:.1e} apart")
    narrow = _losses(device, size, "bf16")
    yield Row("steps bf16", abs(narrow[-1] - here[-1]) < 0.1 and narrow[-1] < narrow[0] - 0.5, _fall(narrow))


def _fall(losses: list[float]) -> str:
    return f"loss {losses[0]:.3f} to {losses[-1]:.3f} in {len(losses)} steps"


def _losses(device: torch.device, size: Size, precision: str) -> list[float]:
    train = _quickstart().model_copy(update={"precision": precision})
    task = make_task(train)
    torch.manual_seed(train.seed)
    model = task.build_model().to(device)
    optimizer = task.make_optimizer(model)
    losses = []
    for step in range(size.steps):
        batch = task.batch(0, range(step * 8, step * 8 + 8)).to(device)
        loss = inner_step(model, optimizer, task.loss, batch, lr=2e-3, micro_batch=None, clip_norm=train.clip_norm)
        losses.append(loss.item())
    return losses


# --- a whole job ------------------------------------------------------------------------------------------------------


def job(device: torch.device, size: Size, seconds: float) -> Iterator[Row]:
    """The quickstart: Learners as processes on the device, to Complete, with a loss that falls."""
    with tempfile.TemporaryDirectory() as folder:
        work, said = Path(folder, "work"), Path(folder, "output")
        program = [sys.executable, "-c", "from diloco_cli.entry import main; main()", "run", str(QUICKSTART)]
        with said.open("wb") as output:
            process = subprocess.Popen(
                [*program, "--workdir", str(work), *size.job],
                env={**os.environ, ENV_DEVICE: device.type},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            code = process.wait(timeout=max(1.0, seconds))
        except subprocess.TimeoutExpired:
            process.terminate()  # ends its processes, too
            process.wait()
            yield Row("job", False, f"not over after {seconds:.0f} s")
            return
        if code:
            yield Row("job", False, f"code {code}: {said.read_text(encoding='utf-8')[-2000:]}")
            return
        report = json.loads((work / "report.json").read_text(encoding="utf-8"))
        yield job_ended(report)
        logs = [path.read_text(encoding="utf-8", errors="replace") for path in work.rglob("*.log")]
        wanted = f"training on {describe(device)}"
        num = sum(wanted in text for text in logs)
        yield Row("job's Learners", num >= len(report["learners"]), f"{num} logs say: {wanted}")


def job_ended(report: dict[str, Any]) -> Row:
    first, last = report["loss"]["initial"], report["loss"]["final"]
    told = f"{report['phase']} after {report['wallSeconds']:.0f} s, loss {first:.3f} to {last:.3f}"
    return Row("job", report["phase"] == "Complete" and last < first - 1.0, told)


def _quickstart() -> TrainSpec:
    """The model and data of the quickstart."""
    return load_job(QUICKSTART.read_text(encoding="utf-8"), QUICKSTART.name).spec.train


def _seconds(device: torch.device, work: Callable[[], object], runs: int = 5) -> float:
    """Median of some runs after a first one."""
    times = []
    for _ in range(runs + 1):
        _finished(device)
        began_at = time.perf_counter()
        work()
        _finished(device)
        times.append(time.perf_counter() - began_at)
    return sorted(times[1:])[runs // 2]


def _finished(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    sys.exit(main())

"""One `diloco run` from a checked job to its exit code; leaves report, parameters and a summary behind."""

import asyncio
import logging
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from diloco_api.accept import Resolved, resolve_job
from diloco_api.names import JobPhase
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_cli.display import make_console, make_display, print_last
from diloco_cli.drills import Drill
from diloco_cli.exit_status import ExitStatus
from diloco_cli.report import make_report
from diloco_cli.run_seam import Run
from diloco_cli.session import Session
from diloco_cli.summary import draw_summary
from diloco_cli.view import Headline
from diloco_operator.files import write_atomically
from diloco_operator.local import LocalOutcome, LocalRun

_EXITS = {
    JobPhase.COMPLETE: ExitStatus.COMPLETE,
    JobPhase.FAILED: ExitStatus.FAILED,
    JobPhase.STOPPED: ExitStatus.INTERRUPTED,
}


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the command line asked for besides the job."""

    workdir: Path
    report: Path
    drills: tuple[Drill, ...] = ()
    command: tuple[str, ...] = ("diloco", "run")
    """As given, to say how to resume."""


def run_job(job: DiLoCoJob, options: RunOptions) -> ExitStatus:
    """Run or resume. SpecError for what the user can mend. What fails before it began leaves no new folder behind."""
    resolved = resolve_job(job)
    fresh = _missing_folders(options.workdir.absolute())
    run: LocalRun | None = None
    try:
        run = LocalRun.open_folder(job, options.workdir)
        _log_to(options.workdir / "operator.log")
        return asyncio.run(_run(run, job, resolved, options, resumed=not fresh))
    finally:
        if run is None or not _began(run):
            _remove(fresh)


async def _run(run: Run, job: DiLoCoJob, resolved: Resolved, options: RunOptions, resumed: bool) -> ExitStatus:
    console, headline = make_console(), _headline(job, resolved, options)
    session = Session(run, headline, _step_tokens(job), options.drills, resumed)
    with make_display(console, headline) as display:
        outcome = await session.watch(display)
    name = job.metadata.name
    if _began(run):
        _leave(run, outcome, session, name, options, console)
    if outcome.phase is JobPhase.FAILED:
        print(f"error: {name}: {outcome.message or outcome.reason}", file=sys.stderr)
    elif outcome.phase is JobPhase.STOPPED:
        console.print(f"stopped; to resume: {shlex.join(options.command)}", markup=False, soft_wrap=True)
    return _EXITS[outcome.phase]


def _leave(run: Run, outcome: LocalOutcome, session: Session, name: str, options: RunOptions, console: Console) -> None:
    """Report, summary, and where everything is."""
    progress = outcome.snapshot.progress
    assert progress is not None, "the run began"
    reason = session.stop_reason or outcome.reason
    report = make_report(outcome.snapshot.status, progress, session.drills.states, session.elapsed_seconds, reason)
    if session.was_complete:
        console.print(f"job {name} was Complete already, nothing was run", markup=False)
    if not (session.was_complete and options.report.exists()):
        write_whole(options.report, report.to_json())
    files = [("report", options.report), ("logs", run.folder / "logs")]
    if outcome.phase is JobPhase.COMPLETE and run.outer_file.exists():
        files.insert(1, ("parameters", run.outer_file))
    print_last(console, draw_summary(report, name, [(what, _short(where)) for what, where in files]))


def _short(path: Path) -> Path:
    """Relative to the present folder where it is below it."""
    here = Path.cwd()
    return path.absolute().relative_to(here) if path.absolute().is_relative_to(here) else path


def _missing_folders(folder: Path) -> list[Path]:
    """`folder` and those above it that do not exist yet, the innermost first."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def _remove(fresh: list[Path]) -> None:
    """Take away a work folder that was new, and the folders made for it as far as nothing else is in them."""
    if not fresh:
        return
    shutil.rmtree(fresh[0], ignore_errors=True)
    for parent in fresh[1:]:
        if parent.is_dir() and not any(parent.iterdir()):
            parent.rmdir()


def _began(run: Run) -> bool:
    """The Synchronizer was heard: there is something worth keeping."""
    return run.observed is not None and run.observed.progress is not None


def write_whole(target: Path, text: str) -> None:
    """Write a file whole or not at all, making its folder."""
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, text)


def _headline(job: DiLoCoJob, resolved: Resolved, options: RunOptions) -> Headline:
    return Headline(
        job=job.metadata.name,
        preset=resolved.policy.preset,
        replicas=resolved.replicas,
        parameters=resolved.shape.num_parameters,
        budget_tokens=resolved.budget_tokens,
        workdir=str(options.workdir),
    )


def _step_tokens(job: DiLoCoJob) -> int:
    return job.spec.train.batch.sequences * job.spec.train.data.sequence_length


def _log_to(file: Path) -> None:
    """The operator's own log goes to a file: the screen belongs to the run."""
    logging.basicConfig(filename=file, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")

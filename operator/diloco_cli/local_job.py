"""One `diloco run` from a checked job to its exit code; leaves report, parameters and a summary behind."""

import asyncio
import logging
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from diloco_api.accept import Resolved, resolve_job
from diloco_api.errors import SpecError
from diloco_api.states import Reason
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_cli.display import make_console, make_display, print_last, silence
from diloco_cli.drills import Drill
from diloco_cli.exit_status import ExitStatus, complain, status_of
from diloco_cli.report import make_report
from diloco_cli.report_file import write_report
from diloco_cli.run_seam import Run
from diloco_cli.session import Session
from diloco_cli.summary import draw_summary
from diloco_cli.view import Headline
from diloco_operator.local import LocalOutcome, LocalRun

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the command line asked for besides the job."""

    workdir: Path
    report: Path
    drills: tuple[Drill, ...] = ()
    resume: tuple[str, ...] = ("diloco", "run")
    """The command that resumes this run."""


def run_job(job: DiLoCoJob, options: RunOptions) -> ExitStatus:
    """Run or resume. SpecError for what the user can mend.

    Of a run that did not begin, by the user's mistake or wish, no new folder stays; of any other failure the logs do.
    """
    resolved = resolve_job(job)
    fresh = _missing_folders(options.workdir.absolute())
    console, headline = make_console(), _headline(job, resolved, options)
    try:
        run: Run = LocalRun.open_folder(job, options.workdir)
        _log_to(options.workdir / "operator.log")
        session = Session(run, headline, _step_tokens(job), options.drills, resumed=not fresh, nobody_reads=silence)
        outcome = asyncio.run(_watch(session, console, headline))
    except SpecError:
        _remove(fresh)
        raise
    except OSError as error:  # a full disk, a folder that was taken away
        logger.exception("an error of the system ended the run")
        complain(f"{error.filename or options.workdir}: {error.strerror or error} (see {_short(options.workdir)})")
        return ExitStatus.FAILED
    status = status_of(outcome.snapshot.status.conditions)
    if _began(run):
        return _leave(run, outcome, status, session, options, console)
    if outcome.reason == Reason.FATAL_EXIT_CODE or (status is ExitStatus.INTERRUPTED and not outcome.snapshot.crashed):
        _remove(fresh)
    elif outcome.snapshot.crashed:
        complain(f"{job.metadata.name}: the Synchronizer kept crashing: see {_short(options.workdir / 'logs')}")
    _tell_end(job.metadata.name, outcome, status, options, console, resume=())
    return status


async def _watch(session: Session, console: Console, headline: Headline) -> LocalOutcome:
    with make_display(console, headline) as display:
        return await session.watch(display)


def _leave(
    run: Run, outcome: LocalOutcome, status: ExitStatus, session: Session, options: RunOptions, console: Console
) -> ExitStatus:
    """Report, summary, where everything is, and how it ended."""
    progress, name = outcome.snapshot.progress, session.headline.job
    assert progress is not None, "the run began"
    reason = session.stop_reason or outcome.reason
    status_at_end = outcome.snapshot.status.model_copy(update={"phase": outcome.phase.value})
    report = make_report(status_at_end, progress, session.drills.states, session.elapsed_seconds, reason)
    if session.was_complete:
        console.print(f"job {name} was Complete already, nothing was run", markup=False)
    keep = session.was_complete and options.report.is_file()
    problem = "" if keep else write_report(options.report, report.to_json())
    files = [] if problem else [("report", options.report)]
    if status is ExitStatus.COMPLETE and run.outer_file.exists():
        files.append(("parameters", run.outer_file))
    files.append(("logs", run.folder / "logs"))
    print_last(console, draw_summary(report, name, [(what, _short(where)) for what, where in files]))
    _tell_end(name, outcome, status, options, console, options.resume)
    if problem:
        complain(problem)
        return ExitStatus.FAILED
    return status


def _tell_end(
    name: str, outcome: LocalOutcome, status: ExitStatus, options: RunOptions, console: Console, resume: tuple[str, ...]
) -> None:
    """The last line of a run that is not Complete; `resume` is empty where there is nothing to resume."""
    if status is ExitStatus.FAILED:
        logs = options.workdir / "logs"
        where = f" (logs: {_short(logs)})" if logs.exists() and not resume else ""
        complain(f"{name}: {outcome.message or outcome.reason}{where}")
    elif status is ExitStatus.INTERRUPTED:
        text = f"stopped; to resume: {shlex.join(resume)}" if resume else "stopped before it began"
        if outcome.message:  # the stop did not go as asked for
            console.print(f"note: {outcome.message}", markup=False, soft_wrap=True)
        console.print(text, markup=False, soft_wrap=True)


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
    """The operator's own log goes to a file: the screen belongs to the run, also when the disk is full."""
    logging.raiseExceptions = False
    logging.basicConfig(filename=file, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")

"""The program `diloco`: reads arguments, turns every mistake into one line on stderr, and returns the exit code."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from diloco_api.errors import SpecError
from diloco_api.manifest import load_job, parse_override
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_cli import cluster_app
from diloco_cli.cluster import BadCredentials, ClusterError
from diloco_cli.drills import check_targets, parse_drill
from diloco_cli.exit_status import ExitStatus, complain
from diloco_cli.local_job import RunOptions, run_job
from diloco_cli.report_file import check_report

_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[2]  # ClickException, of whichever click typer brings

_REPLICAS = "spec.learners.replicas"

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train one model with many Learners that meet only every few hundred steps.",
)


@app.command()
def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Manifest of a DiLoCoJob.")],
    learners: Annotated[int | None, typer.Option(metavar="N", help="Learners to run.")] = None,
    workdir: Annotated[Path | None, typer.Option(metavar="DIR", help="The run's folder; default runs/<name>.")] = None,
    drill: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DRILL",
            help="Bring a failure about: KIND[=TARGET]@SECONDSs[+SECONDSs], counted from the first outer step; "
            "KIND is kill-learner, freeze-learner, slow-learner or kill-synchronizer.",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Override a field of the manifest.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the report goes; default <workdir>/report.json.")
    ] = None,
) -> None:
    """Run a job on this machine, or resume it. Ctrl-C stops it in good order."""
    drills = [parse_drill(text) for text in drill or []]
    overrides = [parse_override(text) for text in set_ or []]
    if learners is not None and learners < 1:
        raise SpecError(f"--learners {learners}: must be at least 1")
    job = _read_job(file, overrides, learners)
    check_targets(drills, job.spec.learners.replicas)
    folder = workdir or Path("runs") / job.metadata.name
    if folder.exists() and not folder.is_dir():
        raise SpecError(f"--workdir {folder}: is a file, not a folder")
    where = report or folder / "report.json"
    check_report(where, folder)
    again = [("--learners", learners), ("--workdir", workdir), *(("--set", text) for text in set_ or [])]
    options = [*again, ("--report", report)]
    resume = (_program(), "run", str(file), *(str(part) for pair in options if pair[1] is not None for part in pair))
    raise typer.Exit(run_job(job, RunOptions(workdir=folder, report=where, drills=tuple(drills), resume=resume)))


cluster_app.register(app)


def main() -> None:
    """Entry point: ends the process with the run's exit code."""
    try:
        code = app(sys.argv[1:] or ["--help"], prog_name="diloco", standalone_mode=False)
    except SpecError as error:
        complain(str(error))
        code = ExitStatus.INVALID
    except _USAGE_ERROR as error:
        complain(f"{_usage(error)} (see {_command(error)} --help)")
        code = ExitStatus.INVALID
    except ClusterError as error:
        complain(str(error))
        code = ExitStatus.INVALID if isinstance(error, BadCredentials) else ExitStatus.FAILED
    except OSError as error:  # of a path that was given; what can be said before is said in better words
        complain(f"{error.filename or 'the run'}: {error.strerror or error}")
        code = ExitStatus.INVALID
    except KeyboardInterrupt:
        code = ExitStatus.INTERRUPTED
    sys.stdout.flush()
    sys.exit(int(code or 0))


def _usage(error: Exception) -> str:
    """Text of a ClickException, with the option it is about."""
    format_message: Callable[[], str] = getattr(error, "format_message", lambda: str(error))
    return format_message()


def _command(error: Exception) -> str:
    """The command whose arguments were wrong, as it is typed."""
    context = getattr(error, "ctx", None)
    return str(context.command_path) if context is not None else "diloco"


def _program() -> str:
    """What to type for this program from here: as it was called, or where it is installed."""
    called = Path(sys.argv[0])
    if called.name == "diloco" and called.exists():
        on_path = shutil.which("diloco")
        return "diloco" if on_path and Path(on_path).absolute() == called.absolute() else str(called)
    return str(Path(sys.executable).parent / "diloco")


def _read_job(file: Path, overrides: list[tuple[str, str]], learners: int | None) -> DiLoCoJob:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{file}: is not UTF-8 text") from error
    if learners is None:
        return load_job(text, str(file), overrides)
    try:
        return load_job(text, str(file), [*overrides, (_REPLICAS, str(learners))])
    except SpecError as error:
        if not str(error).startswith(f"--set: {_REPLICAS}: "):
            raise
        raise SpecError(str(error).replace("--set:", "--learners:", 1)) from error

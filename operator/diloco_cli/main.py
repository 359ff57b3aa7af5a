"""The program `diloco`: reads arguments, turns every mistake into one line on stderr, and returns the exit code."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from diloco_api.errors import SpecError
from diloco_api.manifest import load_job, parse_override
from diloco_api.v1alpha1 import DiLoCoJob
from diloco_cli.drills import check_targets, parse_drill
from diloco_cli.exit_status import ExitStatus
from diloco_cli.local_job import RunOptions, run_job

_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[2]  # ClickException, of whichever click typer brings

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train one model with many Learners that meet only every few hundred steps.",
)


@app.callback()
def diloco() -> None:
    """Keeps `run` a command of its own."""


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
    if learners is not None:
        if learners < 1:
            raise SpecError(f"--learners {learners}: must be at least 1")
        overrides.append(("spec.learners.replicas", str(learners)))
    job = _read_job(file, overrides)
    check_targets(drills, job.spec.learners.replicas)
    folder = workdir or Path("runs") / job.metadata.name
    where = report or folder / "report.json"
    if folder.absolute() not in where.absolute().parents:  # the work folder is the run's own concern
        _check_report(where)
    raise typer.Exit(
        run_job(job, RunOptions(workdir=folder, report=where, drills=tuple(drills), command=("diloco", *sys.argv[1:])))
    )


def main() -> None:
    """Entry point: ends the process with the run's exit code."""
    try:
        code = app(prog_name="diloco", standalone_mode=False)
    except SpecError as error:
        code = _complain(str(error), ExitStatus.INVALID)
    except _USAGE_ERROR as error:
        code = _complain(f"{_usage(error)} (see diloco run --help)", ExitStatus.INVALID)
    except KeyboardInterrupt:
        code = ExitStatus.INTERRUPTED
    sys.stdout.flush()
    sys.exit(int(code or 0))


def _usage(error: Exception) -> str:
    """Text of a ClickException, with the option it is about."""
    format_message: Callable[[], str] = getattr(error, "format_message", lambda: str(error))
    return format_message()


def _complain(text: str, code: ExitStatus) -> ExitStatus:
    print(f"error: {' '.join(text.split())}", file=sys.stderr)
    return code


def _read_job(file: Path, overrides: list[tuple[str, str]]) -> DiLoCoJob:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{file}: is not UTF-8 text") from error
    return load_job(text, str(file), overrides)


def _check_report(path: Path) -> None:
    """What can be known now about a file that is written at the end."""
    if path.is_dir():
        raise SpecError(f"--report {path}: is a folder")
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise SpecError(f"--report {path}: {parent} cannot be written")

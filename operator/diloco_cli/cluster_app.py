"""The commands that speak to clusters: arguments in, tables and lines out. What they need is imported when they run.

The hub is the cluster of the user's kubeconfig (KUBECONFIG, else ~/.kube/config), in the context given or current.
"""

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from diloco_api.errors import SpecError
from diloco_cli.exit_status import ExitStatus

Context = Annotated[str | None, typer.Option(metavar="NAME", help="Context of the kubeconfig; default: current.")]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", metavar="NAME", help="Of the jobs; default the context's.")
]

site_app = typer.Typer(help="Other clusters in which Learners may run.")


@site_app.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the site, and of its Secret.")],
    kubeconfig: Annotated[
        Path, typer.Option(metavar="FILE", help="Kubeconfig of the site; the notes of the chart diloco-site make one.")
    ],
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Give the hub's operator the kubeconfig of a site, or a new one in place of the old."""
    from diloco_cli.cluster import open_own, read_site_file
    from diloco_cli.site_commands import add_site

    _check_name(name)
    content = read_site_file(kubeconfig)
    hub = open_own(context)
    where = namespace or hub.namespace
    done = add_site(hub, where, name, content)
    print(f"site {name}: Secret {name} {done} in namespace {where} of {hub.server}")
    print(f"next: diloco site check {name}" + (f" --namespace {namespace}" if namespace else ""))


@site_app.command()
def check(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the site's Secret.")],
    namespace: Namespace = None,
    site_namespace: Annotated[
        str | None, typer.Option(metavar="NAME", help="Namespace used at the site; default that of the jobs.")
    ] = None,
    context: Context = None,
) -> None:
    """Say whether a site can be used: reachable, which cluster, namespace, rights."""
    from diloco_cli import site_table
    from diloco_cli.cluster import open_own, open_site
    from diloco_cli.display import make_console, print_last
    from diloco_cli.site_commands import check_site, is_usable, read_site

    hub = open_own(context)
    where = namespace or hub.namespace
    findings = check_site(read_site(hub, where, name), site_namespace or where, open_site)
    print_last(make_console(), site_table.draw(findings))
    raise typer.Exit(ExitStatus.COMPLETE if is_usable(findings) else ExitStatus.FAILED)


def status(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="Name of a job; default all.")] = None,
    namespace: Namespace = None,
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Jobs of all namespaces.")] = False,
    context: Context = None,
) -> None:
    """Show the jobs of a cluster, or one of them with its sites and Learners."""
    from diloco_cli.cluster import open_own
    from diloco_cli.display import make_console, print_last
    from diloco_cli.job_status import draw_job, draw_jobs, jobs_path, read_job

    if job is not None and all_namespaces:
        raise SpecError("--all-namespaces: goes without the name of a job")
    hub = open_own(context)
    where = namespace or hub.namespace
    if job is not None:
        print_last(make_console(), draw_job(read_job(hub, where, job)))
        return
    jobs = hub.request("GET", jobs_path(None if all_namespaces else where)).get("items") or []
    if not jobs:
        print("no jobs" if all_namespaces else f"no jobs in namespace {where}")
        return
    print_last(make_console(), draw_jobs(jobs, with_namespace=all_namespaces))


def logs(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Name of a job.")],
    learner: Annotated[int | None, typer.Option(metavar="I", help="Index of a Learner.")] = None,
    synchronizer: Annotated[bool, typer.Option("--synchronizer", help="The Synchronizer's log; the default.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the pod ends.")] = False,
    tail: Annotated[int | None, typer.Option(metavar="N", min=0, help="Only the last N lines.")] = None,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Print the log of a Learner, at whichever site it runs, or of the Synchronizer."""
    from diloco_cli.cluster import open_own, open_site
    from diloco_cli.display import silence
    from diloco_cli.job_status import read_job
    from diloco_cli.pod_logs import find_learner, find_synchronizer

    if learner is not None and synchronizer:
        raise SpecError("--learner and --synchronizer: give one")
    hub = open_own(context)
    found = read_job(hub, namespace or hub.namespace, job)
    place = find_synchronizer(hub, found) if learner is None else find_learner(hub, found, learner, open_site)
    try:
        for line in place.lines(follow, tail):
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
    except BrokenPipeError:
        silence()  # `diloco logs | head`


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.add_typer(site_app, name="site")
    app.command()(status)
    app.command()(logs)


def _check_name(name: str) -> None:
    from diloco_api import names

    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name) or len(name) > 63:
        raise SpecError(f"{name}: the name of a site has at most 63 of a-z, 0-9 and -, without - at its ends")
    if name == names.HUB_SITE:
        raise SpecError(f"{name}: is the name of the cluster the jobs are in, which needs no kubeconfig")

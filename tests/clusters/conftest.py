"""One set of clusters for a whole session: reused where it is up (make clusters-up), else brought up and taken down.

The process enters the namespace `wan`: it reaches every API server and NodePort, and nothing outside this machine.
Sessions that run side by side have a set each (run.py).
"""

import itertools
import os
import sys
from collections.abc import Callable, Iterator

import pytest

from clusters import (
    build,
    charts,
    cli,
    endless_job,
    faults,
    images,
    load,
    node,
    pace,
    shape,
    sharing,
    storage,
    workloads,
)
from clusters import site as site_module
from clusters.api import Api
from clusters.installation import Installation
from clusters.layout import Layout, NodeLayout, SiteLayout
from clusters.processes import Processes
from clusters.pythons import REPOSITORY, PythonEnvironment
from clusters.scene import Scene

_numbers = itertools.count(1)

figure = sharing.figure
pytest_addoption = sharing.pytest_addoption
pytest_collection_modifyitems = sharing.pytest_collection_modifyitems
pytest_runtest_protocol = sharing.pytest_runtest_protocol
pytest_runtest_logreport = sharing.pytest_runtest_logreport
pytest_terminal_summary = sharing.pytest_terminal_summary


@pytest.fixture(scope="session")
def clusters() -> Iterator[Layout]:
    """Hub, site-1 and site-2, whole."""
    layout = Layout.from_environment()
    ours = not layout.folder.exists()
    try:
        cli.up(layout)
        with pace.kept(layout):
            yield layout
    finally:
        if ours:
            cli.down(layout)


@pytest.fixture
def hub(clusters: Layout) -> SiteLayout:
    return clusters.hub


@pytest.fixture
def site_1(clusters: Layout) -> SiteLayout:
    return clusters.site("site-1")


@pytest.fixture
def new_namespace() -> Iterator[Callable[..., str]]:
    """Makes namespaces with a name of their own, restricted unless said otherwise; removed after the test."""
    made: list[tuple[Api, str]] = []

    def make(*sites: SiteLayout, restricted: bool = True) -> str:
        name = f"test-{os.getpid()}-{next(_numbers)}"
        for site in sites:
            api = Api(site)
            api.apply(workloads.namespace(name, restricted=restricted))
            made.append((api, name))
        return name

    yield make
    for api, name in made:
        api.delete("v1", "Namespace", None, name)


@pytest.fixture
def healed(clusters: Layout) -> Iterator[None]:
    """Whatever the test cuts, stops or slows down is whole again afterwards."""
    yield
    faults.heal_everything(clusters)
    for site in clusters.sites():
        shape.limit(site, 0)


@pytest.fixture(scope="session")
def python(clusters: Layout) -> PythonEnvironment:
    """The interpreter that runs the tests, with what is installed for it, on every node."""
    environment = PythonEnvironment()
    for site in clusters.sites():
        environment.load(clusters, site)
    return environment


@pytest.fixture(scope="session")
def operator_image(clusters: Layout) -> None:
    """Built from this tree and on the hub's nodes; layers of earlier builds are used."""
    base = "localhost/python-base"
    with build.locked(build.cache() / "operator-image.lock"):
        charts.outside(REPOSITORY / "tests/images/base.sh", base)
        charts.outside(sys.executable, REPOSITORY / ".ci/images.py", "build", "operator", "--base-image", base)
    load.load(clusters, "operator", "dev")


@pytest.fixture(scope="module")
def installation(
    clusters: Layout, python: PythonEnvironment, operator_image: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    """An operator by its chart, two sites by theirs, a namespace for jobs. Shared by the tests of a module."""
    name = f"jobs-{os.getpid()}-{next(_numbers)}"
    storage.provide(clusters.hub, clusters.hub.node(0), cli.FREE_VOLUMES)
    made = Installation(clusters, python, f"{name}-own", name)
    for site in made.sites:
        Api(site).apply(workloads.namespace(name))
    made.hub.apply(workloads.namespace(made.own_namespace))
    try:
        made.set_up(tmp_path_factory.mktemp("installation"))
        yield made
    finally:
        made.take_down()
        made.hub.delete("v1", "Namespace", None, made.own_namespace)
        for site in made.sites:
            Api(site).delete("v1", "Namespace", None, name)


@pytest.fixture(scope="module")
def run(installation: Installation) -> Installation:
    """The installation, with a job at work that does not end by itself."""
    installation.hub.create(installation.example(endless_job.JOB, endless_job.endless))
    return installation


@pytest.fixture
def scene(run: Installation, healed: None, figure: Callable[[str], None]) -> Iterator[Scene]:
    """The job whole, and eyes on it."""
    endless_job.whole(run, 400)
    with Scene(run, endless_job.JOB, tell=figure) as opened:
        yield opened


@pytest.fixture
def second_node(clusters: Layout, python: PythonEnvironment) -> Iterator[NodeLayout]:
    """Another real node of site-2, which the test may lose; gone afterwards."""
    site = clusters.site("site-2")
    added, processes = site.node(1), Processes(site.folder)
    try:
        site_module.start(site, 2, [images.archive(clusters, images.busybox())])
        faults.restore(clusters)
        python.load(clusters, site)
        yield added
    finally:
        node.remove(added, processes)

"""One set of clusters for a whole run: reused where it is up (make clusters-up), else brought up and taken down.

The process enters the namespace `wan`: it reaches every API server and NodePort, and nothing outside this machine.
"""

import itertools
import os
from collections.abc import Callable, Iterator

import pytest

from clusters import cli, faults, shape, workloads
from clusters.api import Api
from clusters.layout import Layout, SiteLayout
from clusters.pythons import PythonEnvironment

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def clusters() -> Iterator[Layout]:
    """Hub, site-1 and site-2, whole."""
    layout = Layout.from_environment()
    ours = not layout.folder.exists()
    try:
        cli.up(layout)
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

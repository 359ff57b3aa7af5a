"""`python -m diloco_operator.self_test`: what `helm test` asks an installation, from a pod beside the operator's.

The API of jobs is served; a sample job would be accepted (a trial the API server does not keep); the operator is
healthy; its metrics can be scraped. A line each; exit code 0 when all of it is so within the time given.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence

import aiohttp

from diloco_api import names
from diloco_operator.api import Api, Document, jobs_path
from diloco_operator.hub import HubError
from diloco_operator.kube_api import KubeApi
from diloco_operator.sites.kubeconfig import in_cluster_credentials

AGAIN_SECONDS = 2.0
ANSWER_SECONDS = 10.0
SAMPLE: Document = {
    "apiVersion": names.API_VERSION,
    "kind": names.KIND,
    "metadata": {"name": "helm-test"},
    "spec": {"train": {"data": {"uri": "{stdlib}/**/*.py"}}, "learners": {"replicas": 1}},
}
_SERIES = "diloco_build_info"

Check = Callable[[], Awaitable[str]]
"""Says what it found; a CheckFailed otherwise."""


class CheckFailed(Exception):
    """What is not as it should be."""


async def api_is_served(api: Api) -> str:
    """The definition of jobs is established once discovery names its version and resource."""
    found = await api.request("GET", f"/apis/{names.API_VERSION}")
    if names.PLURAL not in {one.get("name") for one in found.get("resources", [])}:
        raise CheckFailed(f"{names.API_VERSION} has no {names.PLURAL}")
    return f"{names.API_VERSION} {names.PLURAL} is served"


async def sample_is_accepted(api: Api, namespace: str) -> str:
    """With the defaults and rules of the installed definition."""
    made = await api.request("POST", jobs_path(namespace), SAMPLE, query={"dryRun": "All", "fieldValidation": "Strict"})
    if not made.get("spec", {}).get("algorithm"):
        raise CheckFailed("the sample job got no defaults: the CustomResourceDefinition is not the operator's")
    return f"a sample job would be accepted in namespace {namespace}"


async def operator_is_healthy(http: aiohttp.ClientSession, url: str) -> str:
    await _text(http, url)
    return f"healthy: {url}"


async def metrics_are_scraped(http: aiohttp.ClientSession, url: str) -> str:
    if _SERIES not in await _text(http, url):
        raise CheckFailed(f"{url} has no series {_SERIES}")
    return f"metrics: {url}"


async def _text(http: aiohttp.ClientSession, url: str) -> str:
    async with http.get(url) as answer:
        text = await answer.text()
    if answer.status != 200:
        raise CheckFailed(f"{url}: {answer.status}: {' '.join(text.split())[:200]}")
    return text


async def passes(
    check: Check, deadline: float, tell: Callable[[str], None], again_seconds: float = AGAIN_SECONDS
) -> bool:
    """Ask until it is so or the time (of the monotonic clock) is over: an operator just installed is starting."""
    while True:
        try:
            tell(f"ok      {await check()}")
            return True
        except (CheckFailed, HubError, aiohttp.ClientError, TimeoutError) as error:
            problem = str(error) or type(error).__name__
        if time.monotonic() + again_seconds > deadline:
            tell(f"FAILED  {problem}")
            return False
        await asyncio.sleep(again_seconds)


async def run(options: argparse.Namespace) -> int:
    """Every check, whatever became of those before; the exit code."""
    deadline = time.monotonic() + options.timeout_seconds
    checks: list[Check] = []
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        api = KubeApi(in_cluster_credentials()) if options.trial_namespace else None
        if api is not None:
            checks += [lambda: api_is_served(api), lambda: sample_is_accepted(api, options.trial_namespace)]
        if options.health_url:
            checks.append(lambda: operator_is_healthy(http, options.health_url))
        if options.metrics_url:
            checks.append(lambda: metrics_are_scraped(http, options.metrics_url))
        try:
            results = [await passes(check, deadline, print) for check in checks]
        finally:
            if api is not None:
                await api.close()
    return 0 if all(results) else 1


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m diloco_operator.self_test", description="What `helm test` asks.")
    parser.add_argument(
        "--trial-namespace", default="", help="where a sample job is tried; default: the API is not asked"
    )
    parser.add_argument("--health-url", default="", help="/healthz of the operator; default: it is not asked")
    parser.add_argument("--metrics-url", default="", help="/metrics of the operator; default: it is not asked")
    parser.add_argument("--timeout-seconds", type=float, default=120, help="for all of it (default %(default)g)")
    options = parser.parse_args(arguments)
    if not (options.trial_namespace or options.health_url or options.metrics_url):
        parser.error("nothing to ask for: give --trial-namespace, --health-url or --metrics-url")
    return options


if __name__ == "__main__":
    sys.exit(asyncio.run(run(read_options())))

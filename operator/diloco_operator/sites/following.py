"""Following what happens at a site, for ever, and telling in the log what went wrong there.

A watch only wakes: what it tells is looked for again. So one that ended or broke is begun anew, and nothing is lost.
"""

import asyncio
import logging
from collections.abc import Callable

from diloco_operator.sites.site import Site, SiteError

log = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 60.0


async def follow(
    site: Site, job_uid: str, wake: Callable[[], None], first_retry_seconds: float = FIRST_RETRY_SECONDS
) -> None:
    """Call `wake` on every change of the job's objects until cancelled; broken watches wait longer and longer."""
    wait = first_retry_seconds
    while True:
        seen, error = await _one_watch(site, job_uid, wake)
        wait = first_retry_seconds if seen else wait
        if error is None:
            log.info("site %s: its watch ended", site.name)
        else:
            report(f"site {site.name}: watch", error)
        await asyncio.sleep(wait)
        wait = min(LONGEST_RETRY_SECONDS, 2 * wait)
        wake()


async def _one_watch(site: Site, job_uid: str, wake: Callable[[], None]) -> tuple[bool, BaseException | None]:
    """One watch until it ends: whether it told anything, and what broke it."""
    seen = False

    async def listen() -> None:
        nonlocal seen
        async for _ in site.watch(job_uid):
            seen = True
            wake()

    (error,) = await asyncio.gather(listen(), return_exceptions=True)
    return seen, error


def report(what: str, error: BaseException) -> None:
    """Into the log: known failures as a line, others with where they come from. A cancellation goes on."""
    if not isinstance(error, Exception):
        raise error
    if isinstance(error, SiteError):
        log.warning("%s: %s: %s", what, error.reason, error)
    else:
        log.error("%s: unexpected %r", what, error, exc_info=error)

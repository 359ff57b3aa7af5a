"""Prometheus series of totals and of the present, read from the engine's latest `Progress` at every scrape.

Series are made anew each time, so that those of Learners that do not exist are not there. What is measured as it
happens is in `measures`. Seconds of Learners by state are the operator's to tell.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from diloco_api.progress import Progress
from diloco_trainer.wire.families import Labels, family


@dataclass(frozen=True, slots=True)
class Pace:
    """What Progress does not tell of outer steps."""

    deadline_seconds: float
    last_at: float | None
    """Unix seconds; None before the first."""


class ProgressCollector(Collector):
    """Register it in the process's registry."""

    def __init__(
        self, job_name: str, job_namespace: str, latest: Callable[[], Progress], pace: Callable[[], Pace]
    ) -> None:
        """`latest` and `pace` may be called on any thread."""
        self._job = (job_name, job_namespace)
        self._latest = latest
        self._pace = pace

    def collect(self) -> Iterator[Metric]:
        progress, pace = self._latest(), self._pace()
        values = {
            "diloco_outer_steps_total": progress.outer_steps,
            "diloco_tokens_merged_total": progress.tokens.merged,
            "diloco_tokens_overlap_total": progress.tokens.overlap,
            "diloco_tokens_repeated_total": progress.tokens.repeated,
            "diloco_turns_announced_total": progress.turns.announced,
            "diloco_turns_skipped_total": progress.turns.skipped,
            "diloco_turns_void_total": progress.turns.void,
            "diloco_outer_step_deadline_seconds": pace.deadline_seconds,
        }
        for name, value in values.items():
            yield family(name, [(self._job, value)])
        if pace.last_at is not None:
            yield family("diloco_last_outer_step_timestamp_seconds", [(self._job, pace.last_at)])
        discarded = progress.tokens.discarded.items()
        yield family("diloco_tokens_discarded_total", [((*self._job, reason), tokens) for reason, tokens in discarded])
        yield from self._by_learner(progress)
        yield self._losses(progress)

    def _by_learner(self, progress: Progress) -> Iterator[Metric]:
        """Totals over all incarnations, by index and site, and by site."""
        tokens: dict[Labels, float] = {}
        sent: dict[Labels, float] = {}
        for learner in progress.learners:
            place = (*self._job, learner.site, str(learner.index))
            tokens[place] = tokens.get(place, 0.0) + learner.token_clock
            for direction, count in (("up", learner.bytes_up), ("down", learner.bytes_down)):
                way = (*self._job, learner.site, direction)
                sent[way] = sent.get(way, 0.0) + count
        yield family("diloco_learner_tokens_total", tokens.items())
        yield family("diloco_sync_bytes_total", sent.items())

    def _losses(self, progress: Progress) -> Metric:
        losses = {
            str(learner.index): learner.loss
            for learner in progress.learners
            if learner.live and learner.loss is not None
        }
        known = progress.loss_final if progress.loss_final is not None else progress.loss_initial
        if known is not None:
            losses["global"] = known
        return family("diloco_loss", [((*self._job, who), loss) for who, loss in losses.items()])

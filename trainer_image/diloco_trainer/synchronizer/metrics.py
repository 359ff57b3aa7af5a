"""Prometheus series of totals and of the present, read from the engine's latest `Progress` at every scrape.

Series are made anew each time, so that those of Learners that do not exist are not there. Histograms are `measures`.
"""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from diloco_api.progress import Progress

JOB = ["diloco_job", "job_namespace"]


class ProgressCollector(Collector):
    """Register it in the process's registry."""

    def __init__(self, job_name: str, job_namespace: str, latest: Callable[[], Progress]) -> None:
        """`latest` may be called on any thread."""
        self._job = [job_name, job_namespace]
        self._latest = latest

    def collect(self) -> Iterator[Metric]:
        progress = self._latest()
        yield from self._job_counters(progress)
        yield from self._learner_series(progress)
        yield from self._losses(progress)
        yield self._bytes(progress)

    def _job_counters(self, progress: Progress) -> Iterator[Metric]:
        totals = {
            "diloco_outer_steps": ("Outer steps of all fragments.", progress.outer_steps),
            "diloco_tokens_merged": ("Tokens whose progress is in the outer parameters.", progress.tokens.merged),
            "diloco_tokens_overlap": ("Tokens trained between a stage and its adoption.", progress.tokens.overlap),
            "diloco_tokens_repeated": ("Tokens leased a second time after a merge.", progress.tokens.repeated),
            "diloco_served_seconds": ("Seconds the job has run.", progress.total_served_seconds),
            "diloco_uptime_seconds": ("Part of it in which the outer step advanced.", progress.uptime_seconds),
            "diloco_fenced_updates": ("Contributions of fenced incarnations.", progress.fenced_updates),
            "diloco_turns_announced": ("Turns Learners were asked for.", progress.turns.announced),
            "diloco_turns_skipped": ("Turns skipped because a round was open.", progress.turns.skipped),
            "diloco_turns_void": ("Turns that closed without a merge.", progress.turns.void),
        }
        for name, (text, value) in totals.items():
            family = CounterMetricFamily(name, text, labels=JOB)
            family.add_metric(self._job, value)
            yield family
        discarded = CounterMetricFamily("diloco_tokens_discarded", "Tokens thrown away.", labels=[*JOB, "reason"])
        for reason, tokens in progress.tokens.discarded.items():
            discarded.add_metric([*self._job, reason], tokens)
        yield discarded

    def _learner_series(self, progress: Progress) -> Iterator[Metric]:
        """Totals of an index and site over all its incarnations."""
        seconds: dict[tuple[str, str, str], float] = {}
        tokens: dict[tuple[str, str], float] = {}
        for learner in progress.learners:
            place = (learner.site, str(learner.index))
            tokens[place] = tokens.get(place, 0.0) + learner.token_clock
            for state, value in learner.state_seconds.items():
                key = (*place, state.value)
                seconds[key] = seconds.get(key, 0.0) + value
        labels = [*JOB, "site", "learner"]
        family = CounterMetricFamily(
            "diloco_learner_state_seconds", "Seconds of Learners by state.", labels=[*labels, "state"]
        )
        for key, value in seconds.items():
            family.add_metric([*self._job, *key], value)
        yield family
        trained = CounterMetricFamily("diloco_learner_tokens", "Tokens Learners have trained.", labels=labels)
        for place, value in tokens.items():
            trained.add_metric([*self._job, *place], value)
        yield trained

    def _losses(self, progress: Progress) -> Iterator[Metric]:
        family = GaugeMetricFamily("diloco_loss", "Last reported loss, nats per token.", labels=[*JOB, "learner"])
        for learner in progress.learners:
            if learner.live and learner.loss is not None:
                family.add_metric([*self._job, str(learner.index)], learner.loss)
        loss = progress.loss_final if progress.loss_final is not None else progress.loss_initial
        if loss is not None:
            family.add_metric([*self._job, "global"], loss)
        yield family

    def _bytes(self, progress: Progress) -> Metric:
        family = CounterMetricFamily(
            "diloco_sync_bytes", "Payload bytes from (up) and to (down) Learners.", labels=[*JOB, "direction"]
        )
        family.add_metric([*self._job, "up"], progress.bytes_up)
        family.add_metric([*self._job, "down"], progress.bytes_down)
        return family

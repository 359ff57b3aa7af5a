"""The rows of a job's dashboard about its training: outer steps, the model, the links, the devices."""

from dashboards.kit import BLUE, RED, PanelBuilder, Query, lines
from dashboards.words import ONE_JOB, happened, now, per_second, quantile

_DCGM = {
    "GPU utilisation": ("DCGM_FI_DEV_GPU_UTIL", "percent", "Share of time in which anything ran on the GPU."),
    "Tensor cores": ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "percentunit", "Share of cycles the tensor cores worked."),
    "GPU memory": ("DCGM_FI_DEV_FB_USED", "decmbytes", "Memory in use."),
    "GPU power": ("DCGM_FI_DEV_POWER_USAGE", "watt", "Power drawn."),
}


def outer_steps() -> list[PanelBuilder]:
    return [*_steps(), *_contributions()]


def _steps() -> list[PanelBuilder]:
    mean = "sum(rate({0}_sum{{{1}}}[$__rate_interval])) / (sum(rate({0}_count{{{1}}}[$__rate_interval])) > 0)"
    return [
        lines(
            "Outer steps",
            "Of all fragments, a second.",
            Query(f"sum(rate(diloco_outer_steps_total{{{ONE_JOB}}}[$__rate_interval]))", "outer steps"),
            unit="ops",
            width=8,
        ),
        lines(
            "Since the last outer step",
            "Against the longest time a job that advances takes.",
            Query(f"time() - max(diloco_last_outer_step_timestamp_seconds{{{ONE_JOB}}})", "since the last"),
            Query(f"max(diloco_outer_step_deadline_seconds{{{ONE_JOB}}})", "deadline"),
            unit="s",
            colors={"deadline": RED, "since the last": BLUE},
            width=8,
        ),
        lines(
            "Participants",
            "Contributions merged in an outer step.",
            Query(mean.format("diloco_outer_step_participants", ONE_JOB), "mean"),
            Query(f"max(diloco_job_learners_desired{{{ONE_JOB}}})", "Learners wanted"),
            width=8,
        ),
        lines(
            "Duration of an outer step",
            "Merge, step and durable record of one fragment.",
            Query(quantile(0.5, "diloco_outer_step_seconds", ONE_JOB), "half of them below"),
            Query(quantile(0.95, "diloco_outer_step_seconds", ONE_JOB), "95 % below"),
            unit="s",
            width=8,
        ),
    ]


def _contributions() -> list[PanelBuilder]:
    return [
        lines(
            "Staleness",
            "Outer versions the base of a merged contribution was behind, mean by site.",
            Query(
                f"{per_second('diloco_update_staleness_steps_sum', ONE_JOB, 'site')}"
                f" / ({per_second('diloco_update_staleness_steps_count', ONE_JOB, 'site')} > 0)",
                "{{site}}",
            ),
            width=8,
        ),
        lines(
            "Turns",
            "Asked for, skipped because a round was open, closed without a merge; a second.",
            Query(f"sum(rate(diloco_turns_announced_total{{{ONE_JOB}}}[$__rate_interval]))", "announced"),
            Query(f"sum(rate(diloco_turns_skipped_total{{{ONE_JOB}}}[$__rate_interval]))", "skipped"),
            Query(f"sum(rate(diloco_turns_void_total{{{ONE_JOB}}}[$__rate_interval]))", "void"),
            unit="ops",
            width=8,
        ),
    ]


def model() -> list[PanelBuilder]:
    return [
        lines(
            "Loss",
            "Training loss of each Learner, and the validation loss of the outer parameters as `global`.",
            Query(now("diloco_loss", ONE_JOB, "learner"), "{{learner}}"),
            colors={"global": RED},
            width=8,
        ),
        lines(
            "Tokens",
            "Trained by the Learners of each site, and merged into the model; a second.",
            Query(per_second("diloco_learner_tokens_total", ONE_JOB, "site"), "trained at {{site}}"),
            Query(f"sum(rate(diloco_tokens_merged_total{{{ONE_JOB}}}[$__rate_interval]))", "merged"),
            width=8,
        ),
        lines(
            "Tokens that did not count",
            "Discarded by reason, overwritten at an adoption, leased twice; a second.",
            Query(per_second("diloco_tokens_discarded_total", ONE_JOB, "reason"), "discarded: {{reason}}"),
            Query(f"sum(rate(diloco_tokens_overlap_total{{{ONE_JOB}}}[$__rate_interval]))", "overlap"),
            Query(f"sum(rate(diloco_tokens_repeated_total{{{ONE_JOB}}}[$__rate_interval]))", "repeated"),
            width=8,
        ),
    ]


def links() -> list[PanelBuilder]:
    return [
        lines(
            "Bytes by site",
            "Payload from (up) and to (down) the Learners of each site.",
            Query(per_second("diloco_sync_bytes_total", ONE_JOB, "site, direction"), "{{site}} {{direction}}"),
            unit="Bps",
            width=8,
        ),
        lines(
            "Transfer of a fragment",
            "95 % take less, by site and direction.",
            Query(quantile(0.95, "diloco_sync_transfer_seconds", ONE_JOB, "site, direction"), "{{site}} {{direction}}"),
            unit="s",
            width=8,
        ),
        lines(
            "Refused from fenced Learners",
            "Contributions of incarnations that have a successor.",
            Query(happened("diloco_fenced_updates_total", ONE_JOB, "site"), "{{site}}"),
            bars=True,
            width=8,
        ),
    ]


def devices() -> list[PanelBuilder]:
    return [
        lines(
            title,
            f"{text} Of the pods that are the job's Learners now.",
            Query(_of_learners(name), "Learner {{learner}} at {{site}}"),
            unit=unit,
            width=6,
        )
        for title, (name, unit, text) in _DCGM.items()
    ]


def _of_learners(name: str) -> str:
    """A series of dcgm-exporter with the Learner whose pod it is, whether or not scraping renamed the pod's label."""

    def by_pod(series: str) -> str:
        return f'label_replace({series}, "pod", "$1", "exported_pod", "(.+)")'

    learners = by_pod(f"diloco_learner_pod_info{{{ONE_JOB}}}")
    return (
        f"avg by (pod) ({by_pod(name)}) * on (pod) group_left (learner, site) max by (pod, learner, site) ({learners})"
    )

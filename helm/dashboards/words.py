"""What several dashboards say alike: selectors of a job and a site, states with their colours, common queries."""

from dashboards.kit import BLUE, GRAY, GREEN, ORANGE, PURPLE, RED, YELLOW
from diloco_api.states import GoodputState

PAIR = "diloco_job, job_namespace"
FLEET = 'job_namespace=~"$namespace"'
ONE_JOB = 'job_namespace="$namespace", diloco_job="$job"'
ONE_SITE = 'job_namespace=~"$namespace", site="$site"'
API_OF_SITE = 'site="$site"'

STATE_COLORS = {
    GoodputState.TRAINING: GREEN,
    GoodputState.SYNC_WAIT: YELLOW,
    GoodputState.DATA_WAIT: "#d4a72c",
    GoodputState.CHECKPOINT: "#7eb26d",
    GoodputState.RESTORE: BLUE,
    GoodputState.INIT: "light-blue",
    GoodputState.DRAIN: "#a3d9a5",
    GoodputState.PENDING: PURPLE,
    GoodputState.QUEUED: "#b877d9",
    GoodputState.LOST: RED,
    GoodputState.STALLED: ORANGE,
    GoodputState.SITE_UNREACHABLE: "dark-red",
    GoodputState.EXCLUDED: GRAY,
}
COLOR_OF_STATE = {state.value: color for state, color in STATE_COLORS.items()}
NAME_OF_STATE = {float(number): (state.value, color) for number, (state, color) in enumerate(STATE_COLORS.items())}
"""States as the numbers a timeline's query gives them."""
SHARE_STEPS = ((None, RED), (0.5, ORANGE), (0.8, YELLOW), (0.9, GREEN))
YES_NO = {1.0: ("yes", GREEN), 0.0: ("no", RED)}


def state_numbers(selector: str) -> str:
    """PromQL: for every Learner the number of the state most of its time went into."""
    parts = [
        f"({number} + 0 * (sum by (learner) ("
        f'rate(diloco_learner_state_seconds_total{{{selector}, state="{state.value}"}}[$__rate_interval])) >= 0.5))'
        for number, state in enumerate(STATE_COLORS)
    ]
    return " or ".join(parts)


def quantile(share: float, histogram: str, selector: str, by: str = "") -> str:
    """PromQL: a quantile of a histogram over the panel's resolution."""
    labels = f"le, {by}" if by else "le"
    return (
        f"histogram_quantile({share}, sum by ({labels}) (rate({histogram}_bucket{{{selector}}}[$__rate_interval])))"
    )  # fmt: skip


def per_second(counter: str, selector: str, by: str) -> str:
    """PromQL: rate of a counter by labels."""
    return f"sum by ({by}) (rate({counter}{{{selector}}}[$__rate_interval]))"


def happened(counter: str, selector: str, by: str, window: str = "$__rate_interval") -> str:
    """PromQL: what a counter of rare events counted; also the first of a series, which `increase` does not see."""
    series = f"{counter}{{{selector}}}"
    before = f"last_over_time({series}[1h] offset {window})"
    return f"sum by ({by}) (clamp_min({series} - ({before} or 0 * {series}), 0)) > 0"


def now(gauge: str, selector: str, by: str) -> str:
    """PromQL: a gauge by labels, once however often it was scraped."""
    return f"max by ({by}) ({gauge}{{{selector}}})"

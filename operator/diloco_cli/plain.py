"""The run as plain lines, for logs and pipes: no colours, no cursor movement, one fact a line. Pure."""

from diloco_cli import wording
from diloco_cli.view import Happening, Headline, LearnerRow, View

LINE_EVERY_SECONDS = 5.0


def headline(head: Headline) -> str:
    """The first line of a run."""
    return (
        f"job {head.job}: {head.preset}, {head.replicas} Learners, {wording.count(head.parameters)} parameters, "
        f"{wording.count(head.budget_tokens)} tokens; work folder {head.workdir}"
    )


def line(view: View) -> str:
    """One line for the whole state."""
    if view.waiting_for:
        return f"{_stamp(view.elapsed_seconds)} {view.waiting_for}"
    goodput = view.goodput
    facts = [
        f"{view.percent:.1f} %",
        f"eta {wording.duration(view.eta_seconds)}",
        f"round {view.outer_rounds}, {view.outer_steps} outer steps",
        f"{wording.count(view.tokens_per_second)} tokens/s",
        "loss " + _losses(view.learners),
        "goodput " + " / ".join(wording.share(part) for part in (goodput.capacity, goodput.accepted, goodput.uptime)),
        "Learners " + " ".join(f"{row.index}:{row.state}" for row in view.learners),
    ]
    return f"{_stamp(view.elapsed_seconds)} " + "  ".join(facts)


def happening(what: Happening) -> str:
    return f"{_stamp(what.elapsed_seconds)} * {what.text}"


def _losses(rows: tuple[LearnerRow, ...]) -> str:
    known = [row.loss for row in rows if row.loss is not None]
    return wording.loss(sum(known) / len(known)) if known else "-"


def _stamp(seconds: float) -> str:
    return f"[{seconds:6.1f} s]"

"""What a Learner's log says of its way to the Synchronizer is read as it was meant."""

import pytest

from diloco_api.reach import REACHED_LINE, Failure, Unreached, last_said, unreached_line

STAMP = "2026-01-01 00:00:00,000 WARNING diloco_trainer.wire.reach: "
REFUSED = Unreached(Failure.TCP, "192.0.2.1:31400: Connection refused")


@pytest.mark.parametrize("failure", Failure)
def test_what_is_written_is_read(failure: Failure) -> None:
    said = Unreached(failure, "sync.example.com:443: no answer: at all")
    assert last_said(f"before\n{STAMP}{unreached_line(str(said))}\nafter\n") == said


def test_the_last_line_counts() -> None:
    lines = [unreached_line("DNSFailure: a:1: unknown"), REACHED_LINE, unreached_line(str(REFUSED))]
    assert last_said("\n".join(STAMP + line for line in lines)) == REFUSED
    assert last_said("\n".join(STAMP + line for line in [*lines, REACHED_LINE, "step 1"])) is None


@pytest.mark.parametrize(
    "log",
    [
        "",
        "joined in epoch 0",
        str(REFUSED),
        unreached_line("Sunspots: many"),
        unreached_line("TCPFailure: "),
        "who says that " + REACHED_LINE + " is wrong",
    ],
)
def test_other_lines_say_nothing(log: str) -> None:
    assert last_said(log) is None

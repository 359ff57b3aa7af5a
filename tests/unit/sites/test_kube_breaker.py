"""When a site is not even asked."""

import pytest

from diloco_operator.sites.kube_breaker import Breaker, Pauses
from diloco_operator.sites.site import SiteBusy, SiteTCPFailure, SiteTLSFailure


def test_it_opens_after_failures_in_a_row_and_keeps_the_last_reason() -> None:
    breaker = Breaker(Pauses())
    breaker.failed(SiteTLSFailure("first"))
    breaker.failed(SiteTLSFailure("second"))
    assert breaker.refusal(0.0) is None
    breaker.failed(SiteTCPFailure("third"))
    refusal = breaker.refusal(0.0)
    assert isinstance(refusal, SiteTCPFailure)
    assert str(refusal) == "third"
    assert breaker.refusal(0.0) is not refusal  # each caller has a traceback of its own


def test_an_answer_between_failures_starts_the_count_anew() -> None:
    breaker = Breaker(Pauses())
    for _ in range(5):
        breaker.failed(SiteTCPFailure("x"))
        breaker.failed(SiteTCPFailure("x"))
        breaker.answered()
    assert not breaker.open


def test_an_answer_closes_it() -> None:
    breaker = Breaker(Pauses(failures_in_a_row=1))
    breaker.failed(SiteTCPFailure("x"))
    breaker.answered()
    assert breaker.refusal(0.0) is None


def test_a_site_that_asked_for_it_is_left_alone_for_as_long_as_it_said() -> None:
    breaker = Breaker(Pauses())
    breaker.told_to_wait(SiteBusy("later", 7.0), now=10.0)
    refusal = breaker.refusal(12.0)
    assert isinstance(refusal, SiteBusy)
    assert refusal.retry_after == 5.0
    assert breaker.refusal(17.0) is None


@pytest.mark.parametrize(("looks", "seconds"), [(0, 1), (1, 2), (2, 4), (4, 16), (5, 30), (1000, 30)])
def test_looks_become_rarer_up_to_half_a_minute(looks: int, seconds: float) -> None:
    assert Pauses().after(looks) == seconds

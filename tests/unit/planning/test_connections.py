"""Whether a site's Learners reach the Synchronizer, in their own words, and how rarely those are read."""

from itertools import pairwise

import pytest

from diloco_api.reach import REACHED_LINE, Failure, Unreached, unreached_line
from fakes.fleet import Fleet, never_heard_fleet, running_fleet

KIND = "SynchronizerReachable"
DNS = unreached_line(str(Unreached(Failure.DNS, "sync.example.com:443: Name or service not known")))
TCP = unreached_line(str(Unreached(Failure.TCP, "192.0.2.11:31400: no answer")))


def message(fleet: Fleet, site: str = "site-2") -> str:
    return next(c.message for c in fleet.site(site).conditions if c.type == KIND)


def cut(fleet: Fleet, log: str) -> None:
    """The Learners of site-2 (1 and 3) lose their way and say something about it."""
    fleet.clusters["site-2"].cut = True
    for index in (1, 3):
        fleet.clusters["site-2"].logs[fleet.learner(index).name] = log


@pytest.mark.parametrize("failure", [Failure.DNS, Failure.TCP, Failure.TLS])
def test_a_silent_site_says_what_its_learners_say(failure: Failure) -> None:
    fleet = running_fleet()
    cut(fleet, "joined\n" + unreached_line(str(Unreached(failure, "192.0.2.11:31400: so it is"))))
    fleet.pass_time(40)
    fleet.step()
    assert fleet.site_condition("site-2", KIND) == ("False", failure.value)
    assert message(fleet) == "192.0.2.11:31400: so it is"
    degraded = fleet.condition("Degraded")
    assert (degraded.reason, degraded.message) == (
        "LearnersMissing", f"site-2: {failure.value}: 192.0.2.11:31400: so it is"
    )  # fmt: skip
    assert fleet.site_condition("site-1", KIND) == ("True", "Connected")


def test_learners_that_have_never_been_heard_say_it_too() -> None:
    fleet = never_heard_fleet("site-1", "site-2")
    assert fleet.reads == [], "they have only just begun"
    for cluster in fleet.clusters.values():
        cluster.logs = dict.fromkeys(cluster.pods, DNS)
    fleet.pass_time(15, every=5)
    fleet.step()
    for site in ("site-1", "site-2"):
        assert fleet.site_condition(site, KIND) == ("False", "DNSFailure")
        assert "sync.example.com:443" in message(fleet, site)


def test_learners_that_never_reach_the_synchronizer_from_their_site_move_and_it_is_not_their_fault() -> None:
    fleet = never_heard_fleet("site-2")
    cluster = fleet.clusters["site-2"]
    cluster.logs = dict.fromkeys(cluster.pods, TCP)
    fleet.pass_time(590, every=5)
    assert set(fleet.where().values()) == {"site-1", "site-2"}, "it may be mended"
    fleet.pass_time(60, every=5)
    assert set(fleet.where().values()) == {"site-1"}
    assert fleet.site_condition("site-2", "Eligible") == ("False", "TCPFailure")
    assert [fleet.row(index).restarts_counted for index in range(4)] == [0] * 4
    fleet.pass_time(300, every=5)
    assert fleet.site_condition("site-2", "Eligible") == ("False", "TCPFailure"), "nothing has proved the contrary"


def test_where_there_is_no_other_place_the_site_is_tried_with_one_learner_at_a_time() -> None:
    fleet = never_heard_fleet("site-1", "site-2")
    for _ in range(300):
        for cluster in fleet.clusters.values():
            cluster.logs = dict.fromkeys(cluster.pods, TCP)
        fleet.run_all()
        fleet.pass_time(5, every=5)
    states = sorted(fleet.row(index).state for index in range(4))
    assert states == ["BackOff", "BackOff", "Starting", "Starting"], "one at each site"
    assert [fleet.row(index).restarts_counted for index in range(4)] == [0] * 4
    for cluster in fleet.clusters.values():
        cluster.cut = False
    for _ in range(10):
        fleet.run_all()
        fleet.pass_time(10, every=5)
    assert [fleet.row(index).state for index in range(4)] == ["Running"] * 4
    assert fleet.site_condition("site-2", "Eligible") == ("True", "Ok")


def test_logs_are_read_only_while_a_site_is_silent_and_seldom() -> None:
    fleet = running_fleet()
    fleet.pass_time(300)
    assert fleet.reads == []
    cut(fleet, TCP)
    begun = fleet.now
    fleet.pass_time(600, every=5)
    times = [at for at, site, _ in fleet.reads if site == "site-2"]
    assert len(times) == len(fleet.reads), "of the other site nothing was read"
    assert times[0] - begun <= 35
    assert all(30 <= after - before <= 35 for before, after in pairwise(times))
    assert len({pod for _, _, pod in fleet.reads}) == 1, "one that has something to say is asked again"
    fleet.clusters["site-2"].cut = False
    fleet.pass_time(10)
    fleet.reads.clear()
    fleet.pass_time(300)
    assert fleet.reads == []
    assert (fleet.site_condition("site-2", KIND), message(fleet)) == (("True", "Connected"), "")
    assert fleet.condition("Degraded").status == "False"


def test_a_site_its_learners_have_left_is_no_longer_the_jobs_trouble() -> None:
    fleet = running_fleet()
    cut(fleet, TCP)
    fleet.clusters["site-2"].down = "TCPFailure"
    fleet.pass_time(400)
    fleet.settle()
    assert set(fleet.where().values()) == {"site-1"}
    fleet.clusters["site-2"].down = ""
    fleet.pass_time(100)
    assert fleet.site_condition("site-2", KIND)[0] == "False"
    assert fleet.condition("Degraded").status == "False"


def test_a_trouble_that_stays_writes_nothing() -> None:
    fleet = running_fleet()
    cut(fleet, TCP)
    fleet.pass_time(60)
    conditions = fleet.site("site-2").conditions
    writes, fleet.writes = fleet.writes, 0
    fleet.pass_time(240, every=5)
    assert writes > 0
    assert fleet.site("site-2").conditions == conditions
    assert fleet.writes <= 240 / 30, "nothing but progress"


def test_where_nobody_says_why_only_the_silence_is_told_and_each_is_asked_in_turn() -> None:
    fleet = running_fleet()
    cut(fleet, "joined in epoch 0")
    fleet.pass_time(200, every=5)
    assert (fleet.site_condition("site-2", KIND), message(fleet)) == (("False", "HeartbeatsStale"), "")
    asked = [pod for _, _, pod in fleet.reads]
    assert asked[:4] == [fleet.learner(1).name, fleet.learner(3).name] * 2


def test_a_way_that_is_whole_again_by_the_log_is_no_longer_called_broken() -> None:
    """Such as of a process that was frozen afterwards."""
    fleet = running_fleet()
    cut(fleet, f"{TCP}\n{REACHED_LINE}")
    fleet.pass_time(60)
    assert fleet.site_condition("site-2", KIND) == ("False", "HeartbeatsStale")


def test_a_site_whose_logs_may_not_be_read_says_which_right_is_missing() -> None:
    fleet = running_fleet()
    cut(fleet, TCP)
    fleet.clusters["site-2"].log_problem = "Forbidden"
    fleet.pass_time(200, every=5)
    assert fleet.site_condition("site-2", KIND) == ("False", "HeartbeatsStale")
    assert "pods/log" in message(fleet)
    assert len(fleet.reads) <= 200 / 30
    fleet.clusters["site-2"].log_problem = "ServerError"
    fleet.pass_time(40)
    assert message(fleet) == "why is not known: logs there cannot be read: ServerError"


def test_what_was_said_before_an_operator_began_holds_until_it_has_asked_itself() -> None:
    fleet = running_fleet()
    cut(fleet, TCP)
    fleet.pass_time(60)
    fleet.clusters["site-2"].log_tail = None
    planned = fleet.plan()
    kept = next(site for site in planned.status.sites if site.name == "site-2").conditions
    assert next(c.reason for c in kept if c.type == KIND) == "TCPFailure"
    assert [action for action in planned.actions if type(action).__name__ == "ReadLog"]


def test_what_a_log_said_long_ago_does_not_explain_a_silence_of_now() -> None:
    fleet = running_fleet()
    cut(fleet, TCP)
    fleet.pass_time(60)
    fleet.clusters["site-2"].cut = False
    fleet.pass_time(200)
    fleet.clusters["site-2"].cut = True
    while fleet.site_condition("site-2", KIND)[0] == "True":
        fleet.step()
    assert fleet.site_condition("site-2", KIND) == ("False", "HeartbeatsStale")
    fleet.step()
    assert fleet.site_condition("site-2", KIND) == ("False", "TCPFailure"), "now it has been read again"


def test_a_log_that_was_read_of_another_incarnation_says_nothing_of_this_one() -> None:
    fleet = running_fleet()
    cut(fleet, TCP)
    fleet.pass_time(60)
    for index in (1, 3):
        fleet.finish(fleet.learner(index), 1)
    fleet.clusters["site-2"].cut = False
    fleet.settle(3)
    assert fleet.site_condition("site-2", KIND) == ("True", "Connected")
    fleet.clusters["site-2"].cut = True
    while fleet.site_condition("site-2", KIND)[0] == "True":
        fleet.step()
    assert fleet.site_condition("site-2", KIND) == ("False", "HeartbeatsStale")


@pytest.mark.parametrize(
    ("code", "line", "reason"),
    [
        (84, "TLSFailure: 192.0.2.11:31400: unable to get local issuer certificate", "TLSFailure"),
        (85, "AuthFailure: 192.0.2.11:31400: the token was made with another key", "AuthFailure"),
    ],
)
def test_a_learner_that_gave_up_has_said_why(code: int, line: str, reason: str) -> None:
    fleet = running_fleet()
    fleet.clusters["site-2"].cut = True
    fleet.pass_time(20)
    fleet.left = {(1, 1), (3, 1)}
    for index in (1, 3):
        fleet.finish(fleet.learner(index), code, f"error: {line}")
    fleet.step()
    assert fleet.site_condition("site-2", KIND) == ("False", reason)
    assert message(fleet) == line.partition(": ")[2]
    assert fleet.row(1).restarts_counted == 1
    assert not any(c.type == "Failed" for c in fleet.job.status.conditions), "one site's fault ends no job"
    fleet.clusters["site-2"].cut = False
    fleet.pass_time(60)
    fleet.settle()
    assert fleet.site_condition("site-2", KIND) == ("True", "Connected")

import pytest

from diloco_api.errors import SpecError
from diloco_cli.drills import Drill, DrillKind, check_targets, parse_drill


@pytest.mark.parametrize(
    ("text", "drill"),
    [
        ("kill-learner=1@30s", Drill(DrillKind.KILL_LEARNER, 1, 30.0)),
        ("kill-learner@0.5s", Drill(DrillKind.KILL_LEARNER, 0, 0.5)),
        ("freeze-learner=2@10s+15.5s", Drill(DrillKind.FREEZE_LEARNER, 2, 10.0, 15.5)),
        ("freeze-learner=2@10s", Drill(DrillKind.FREEZE_LEARNER, 2, 10.0, 20.0)),
        ("slow-learner=0@10s+30s", Drill(DrillKind.SLOW_LEARNER, 0, 10.0, 30.0)),
        ("kill-synchronizer@45s", Drill(DrillKind.KILL_SYNCHRONIZER, None, 45.0)),
    ],
)
def test_a_drill_is_read_as_it_is_written(text: str, drill: Drill) -> None:
    assert parse_drill(text) == drill


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("kill-learner=1", "not of the form"),
        ("kill-learner=1@30", "not of the form"),
        ("kill-learner=1@-3s", "not of the form"),
        ("kill-learner=1@30s ", "not of the form"),
        ("kill-learner=1@٣s", "not of the form"),
        ("kill-lerner=1@30s", "no drill kill-lerner; there are kill-learner, freeze-learner"),
        ("kill-learner=first@30s", "index of a Learner, not 'first'"),
        ("kill-learner=@30s", "index of a Learner, not ''"),
        ("kill-learner=1@30s+5s", "over at once"),
        ("kill-synchronizer=0@30s", "takes no =TARGET"),
        ("freeze-learner@1s+0s", "longer than 0 seconds"),
        ("slow-learner@1s+0.0s", "longer than 0 seconds"),
    ],
)
def test_a_wrong_drill_is_refused_with_its_text_and_what_is_wrong(text: str, complaint: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_drill(text)
    assert str(refused.value).startswith(f"--drill {text}: ")
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_drill_on_a_learner_the_job_will_not_have_is_refused() -> None:
    drills = [parse_drill("kill-synchronizer@1s"), parse_drill("kill-learner=3@1s")]
    check_targets(drills, replicas=4)
    with pytest.raises(SpecError, match="kill-learner=3: no Learner 3, the job has 0 to 2"):
        check_targets(drills, replicas=3)

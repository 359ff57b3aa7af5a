"""What the end of a pod means."""

import pytest

from diloco_api.exit_codes import ExitCode
from diloco_api.progress import Phase
from diloco_operator.planning.classify import FailureClass, classify, error_line
from diloco_operator.planning.types import Ended, PodView


def pod(code: int, *, reason: str = "", pod_reason: str = "", message: str = "") -> PodView:
    return PodView(
        name="p",
        uid="u",
        role="learner",
        index=0,
        incarnation=1,
        phase="Succeeded" if code == 0 else "Failed",
        ended=Ended(code, reason, message),
        pod_reason=pod_reason,
    )


@pytest.mark.parametrize(
    ("code", "phase", "kind"),
    [
        (0, Phase.COMPLETE, FailureClass.COMPLETED),
        (0, Phase.CLOSING, FailureClass.COMPLETED),
        (0, Phase.RUNNING, FailureClass.LEFT),
        (0, Phase.WAITING, FailureClass.LEFT),
        (0, Phase.DRAINING, FailureClass.ENDED),
        (0, Phase.STOPPED, FailureClass.ENDED),
        (0, None, FailureClass.UNDECIDED),
    ],
)
def test_a_good_end_means_what_the_synchronizer_was_doing(code: int, phase: Phase | None, kind: FailureClass) -> None:
    assert classify(pod(code), phase).kind is kind
    assert classify(pod(code), phase).counts is False


@pytest.mark.parametrize(
    ("code", "kind", "counts"),
    [
        (1, FailureClass.APP, True),
        (137, FailureClass.APP, True),
        (139, FailureClass.APP, True),
        (ExitCode.BAD_CONFIG, FailureClass.FATAL, False),
        (ExitCode.DATA_ERROR, FailureClass.FATAL, False),
        (ExitCode.PORT_IN_USE, FailureClass.FATAL, False),
        (ExitCode.INCOMPATIBLE, FailureClass.FATAL, False),
        (ExitCode.FENCED, FailureClass.FENCED, False),
        (ExitCode.JOB_ENDED, FailureClass.ENDED, False),
        (ExitCode.ORPHANED, FailureClass.ORPHANED, False),
        (ExitCode.TLS, FailureClass.TLS, True),
        (ExitCode.UNAUTHENTICATED, FailureClass.UNAUTHENTICATED, True),
    ],
)
def test_exit_codes(code: int, kind: FailureClass, counts: bool) -> None:
    verdict = classify(pod(code), Phase.RUNNING)
    assert (verdict.kind, verdict.counts) == (kind, counts)


def test_every_exit_code_is_classified_as_something_else_than_a_programming_error() -> None:
    kinds = {code: classify(pod(code), Phase.RUNNING).kind for code in ExitCode}
    assert FailureClass.APP not in kinds.values()


@pytest.mark.parametrize(
    ("pod_reason", "reason", "kind", "counts"),
    [
        ("Evicted", "Error", FailureClass.DISRUPTION, False),
        ("DisruptionTarget", "Error", FailureClass.DISRUPTION, False),
        ("NodeShutdown", "Error", FailureClass.DISRUPTION, False),
        ("UnexpectedAdmissionError", "", FailureClass.PLACEMENT, False),
        ("OutOfcpu", "", FailureClass.PLACEMENT, False),
        ("", "OOMKilled", FailureClass.OUT_OF_MEMORY, True),
    ],
)
def test_the_kubelets_words_outrank_the_exit_code(
    pod_reason: str, reason: str, kind: FailureClass, counts: bool
) -> None:
    verdict = classify(pod(137, reason=reason, pod_reason=pod_reason), Phase.RUNNING)
    assert (verdict.kind, verdict.counts) == (kind, counts)


@pytest.mark.parametrize(
    ("code", "message", "line"),
    [
        (65, "warming up\nerror: data: no such file\n", "data: no such file"),
        (1, "Traceback (most recent call last):\n  x\nValueError: boom\n", "ValueError: boom"),
        (137, "step 17\nstep 18\n", "killed by signal 9 (SIGKILL)"),
        (255, "", "killed by signal 127"),
        (137, "error: asked to die\n", "asked to die"),
        (3, "", "exit code 3"),
        (-1, "", "ended without an exit code"),
        (1, "x" * 400, "x" * 256),
    ],
)
def test_one_line_for_people(code: int, message: str, line: str) -> None:
    assert error_line(Ended(code, message=message)) == line

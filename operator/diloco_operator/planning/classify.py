"""What the end of a Learner's pod means: whose fault it was, whether it counts, and what to do.

One table of exit codes and pod reasons. A process can show less than a node: classes that need nodes, images or quotas
are read from the kubelet's words where there are any.
"""

from dataclasses import dataclass
from enum import StrEnum
from signal import Signals

from diloco_api.exit_codes import ExitCode
from diloco_api.progress import Phase
from diloco_api.status import MAX_MESSAGE
from diloco_operator.planning.redact import redacted
from diloco_operator.planning.types import Ended, PodView

USER_MISTAKES = frozenset(
    {
        ExitCode.BAD_CONFIG,
        ExitCode.DATA_ERROR,
        ExitCode.PORT_IN_USE,
        ExitCode.STATE_FOREIGN,
        ExitCode.STATE_CORRUPT,
        ExitCode.STATE_UNWRITABLE,
    }
)
"""Exit codes that starting again does not mend."""
FATAL = USER_MISTAKES | {ExitCode.INCOMPATIBLE}
DISRUPTIONS = frozenset({"DisruptionTarget", "Evicted", "NodeShutdown", "Terminated", "NodeLost"})
BY_KUBELET = "DisruptionTarget", "TerminationByKubelet"
"""The kubelet ended it and does not say whether for want of something: that node might get the same pod at once."""
PLACEMENTS = frozenset({"UnexpectedAdmissionError", "NodeAffinity", "NodePorts", "UnsupportedPodLevelResources"})


class FailureClass(StrEnum):
    """Reason in a Learner's status row."""

    COMPLETED = "Completed"
    DISRUPTION = "Disruption"  # the pod was taken away
    PLACEMENT = "Placement"  # the node refused it
    APP = "AppError"
    OUT_OF_MEMORY = "OutOfMemory"
    FENCED = "Fenced"  # a newer incarnation has taken over
    ENDED = "JobEnded"  # told that there is no work any more
    LEFT = "Left"  # ended well while there was work
    ORPHANED = "Orphaned"
    FATAL = "Fatal"
    STALLED = "Stalled"
    LOST = "PodLost"
    DEVICE = "DeviceFailed"  # its GPU cannot be used
    TLS = "CertificateRefused"  # its certificate and the Synchronizer's do not fit
    UNAUTHENTICATED = "TokenRefused"  # the Synchronizer does not take its token
    NODE_LOST = "NodeLost"  # unheard, on a node the cluster does not hear either
    SITE_REMOVED = "SiteRemoved"  # the job does not name its site any more
    UNDECIDED = "Undecided"  # ended well, and the Synchronizer cannot be asked whether there was work left


@dataclass(frozen=True)
class Verdict:
    """What an end means."""

    kind: FailureClass
    counts: bool
    """Against the restart budget."""
    message: str = ""
    taken: bool = False
    """By somebody else: no fault of the Learner's, so if it was at work the next one need not wait."""


def classify(pod: PodView, phase: Phase | None) -> Verdict:
    """The end of a Learner's finished pod. `phase` is what the Synchronizer said after the pod was seen."""
    ended = pod.ended or Ended(exit_code=-1)
    if ended.exit_code == ExitCode.COMPLETE and pod.phase == "Succeeded":
        return _ended_well(phase)
    if pod.disruption or pod.pod_reason in DISRUPTIONS:
        under_pressure = pod.pod_reason == "Evicted" or (pod.pod_reason, pod.disruption) == BY_KUBELET
        return Verdict(FailureClass.DISRUPTION, False, pod.disruption or pod.pod_reason, taken=not under_pressure)
    if pod.pod_reason in PLACEMENTS or pod.pod_reason.startswith("OutOf"):
        return Verdict(FailureClass.PLACEMENT, False, pod.pod_reason)
    if ended.reason == "OOMKilled":
        return Verdict(FailureClass.OUT_OF_MEMORY, True, "killed for using more memory than its limit")
    message = error_line(ended)
    if ended.exit_code in FATAL:
        return Verdict(FailureClass.FATAL, False, message)
    if ended.exit_code == ExitCode.JOB_ENDED:
        return Verdict(FailureClass.ENDED, False, message)
    kind = _BY_CODE.get(ended.exit_code, FailureClass.APP)
    return Verdict(kind, kind in _COUNTED, message)


_BY_CODE = {
    int(ExitCode.FENCED): FailureClass.FENCED,
    int(ExitCode.ORPHANED): FailureClass.ORPHANED,
    int(ExitCode.DEVICE): FailureClass.DEVICE,
    int(ExitCode.TLS): FailureClass.TLS,
    int(ExitCode.UNAUTHENTICATED): FailureClass.UNAUTHENTICATED,
}
_COUNTED = frozenset({FailureClass.APP, FailureClass.DEVICE, FailureClass.TLS, FailureClass.UNAUTHENTICATED})


def _ended_well(phase: Phase | None) -> Verdict:
    if phase is None:
        return Verdict(FailureClass.UNDECIDED, False)
    if phase in (Phase.CLOSING, Phase.COMPLETE):
        return Verdict(FailureClass.COMPLETED, False)
    if phase in (Phase.DRAINING, Phase.STOPPED):
        return Verdict(FailureClass.ENDED, False)
    return Verdict(FailureClass.LEFT, False)


def error_line(ended: Ended) -> str:
    """One line for people: the last `error: ...` of the log's end, else its last line, else what the kernel said."""
    lines = [line.strip() for line in redacted(ended.message).splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    if errors or (lines and ended.exit_code < 128):
        return (errors or lines)[-1][:MAX_MESSAGE]
    if ended.exit_code > 128:
        number = ended.exit_code - 128
        name = f" ({Signals(number).name})" if number in set(Signals) else ""
        return f"killed by signal {number}{name}"
    return f"exit code {ended.exit_code}" if ended.exit_code >= 0 else "ended without an exit code"

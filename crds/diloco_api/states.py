"""The words of a job's status: phases, conditions, and the closed set of reasons with where each may stand."""

from collections.abc import Mapping
from enum import StrEnum


class JobPhase(StrEnum):
    """`status.phase`, for human eyes: no code reads it."""

    REJECTED = "Rejected"
    STARTING = "Starting"
    RUNNING = "Running"
    DEGRADED = "Degraded"
    STOPPED = "Stopped"
    COMPLETE = "Complete"
    FAILED = "Failed"


class LearnerPhase(StrEnum):
    """`status.learnerStatuses[].state`."""

    PENDING = "Pending"  # committed, not running yet
    UNKNOWN = "Unknown"  # its site cannot be reached any more, and it is unheard
    STARTING = "Starting"  # its pod runs, the Synchronizer has not heard it
    RUNNING = "Running"  # heard
    STALLED = "Stalled"  # its pod runs, but it is unheard for too long
    BACK_OFF = "BackOff"  # failed; the next incarnation waits until notBefore
    PARKED = "Parked"  # restart budget spent
    STOPPED = "Stopped"  # drained or removed by our own wish
    SUCCEEDED = "Succeeded"


class GoodputState(StrEnum):
    """What a second of a wanted Learner went into; exactly one at a time. See docs/goodput.md.

    The first seven, and what of `stalled` it can see, a Learner counts itself; the others only the operator sees.
    """

    TRAINING = "training"
    SYNC_WAIT = "sync_wait"  # blocked on the Synchronizer
    DATA_WAIT = "data_wait"
    CHECKPOINT = "checkpoint"  # the blocking part of saving its own state
    RESTORE = "restore"
    INIT = "init"  # from its container's start to its first step
    DRAIN = "drain"  # no work left, waiting for the closing round
    PENDING = "pending"  # no pod yet, or one without a node or a running container
    QUEUED = "queued"  # its pod is held back by a scheduling gate
    LOST = "lost"  # dead and not replaced
    STALLED = "stalled"  # its process stands still, or nothing is heard of it though its pod runs
    SITE_UNREACHABLE = "site_unreachable"  # neither its site nor itself is heard
    EXCLUDED = "excluded"  # stopped or suspended by the user: in no denominator


class ConditionType(StrEnum):
    """Of a job."""

    ACCEPTED = "Accepted"
    SYNCHRONIZER_READY = "SynchronizerReady"
    QUORUM_MET = "QuorumMet"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"
    COMPLETE = "Complete"
    FAILED = "Failed"


class SiteConditionType(StrEnum):
    """Of one site of a job."""

    REACHABLE = "Reachable"
    ELIGIBLE = "Eligible"
    SYNCHRONIZER_REACHABLE = "SynchronizerReachable"


class Reason(StrEnum):
    """Closed set of condition reasons; `CONDITION_REASONS` and `SITE_CONDITION_REASONS` say which go where."""

    VALID = "Valid"
    INVALID_SPEC = "InvalidSpec"
    CREDENTIALS_INVALID = "CredentialsInvalid"
    CRD_OUTDATED = "CRDOutdated"
    READY = "Ready"
    PENDING = "Pending"
    ADDRESS_PENDING = "AddressPending"
    CRASH_LOOP = "CrashLoop"
    RESTORING_STATE = "RestoringState"
    POD_SECURITY_DENIED = "PodSecurityDenied"
    ENOUGH_LEARNERS = "EnoughLearners"
    TOO_FEW_LEARNERS = "TooFewLearners"
    ALL_SITES_UNREACHABLE = "AllSitesUnreachable"
    OUTER_STEP_ADVANCING = "OuterStepAdvancing"
    WAITING_FOR_QUORUM = "WaitingForQuorum"
    NO_OUTER_STEP_SINCE = "NoOuterStepSince"
    STOPPED = "Stopped"
    FINISHED = "Finished"
    LEARNERS_MISSING = "LearnersMissing"
    LEARNER_PARKED = "LearnerParked"
    SITE_UNREACHABLE = "SiteUnreachable"
    REPLACEMENT_UNSCHEDULABLE = "ReplacementUnschedulable"
    QUOTA_EXCEEDED = "QuotaExceeded"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    SITE_REFUSES = "SiteRefuses"
    AS_DESIRED = "AsDesired"
    TOKEN_BUDGET_REACHED = "TokenBudgetReached"
    STEP_BUDGET_REACHED = "StepBudgetReached"
    ROUND_BUDGET_REACHED = "RoundBudgetReached"
    DATA_EXHAUSTED = "DataExhausted"
    RESTART_BUDGET_EXHAUSTED = "RestartBudgetExhausted"
    FATAL_EXIT_CODE = "FatalExitCode"
    STATE_LOST = "StateLost"
    CONNECTED = "Connected"
    TIMEOUT = "Timeout"
    TCP_FAILURE = "TCPFailure"
    TLS_FAILURE = "TLSFailure"
    DNS_FAILURE = "DNSFailure"
    AUTH_FAILURE = "AuthFailure"
    UNAUTHORIZED = "Unauthorized"
    FORBIDDEN = "Forbidden"
    SERVER_ERROR = "ServerError"
    CLUSTER_IDENTITY_CHANGED = "ClusterIdentityChanged"
    SAME_CLUSTER = "SameCluster"
    SECRET_MISSING = "SecretMissing"
    SECRET_INVALID = "SecretInvalid"
    OK = "Ok"
    COOLING_DOWN = "CoolingDown"
    NO_QUOTA = "NoQuota"
    NO_FIT = "NoFit"
    NAMESPACE_MISSING = "NamespaceMissing"
    CONFIG_ERROR = "ConfigError"
    HEARTBEATS_STALE = "HeartbeatsStale"


_Reasons = tuple[frozenset[Reason], frozenset[Reason]]
CONDITION_REASONS: Mapping[ConditionType, _Reasons] = {
    ConditionType.ACCEPTED: (
        frozenset({Reason.VALID}),
        frozenset({Reason.INVALID_SPEC, Reason.CREDENTIALS_INVALID, Reason.CRD_OUTDATED}),
    ),
    ConditionType.SYNCHRONIZER_READY: (
        frozenset({Reason.READY}),
        frozenset(
            {
                Reason.PENDING,
                Reason.ADDRESS_PENDING,
                Reason.CRASH_LOOP,
                Reason.RESTORING_STATE,
                Reason.POD_SECURITY_DENIED,
                Reason.QUOTA_EXCEEDED,
                Reason.IMAGE_PULL_FAILED,
                Reason.STOPPED,
                Reason.FINISHED,
            }
        ),
    ),
    ConditionType.QUORUM_MET: (
        frozenset({Reason.ENOUGH_LEARNERS}),
        frozenset({Reason.TOO_FEW_LEARNERS, Reason.ALL_SITES_UNREACHABLE, Reason.STOPPED, Reason.FINISHED}),
    ),
    ConditionType.PROGRESSING: (
        frozenset({Reason.OUTER_STEP_ADVANCING}),
        frozenset({Reason.WAITING_FOR_QUORUM, Reason.NO_OUTER_STEP_SINCE, Reason.STOPPED, Reason.FINISHED}),
    ),
    ConditionType.DEGRADED: (
        frozenset(
            {
                Reason.LEARNERS_MISSING,
                Reason.LEARNER_PARKED,
                Reason.SITE_UNREACHABLE,
                Reason.REPLACEMENT_UNSCHEDULABLE,
                Reason.QUOTA_EXCEEDED,
                Reason.IMAGE_PULL_FAILED,
                Reason.SITE_REFUSES,
            }
        ),
        frozenset({Reason.AS_DESIRED, Reason.STOPPED, Reason.FINISHED}),
    ),
    ConditionType.COMPLETE: (
        frozenset(
            {
                Reason.TOKEN_BUDGET_REACHED,
                Reason.STEP_BUDGET_REACHED,
                Reason.ROUND_BUDGET_REACHED,
                Reason.DATA_EXHAUSTED,
            }
        ),
        frozenset(),
    ),
    ConditionType.FAILED: (
        frozenset({Reason.RESTART_BUDGET_EXHAUSTED, Reason.FATAL_EXIT_CODE, Reason.STATE_LOST}),
        frozenset(),
    ),
}
"""Reasons with which a condition may be True, and those with which it may be False."""

SITE_CONDITION_REASONS: Mapping[SiteConditionType, _Reasons] = {
    SiteConditionType.REACHABLE: (
        frozenset({Reason.CONNECTED}),
        frozenset(
            {
                Reason.TIMEOUT,
                Reason.TCP_FAILURE,
                Reason.TLS_FAILURE,
                Reason.DNS_FAILURE,
                Reason.UNAUTHORIZED,
                Reason.FORBIDDEN,
                Reason.SERVER_ERROR,
                Reason.CLUSTER_IDENTITY_CHANGED,
                Reason.SAME_CLUSTER,
                Reason.SECRET_MISSING,
                Reason.SECRET_INVALID,
            }
        ),
    ),
    SiteConditionType.ELIGIBLE: (
        frozenset({Reason.OK}),
        frozenset(
            {
                Reason.COOLING_DOWN,
                Reason.NO_QUOTA,
                Reason.NO_FIT,
                Reason.NAMESPACE_MISSING,
                Reason.FORBIDDEN,
                Reason.POD_SECURITY_DENIED,
                Reason.IMAGE_PULL_FAILED,
                Reason.CONFIG_ERROR,
                Reason.DNS_FAILURE,
                Reason.TCP_FAILURE,
                Reason.TLS_FAILURE,
                Reason.AUTH_FAILURE,
                Reason.HEARTBEATS_STALE,
            }
        ),
    ),
    SiteConditionType.SYNCHRONIZER_REACHABLE: (
        frozenset({Reason.CONNECTED}),
        frozenset(
            {
                Reason.DNS_FAILURE,
                Reason.TCP_FAILURE,
                Reason.TLS_FAILURE,
                Reason.AUTH_FAILURE,
                Reason.HEARTBEATS_STALE,
            }
        ),
    ),
}
"""The same for conditions of a site. Unknown goes with the reasons of False."""

"""Who may speak, and which bodies are worth receiving: every check made before the backend hears of a call.

Used by the gRPC server and the in-memory exchange alike. Whether an incarnation is admitted or fenced, and what a body
holds, is the backend's verdict, not decided here.
"""

import math
from dataclasses import dataclass, field
from hashlib import sha256

from diloco_api.names import learner_identity
from diloco_api.tokens import Identity, TokenError, read_token
from diloco_trainer.wire.errors import ProtocolMismatch, Reason, Refused, Unauthenticated
from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from diloco_trainer.wire.protocol import BEARER, PROTOCOL_VERSION
from diloco_trainer.wire.service import BodyExpectation, SynchronizerBackend


@dataclass(frozen=True, slots=True)
class Gate:
    """Knows the key of one job's tokens."""

    key: bytes = field(repr=False)
    job_uid: str

    def identify(self, authorization: str | None) -> Identity:
        """Whose call this is, by the metadata value `authorization`."""
        if authorization is None or not authorization.startswith(BEARER):
            raise Unauthenticated("the call carries no bearer token; a Learner's token is in its credentials folder")
        try:
            identity = read_token(self.key, authorization.removeprefix(BEARER))
        except TokenError as error:
            raise Unauthenticated(str(error)) from error
        self._same_job(identity.job_uid)
        return identity

    def holder(self, identity: Identity, common_name: str) -> None:
        """The certificate of a connection is that of the incarnation whose token its calls carry."""
        if common_name != learner_identity(identity.index, identity.incarnation):
            raise Unauthenticated(
                f"the token was made for learner {identity.index} incarnation {identity.incarnation}, "
                f"the certificate for {common_name!r}; both are in one Secret"
            )

    def speaker(self, identity: Identity, index: int, incarnation: int) -> None:
        """A message speaks only of the incarnation its token was made for."""
        if (index, incarnation) != (identity.index, identity.incarnation):
            raise Unauthenticated(
                f"the message speaks of learner {index} incarnation {incarnation}, "
                f"its token was made for learner {identity.index} incarnation {identity.incarnation}"
            )

    def join(self, identity: Identity, request: pb.JoinRequest) -> None:
        self.speaker(identity, request.index, request.incarnation)
        self._same_job(request.job_uid)
        if request.protocol_version != PROTOCOL_VERSION:
            raise ProtocolMismatch(
                f"the Learner speaks protocol {request.protocol_version}, the Synchronizer {PROTOCOL_VERSION}: "
                "both need the same trainer image"
            )

    def leave(self, identity: Identity, request: pb.LeaveRequest) -> None:
        self.speaker(identity, request.index, request.incarnation)
        if request.HasField("totals"):
            self.speaker(identity, request.totals.index, request.totals.incarnation)

    def header(self, identity: Identity, header: pb.ContributionHeader, backend: SynchronizerBackend) -> None:
        """Refuse a contribution by its header alone: after this, `size_bytes` may be allocated."""
        self.speaker(identity, header.index, header.incarnation)
        self._same_job(header.job_uid)
        expected = backend.expectation(header.fragment)
        if header.epoch != expected.epoch:
            raise Refused(
                Reason.EPOCH_MISMATCH,
                f"made in epoch {header.epoch}, the job is in epoch {expected.epoch}: join again",
            )
        if header.sequence < 1:
            raise Refused(Reason.BAD_HEADER, "sequence counts from 1")
        if header.nothing:
            _check_nothing(header)
        else:
            _check_body(header, expected)

    def _same_job(self, job_uid: str) -> None:
        if job_uid != self.job_uid:
            raise Refused(Reason.FOREIGN_JOB, f"this is the Synchronizer of job {self.job_uid}, not of {job_uid!r}")


def _check_nothing(header: pb.ContributionHeader) -> None:
    if header.size_bytes or header.c_steps or header.c_tokens:
        raise Refused(Reason.BAD_HEADER, "an answer of `nothing` has neither a body nor steps nor tokens")


def _check_body(header: pb.ContributionHeader, expected: BodyExpectation) -> None:
    where = f"fragment {header.fragment}"
    if header.codec != expected.codec:
        raise Refused(Reason.WRONG_CODEC, f"{where} is encoded as {header.codec!r}, the job uses {expected.codec!r}")
    if header.shape_digest != expected.shape_digest:
        raise Refused(
            Reason.LAYOUT_MISMATCH,
            f"{where} has layout {header.shape_digest[:64]!r}, the Synchronizer's is {expected.shape_digest!r}",
        )
    if header.size_bytes != expected.size_bytes:
        raise Refused(Reason.WRONG_SIZE, f"{where} takes {expected.size_bytes} bytes, not {header.size_bytes}")
    if len(header.checksum) != sha256().digest_size:
        raise Refused(Reason.BAD_HEADER, "checksum is not a sha256")
    if not (math.isfinite(header.mean_lr) and header.mean_lr >= 0):
        raise Refused(Reason.BAD_HEADER, f"mean_lr is {header.mean_lr}, not a learning rate")
    if header.c_steps < 1:
        raise Refused(Reason.BAD_HEADER, "a body without steps: answer `nothing` instead")

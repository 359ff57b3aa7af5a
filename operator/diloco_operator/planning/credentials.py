"""What Learners and Synchronizer prove themselves with: the files of their Secrets, from the job's secret key.

On clusters the key is the root of a token key and of certificates that are renewed in place; on one machine it is the
token key itself, and there are no certificates.
"""

from dataclasses import dataclass, field

from diloco_api import names
from diloco_api.status import LearnerStatus
from diloco_api.tokens import make_token
from diloco_operator.planning import pki


@dataclass(frozen=True)
class Credentials:
    """Of one job, at one time."""

    job_uid: str
    root: bytes = field(repr=False)
    tls: bool
    started: float
    """When the job was accepted: certificates are counted from there."""
    now: float

    @property
    def token_key(self) -> bytes:
        return pki.token_key(self.root, self.job_uid) if self.tls else self.root

    def of_learner(self, row: LearnerStatus) -> dict[str, bytes]:
        """Files of one incarnation."""
        token = make_token(self.token_key, self.job_uid, row.index, row.incarnation)
        files = {names.FILE_TOKEN: token.encode()}
        if self.tls:
            leaf = pki.learner_leaf(self.root, self.job_uid, row.index, row.incarnation, self.started, self.now)
            files |= self._certificates(leaf)
        return files

    def of_synchronizer(self) -> dict[str, bytes]:
        """Files of the Synchronizer; of the job's key it gets no more than it needs."""
        files = {names.FILE_KEY: self.token_key}
        if self.tls:
            files |= self._certificates(pki.server_leaf(self.root, self.job_uid, self.started, self.now))
        return files

    def _certificates(self, leaf: pki.Leaf) -> dict[str, bytes]:
        bundle = pki.ca_bundle(self.root, self.job_uid, self.started, self.now)
        return {
            names.FILE_TLS_CERTIFICATE: leaf.certificate.encode(),
            names.FILE_TLS_KEY: leaf.key.encode(),
            names.FILE_CA: bundle.encode(),
        }

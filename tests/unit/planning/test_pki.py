"""Certificates of one job: functions of their arguments, trusted across one renewal, by OpenSSL's own judgement."""

import ssl
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import NameOID
from cryptography.x509.verification import PolicyBuilder, Store

from diloco_api import names
from diloco_operator.planning import pki
from diloco_operator.planning.pki import Leaf, ca_bundle, learner_leaf, server_leaf, token_key

ROOT = bytes(range(32))
OTHER_ROOT = bytes(range(1, 33))
JOB = "6f0c7a52-1a6b-4c2e-9d4e-3b1f5a7c9e10"
OTHER_JOB = "6f0c7a52-1a6b-4c2e-9d4e-3b1f5a7c9e11"
STARTED = 1_800_000_000.25
PERIOD = pki.RENEWAL_SECONDS
DAY = 86400


def handshake(tmp_path: Path, server: Leaf, client: Leaf, server_trusts: str, client_trusts: str, name: str) -> None:
    """One TLS handshake with certificates on both sides, in memory; raises ssl.SSLError like a connection would."""
    server_context = context(tmp_path, ssl.PROTOCOL_TLS_SERVER, server, server_trusts)
    client_context = context(tmp_path, ssl.PROTOCOL_TLS_CLIENT, client, client_trusts)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client_context.wrap_bio(to_client, to_server, server_hostname=name)
    answering = server_context.wrap_bio(to_server, to_client, server_side=True)
    done = {asking: False, answering: False}
    for _ in range(8):
        for side in (asking, answering):
            try:
                side.do_handshake()
                done[side] = True
            except ssl.SSLWantReadError:
                pass
    assert all(done.values()), "the handshake came to no end"


def context(tmp_path: Path, protocol: int, leaf: Leaf, trusts: str) -> ssl.SSLContext:
    made = ssl.SSLContext(protocol)
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    made.load_verify_locations(cadata=trusts)
    certificate, key = tmp_path / "c", tmp_path / "k"
    certificate.write_text(leaf.certificate)
    key.write_text(leaf.key)
    made.load_cert_chain(certificate, key)
    return made


def parsed(leaf: Leaf) -> x509.Certificate:
    return x509.load_pem_x509_certificate(leaf.certificate.encode())


@pytest.mark.parametrize("own", [0, 1, 2], ids=lambda own: f"generation {own}")
@pytest.mark.parametrize("lag", [-1, 0, 1], ids=["ahead", "together", "behind"])
def test_ends_one_generation_apart_trust_each_other(tmp_path: Path, own: int, lag: int) -> None:
    """Both certificates are valid now: the end that lags behind has its renewal overdue by ten days."""
    theirs = own + lag
    now = time.time()
    started = now - max(own, theirs) * PERIOD - 10 * DAY
    at, other_at = started + own * PERIOD + DAY, started + max(0, theirs) * PERIOD + DAY
    handshake(
        tmp_path,
        server_leaf(ROOT, JOB, started, at),
        learner_leaf(ROOT, JOB, 3, 2, started, other_at),
        ca_bundle(ROOT, JOB, started, at),
        ca_bundle(ROOT, JOB, started, other_at),
        names.server_name(JOB),
    )


@pytest.mark.parametrize("root", [(ROOT, OTHER_JOB), (OTHER_ROOT, JOB)], ids=["another job", "another root"])
def test_a_foreign_ca_is_trusted_by_neither_side(tmp_path: Path, root: tuple[bytes, str]) -> None:
    now = time.time()
    ours, theirs = ca_bundle(ROOT, JOB, now, now), ca_bundle(*root, now, now)
    server, learner = server_leaf(ROOT, JOB, now, now), learner_leaf(ROOT, JOB, 0, 0, now, now)
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        handshake(tmp_path, server, learner, theirs, ours, names.server_name(JOB))
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        handshake(tmp_path, server, learner, ours, theirs, names.server_name(JOB))


def test_the_server_is_verified_by_the_jobs_name_and_no_other(tmp_path: Path) -> None:
    now = time.time()
    trusts = ca_bundle(ROOT, JOB, now, now)
    server, learner = server_leaf(ROOT, JOB, now, now), learner_leaf(ROOT, JOB, 0, 0, now, now)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(tmp_path, server, learner, trusts, trusts, names.server_name(OTHER_JOB))


def test_a_certificate_serves_one_side_only(tmp_path: Path) -> None:
    now = time.time()
    trusts = ca_bundle(ROOT, JOB, now, now)
    server, learner = server_leaf(ROOT, JOB, now, now), learner_leaf(ROOT, JOB, 0, 0, now, now)
    for as_server, as_client in ((learner, learner), (server, server)):
        with pytest.raises(ssl.SSLError, match="unsuitable certificate purpose"):
            handshake(tmp_path, as_server, as_client, trusts, trusts, names.server_name(JOB))


def test_a_certificate_that_was_not_renewed_ends_after_90_days_and_is_renewed_after_60() -> None:
    leaf = parsed(server_leaf(ROOT, JOB, STARTED, STARTED + 60 * DAY - 1))
    assert leaf == parsed(server_leaf(ROOT, JOB, STARTED, STARTED - 5))
    assert leaf != parsed(server_leaf(ROOT, JOB, STARTED, STARTED + 60 * DAY))
    assert leaf.not_valid_after_utc == datetime.fromtimestamp(int(STARTED), UTC) + timedelta(days=90)
    assert leaf.not_valid_before_utc < datetime.fromtimestamp(STARTED, UTC) - timedelta(hours=1)


@pytest.mark.parametrize("days", [-30, -1, 0, 30, 59, 89], ids=lambda days: f"day {days} of its generation")
def test_web_rules_accept_the_server_whenever_its_leaf_may_be_in_use(days: int) -> None:
    """The bundle is that of the peer: from the generation before, by a clock that is late, up to the one after."""
    in_use = STARTED + 2 * PERIOD
    bundle = x509.load_pem_x509_certificates(ca_bundle(ROOT, JOB, STARTED, in_use + days * DAY).encode())
    at = datetime.fromtimestamp(in_use + max(days, -0.9) * DAY, UTC)
    verifier = PolicyBuilder().store(Store(bundle)).time(at).build_server_verifier(x509.DNSName(names.server_name(JOB)))
    assert len(verifier.verify(parsed(server_leaf(ROOT, JOB, STARTED, in_use)), [])) == 2


def test_a_bundle_holds_three_generations_and_the_first_one_two() -> None:
    bundles = [
        x509.load_pem_x509_certificates(ca_bundle(ROOT, JOB, STARTED, STARTED + number * PERIOD).encode())
        for number in range(4)
    ]
    assert [len(bundle) for bundle in bundles] == [2, 3, 3, 3]
    assert bundles[1][1:] == bundles[2][:2]
    assert bundles[3][0] not in bundles[0] + bundles[1][:2]


def test_equal_arguments_give_equal_bytes_however_the_cache_stands() -> None:
    def everything(now: float) -> list[object]:
        pki._leaf.cache_clear()
        pki._ca.cache_clear()
        made = server_leaf(ROOT, JOB, STARTED, now), learner_leaf(ROOT, JOB, 1, 0, STARTED, now)
        return [ca_bundle(ROOT, JOB, STARTED, now), *((leaf.certificate, leaf.key) for leaf in made)]

    assert everything(STARTED) == everything(STARTED + PERIOD - 1)
    assert not set(map(str, everything(STARTED))) & set(map(str, everything(STARTED + PERIOD)))


def test_every_identity_has_a_certificate_a_key_and_a_serial_number_of_its_own() -> None:
    leaves = [
        server_leaf(ROOT, JOB, STARTED, STARTED),
        server_leaf(ROOT, JOB, STARTED, STARTED + PERIOD),
        server_leaf(ROOT, OTHER_JOB, STARTED, STARTED),
        *(learner_leaf(ROOT, JOB, index, incarnation, STARTED, STARTED) for index in (0, 1) for incarnation in (0, 1)),
        learner_leaf(ROOT, JOB, 11, 1, STARTED, STARTED),
        learner_leaf(ROOT, JOB, 1, 11, STARTED, STARTED),
    ]
    assert len({leaf.key for leaf in leaves}) == len({parsed(leaf).serial_number for leaf in leaves}) == len(leaves)
    assert not {leaf.key for leaf in leaves} & {server_leaf(OTHER_ROOT, JOB, STARTED, STARTED).key}


def test_a_learners_certificate_names_its_incarnation_and_fits_its_key() -> None:
    leaf = learner_leaf(ROOT, JOB, 7, 3, STARTED, STARTED)
    (common_name,) = parsed(leaf).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert common_name.value == names.learner_identity(7, 3) == "learner-7-3"
    key = serialization.load_pem_private_key(leaf.key.encode(), None)
    assert key.public_key() == parsed(leaf).public_key()
    assert "PRIVATE" not in repr(leaf)


def test_the_token_key_is_the_jobs_own_and_says_nothing_of_the_root() -> None:
    key = token_key(ROOT, JOB)
    assert key == token_key(ROOT, JOB)
    assert len(key) == 32
    assert len({key, token_key(ROOT, OTHER_JOB), token_key(OTHER_ROOT, JOB), ROOT}) == 4


def test_a_root_key_too_short_to_be_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 32 bytes, this one 31"):
        token_key(bytes(31), JOB)

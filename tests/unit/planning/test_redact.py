"""Nothing that opens anything reaches a status or an event."""

import time

import pytest

from diloco_api.tokens import make_token
from diloco_operator.planning import pki
from diloco_operator.planning.classify import error_line
from diloco_operator.planning.redact import redacted
from diloco_operator.planning.types import Ended

TOKEN = make_token(b"k" * 32, "uid", 0, 1)
PEM = pki.learner_leaf(b"r" * 32, "uid", 0, 1, 0.0, 0.0).key


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"refused: {TOKEN}", "refused: <token>"),
        (f"Authorization: Bearer {'x' * 20}", "Authorization: Bearer <token>"),
        ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "jwt <token>"),
        (f"key:\n{PEM}end", "key:\n<PEM>\nend"),
        (f"cut {PEM[:60]}", "cut <PEM>"),
        ("clone https://me:pa55@host/x", "clone https://<user>@host/x"),
        ("HF_TOKEN=hf_abcdefghijklmnop", "HF_TOKEN=<secret>"),
        ("use hf_abcdefghijklmnop now", "use <token> now"),
        ("AKIAIOSFODNN7EXAMPLE is no key", "<key> is no key"),
        ('"password": "hunter22"', '"password": "<secret>"'),
        ("text/*.txt: no such file", "text/*.txt: no such file"),
        ("step 3 of 10, 512 tokens: loss 2.1", "step 3 of 10, 512 tokens: loss 2.1"),
    ],
)
def test_secrets_are_replaced_and_the_rest_stays(text: str, shown: str) -> None:
    assert redacted(text) == shown


def test_the_last_line_of_a_log_is_shown_without_its_secrets() -> None:
    assert error_line(Ended(1, message=f"a\nerror: cannot log in with {TOKEN}")) == "cannot log in with <token>"


def test_no_text_takes_long() -> None:
    begun = time.process_time()
    for word in ("a-", "eyJ-", "token ", "://a:", "-----BEGIN A", "bearer "):
        redacted(word * (16_384 // len(word)))
    assert time.process_time() - begun < 3

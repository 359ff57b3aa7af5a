"""docs/wire-protocol.md says what the code does, as far as a test can tell."""

import re
from pathlib import Path

from diloco_trainer.wire.errors import STATUS_OF, Reason
from diloco_trainer.wire.gen import synchronizer_pb2 as pb
from diloco_trainer.wire.protocol import CHUNK_BYTES, CONTINUE_KEY, PROTOCOL_VERSION, REFUSAL_KEY

PAGE = (Path(__file__).parents[3] / "docs" / "wire-protocol.md").read_text(encoding="utf-8")


def test_every_reason_is_listed_with_its_status() -> None:
    listed = {
        reason: status
        for reasons, status in re.findall(r"^\| (`[A-Z_`, ]+`) \| `([A-Z_]+)` \|", PAGE, re.MULTILINE)
        for reason in re.findall(r"[A-Z_]+", reasons)
    }
    expected = {reason.value: status.name for reason, status in STATUS_OF.items()}
    del expected[Reason.REASON_UNSPECIFIED.value]
    assert listed == expected


def test_every_field_of_the_header_is_listed() -> None:
    table = PAGE.split("## Contribute")[1].split("## Pull")[0]
    listed = {name for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert {field.name for field in pb.ContributionHeader.DESCRIPTOR.fields} <= listed


def test_every_call_is_described() -> None:
    for method in pb.DESCRIPTOR.services_by_name["Synchronizer"].methods:
        assert f"**{method.name}**" in PAGE


def test_names_and_numbers_are_those_of_the_code() -> None:
    assert f"version {PROTOCOL_VERSION} of the protocol" in PAGE
    assert f"{CHUNK_BYTES // 2**20} MiB" in PAGE
    for key in (REFUSAL_KEY, CONTINUE_KEY):
        assert f"`{key}`" in PAGE

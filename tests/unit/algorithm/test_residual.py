"""Error feedback: what is merged adds up to what was meant, whatever happens to contributions on the way."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diloco_api.sync_policy import Codec, Rounding
from diloco_trainer.algorithm.codec import make_codec
from diloco_trainer.algorithm.residual import ErrorFeedback, Settled

NUMEL = 520


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from([Codec.BF16, Codec.FP16, Codec.INT8, Codec.INT4, Codec.E3M0]),
    rounding=st.sampled_from(list(Rounding)),
)
def test_merged_adds_up_to_meant_whatever_is_lost_refused_or_sent_twice(
    seed: int, kind: Codec, rounding: Rounding
) -> None:
    """Bound of the module: the last residual, plus the roundings of every step. A guard refusal starts a new sum."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    codec, feedback = make_codec(kind), ErrorFeedback()
    meant_sum = torch.zeros(NUMEL, dtype=torch.float64)  # of the deltas whose contributions were merged
    merged_sum = torch.zeros(NUMEL, dtype=torch.float64)  # of what the receiver decoded, each body once
    slack = torch.zeros(NUMEL, dtype=torch.float64)
    seen: set[int] = set()
    for sequence in range(40):
        delta = torch.randn(NUMEL, generator=generator) * 10.0 ** rng.randint(-4, 0)
        meant = feedback.prepare(delta)
        body = codec.encode(meant, rounding, generator)
        decoded = codec.decode(body, NUMEL)
        lost = (meant - decoded).abs().double()
        assert bool((lost <= codec.error_bound(meant, rounding).double() * (1 + 2.0**-20)).all())
        feedback = feedback.opened(meant, decoded)
        fate = rng.choice(["merged", "merged late", "merged", "sent twice", "stale", "lost", "guard"])
        if fate in ("merged", "merged late", "sent twice"):
            for _ in range(2 if fate == "sent twice" else 1):
                if sequence not in seen:  # a key is merged once
                    seen.add(sequence)
                    merged_sum += codec.decode(body, NUMEL).double()
            meant_sum += delta.double()
            slack += 2.0**-8 * lost + 2.0**-23 * meant.abs().double() + 2.0**-134
            feedback = feedback.settle(Settled.MERGED)
        elif fate == "guard":
            meant_sum, merged_sum, slack = torch.zeros(3, NUMEL, dtype=torch.float64)
            feedback = feedback.settle(Settled.GUARD_REFUSED)
            assert feedback.residual is None
        else:
            before = feedback.residual
            feedback = feedback.settle(Settled.OTHER)
            assert feedback.residual is before
        residual = torch.zeros(NUMEL) if feedback.residual is None else feedback.residual.float()
        if sequence and fate != "guard":
            assert bool(((merged_sum - meant_sum).abs() <= residual.abs().double() + slack).all())


def test_without_feedback_the_error_of_a_coarse_codec_piles_up() -> None:
    """What the residual is for: small steps that int4 rounds to zero each time arrive after all."""
    codec, feedback = make_codec(Codec.INT4), ErrorFeedback()
    delta = torch.zeros(256)
    delta[0], delta[1:] = 1.0, 0.02  # a seventh of 1 is the step: 0.02 is rounded to 0
    total_with, total_without = torch.zeros(256), torch.zeros(256)
    for _ in range(50):
        meant = feedback.prepare(delta)
        decoded = codec.decode(codec.encode(meant), 256)
        feedback = feedback.opened(meant, decoded).settle(Settled.MERGED)
        total_with += decoded
        total_without += codec.decode(codec.encode(delta), 256)
    assert float(total_without[1]) == 0.0
    assert float(total_with[1]) == pytest.approx(1.0, abs=0.1)


def test_residual_changes_at_settlement_only_and_is_kept_in_bf16() -> None:
    start = ErrorFeedback()
    opened = start.opened(torch.tensor([1.0]), torch.tensor([0.75]))
    assert start == ErrorFeedback()
    assert opened.residual is None
    assert opened.prepare(torch.tensor([5.0])).tolist() == [5.0]
    merged = opened.settle(Settled.MERGED)
    assert merged.residual is not None
    assert merged.residual.dtype == torch.bfloat16
    assert merged.prepare(torch.tensor([5.0])).tolist() == [5.25]
    assert merged.opened(torch.tensor([9.0]), torch.tensor([8.0])).settle(Settled.OTHER).residual is merged.residual
    assert merged.opened(torch.tensor([9.0]), torch.tensor([8.0])).settle(Settled.GUARD_REFUSED).residual is None


def test_preparing_copies_the_delta() -> None:
    delta = torch.tensor([1.0])
    ErrorFeedback().prepare(delta).zero_()
    assert delta.tolist() == [1.0]


def test_one_contribution_is_open_at_a_time() -> None:
    opened = ErrorFeedback().opened(torch.zeros(1), torch.zeros(1))
    with pytest.raises(ValueError, match="is open already"):
        opened.opened(torch.zeros(1), torch.zeros(1))
    with pytest.raises(ValueError, match="no contribution"):
        ErrorFeedback().settle(Settled.MERGED)

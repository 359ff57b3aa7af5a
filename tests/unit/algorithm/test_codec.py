"""Every codec: the proven bound, refusals by name, unbiased stochastic rounding, the test at process start."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from diloco_api.sync_policy import Codec, Rounding
from diloco_trainer.algorithm import codec_base
from diloco_trainer.algorithm.codec import CodecOverflowError, CodecUnavailable, NonFiniteError, make_codec

BLOCK_CODECS = [Codec.INT8, Codec.INT4, Codec.E3M0]
LOSSY = [codec for codec in Codec if codec is not Codec.FP32]
FP32_MAX = float(torch.finfo(torch.float32).max)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gaussian(numel: int, seed: int = 0) -> Tensor:
    return torch.randn(numel, generator=generator(seed))


def heavy_tailed(numel: int) -> Tensor:
    """Student t with 3 degrees of freedom."""
    parts = torch.randn(4, numel, generator=generator(1))
    return parts[0] / (parts[1:] ** 2).mean(dim=0).sqrt()


VECTORS = {
    "gaussian": gaussian(1000),
    "tiny gaussian": gaussian(1000) * 1e-6,
    "heavy-tailed": heavy_tailed(1000),
    "constant": torch.full((700,), -3.0e-4),
    "zero": torch.zeros(700),
    "minus zero": torch.full((300,), -0.0),
    "denormal": torch.randint(-(2**15), 2**15, (600,), generator=generator(2)).float() * 2.0**-149,
    "one denormal among zeros": torch.eye(1, 300)[0] * 2.0**-149,
    "powers of two": torch.arange(-14, 2).float().exp2().repeat(40),
    "empty": torch.zeros(0),
}
EXTREMES = {
    "largest": torch.full((300,), FP32_MAX),
    "spread up to the largest": torch.linspace(-1.0, 1.0, 1000) * FP32_MAX,
    "just below the largest": torch.full((256,), FP32_MAX) * torch.linspace(0.98, 1.0, 256),
}


def check_bound(kind: Codec, x: Tensor, rounding: Rounding) -> None:
    codec = make_codec(kind)
    data = codec.encode(x, rounding, generator())
    assert data.dtype == torch.uint8
    assert data.numel() == codec.encoded_bytes(x.numel())
    decoded = codec.decode(data, x.numel())
    assert decoded.shape == x.shape
    assert bool(torch.isfinite(decoded).all())
    error = (decoded.double() - x.double()).abs()
    assert bool((error <= codec.error_bound(x, rounding).double()).all())
    assert codec.is_finite(data, x.numel())


@pytest.mark.parametrize("rounding", list(Rounding))
@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize("kind", list(Codec))
def test_error_stays_within_the_proven_bound(kind: Codec, name: str, rounding: Rounding) -> None:
    check_bound(kind, VECTORS[name], rounding)


@pytest.mark.parametrize("rounding", list(Rounding))
@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("kind", [Codec.FP32, *BLOCK_CODECS])
def test_bound_holds_up_to_the_largest_number(kind: Codec, name: str, rounding: Rounding) -> None:
    check_bound(kind, EXTREMES[name], rounding)


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from([Codec.FP32, Codec.BF16, *BLOCK_CODECS]),
    rounding=st.sampled_from(list(Rounding)),
    values=st.lists(st.floats(width=32, min_value=-(2.0**127), max_value=2.0**127), max_size=600),
)
def test_bound_holds_for_whatever_is_finite(kind: Codec, rounding: Rounding, values: list[float]) -> None:
    check_bound(kind, torch.tensor(values, dtype=torch.float32), rounding)


@settings(max_examples=60, deadline=None)
@given(
    rounding=st.sampled_from(list(Rounding)),
    values=st.lists(st.floats(width=32, min_value=-65504, max_value=65504), max_size=300),
)
def test_fp16_bound_holds_in_its_range(rounding: Rounding, values: list[float]) -> None:
    check_bound(Codec.FP16, torch.tensor(values, dtype=torch.float32), rounding)


@pytest.mark.parametrize("kind", [Codec.BF16, Codec.FP16])
def test_bound_of_floats_is_half_a_unit_in_the_last_place(kind: Codec) -> None:
    dtype = torch.bfloat16 if kind is Codec.BF16 else torch.float16
    x = torch.cat([gaussian(500), gaussian(500) * 1e-6, torch.tensor([0.0, 1.0, 2.0**-14, 2.0**-30])])
    narrow = x.abs().to(dtype)
    below = torch.where(narrow.float() > x.abs(), narrow.view(torch.int16) - 1, narrow.view(torch.int16))
    unit = (below + 1).to(torch.int16).view(dtype).float() - below.to(torch.int16).view(dtype).float()
    assert torch.equal(make_codec(kind).error_bound(x), unit / 2)


def test_scale_of_ints_is_never_below_what_the_largest_value_needs() -> None:
    # 127 * 2^-7 * (1 + 2^-23): the quotient rounds down to a bf16 number, which is too small
    largest = torch.tensor(127 * 2.0**-7 * (1 + 2.0**-23), dtype=torch.float32)
    for value in [float(largest), *(gaussian(500).abs() + 1e-9).tolist(), 2.0**-149, 3 * 2.0**-140]:
        for kind, levels in ((Codec.INT8, 127), (Codec.INT4, 7), (Codec.E3M0, 1)):
            data = make_codec(kind).encode(torch.tensor([value]))
            assert float(data[:2].view(torch.bfloat16)) * levels >= torch.tensor(value).item()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("rounding", list(Rounding))
@pytest.mark.parametrize("kind", list(Codec))
def test_non_finite_value_is_refused_by_name_and_place(kind: Codec, rounding: Rounding, bad: float) -> None:
    x = gaussian(1000)
    x[777] = bad
    with pytest.raises(NonFiniteError, match=f"value 777 of 1000 is {bad}"):
        make_codec(kind).encode(x, rounding, generator())


def test_non_finite_value_behind_the_first_chunk_is_found() -> None:
    x = torch.zeros(codec_base.CHUNK + 300)
    x[codec_base.CHUNK + 299] = math.nan
    for kind in Codec:
        with pytest.raises(NonFiniteError, match=f"value {codec_base.CHUNK + 299} "):
            make_codec(kind).encode(x)


@pytest.mark.parametrize("rounding", list(Rounding))
@pytest.mark.parametrize(("kind", "value"), [(Codec.FP16, 65520.0), (Codec.FP16, -1e30), (Codec.BF16, FP32_MAX)])
def test_value_that_would_become_infinite_is_an_overflow(kind: Codec, value: float, rounding: Rounding) -> None:
    with pytest.raises(CodecOverflowError, match=kind.value) as caught:
        make_codec(kind).encode(torch.tensor([1.0] + [value] * 64), rounding, generator())
    assert isinstance(caught.value, NonFiniteError)
    assert isinstance(caught.value, OverflowError)


def test_largest_fp16_number_travels() -> None:
    codec = make_codec(Codec.FP16)
    for rounding in Rounding:
        data = codec.encode(torch.tensor([65504.0, -65504.0]), rounding, generator())
        assert codec.decode(data, 2).tolist() == [65504.0, -65504.0]
    assert codec.decode(codec.encode(torch.tensor([65519.0])), 1).tolist() == [65504.0]  # nearest is finite


@pytest.mark.parametrize("kind", LOSSY)
def test_stochastic_rounding_needs_a_generator_and_repeats_with_it(kind: Codec) -> None:
    codec, x = make_codec(kind), gaussian(1000)
    with pytest.raises(ValueError, match="generator"):
        codec.encode(x, Rounding.STOCHASTIC, None)
    one, same = (codec.encode(x, Rounding.STOCHASTIC, generator(5)) for _ in range(2))
    other = codec.encode(x, Rounding.STOCHASTIC, generator(6))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("kind", LOSSY)
def test_stochastic_rounding_is_unbiased(kind: Codec) -> None:
    """Mean of 4000 draws of each of 64 values; 5 standard errors of the widest step, over all values together."""
    x = torch.cat([gaussian(56) * 0.1, torch.tensor([1.0, -1.0, 0.0, 2e-3, -3e-3, 0.009, 0.4, 3e-5])])
    codec, draws, rng = make_codec(kind), 4000, generator(7)
    repeated = x.repeat(draws, 4)  # 256 values a row: every row is one block
    decoded = codec.decode(codec.encode(repeated.reshape(-1), Rounding.STOCHASTIC, rng), repeated.numel())
    error = decoded.view(draws * 4, 64).double().mean(dim=0) - x.double()
    step = codec.error_bound(repeated[0], Rounding.STOCHASTIC)[:64].double()
    standard_error = step / 2 / math.sqrt(draws * 4)
    assert bool((error.abs() <= 5 * standard_error + 2.0**-16 * step).all())
    assert abs(float((error / step).mean())) <= 5 / (2 * math.sqrt(draws * 4 * 64))


@pytest.mark.parametrize("kind", [Codec.INT8, Codec.INT4])
def test_whole_steps_of_ints_survive_every_draw_of_stochastic_rounding(kind: Codec) -> None:
    """A million draws meet each of the 65536 random numbers about 16 times."""
    x = torch.tensor([127.0, 1.0, -3.0, 0.0] if kind is Codec.INT8 else [7.0, 1.0, -3.0, 0.0]).repeat(1 << 18)
    codec = make_codec(kind)
    assert torch.equal(codec.decode(codec.encode(x, Rounding.STOCHASTIC, generator()), x.numel()), x)


@pytest.mark.parametrize("kind", list(Codec))
def test_exactly_representable_values_survive_stochastic_rounding(kind: Codec) -> None:
    x = torch.tensor([1.0, -0.5, 0.25, 0.0, -1.0]) * (
        127.0 if kind is Codec.INT8 else 7.0 if kind is Codec.INT4 else 1.0
    )
    x = x[[0, 3, 4]] if kind in (Codec.INT8, Codec.INT4) else x
    codec = make_codec(kind)
    decoded = codec.decode(codec.encode(x.repeat(500), Rounding.STOCHASTIC, generator()), 500 * x.numel())
    assert torch.equal(decoded, x.repeat(500))


@pytest.mark.parametrize("kind", list(Codec))
def test_self_test_passes_here(kind: Codec) -> None:
    make_codec(kind).self_test()


@pytest.mark.parametrize("kind", list(Codec))
def test_codec_that_cannot_run_fails_its_self_test(kind: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    codec = make_codec(kind)
    original = codec.decode
    monkeypatch.setattr(codec, "decode", lambda data, numel: original(data, numel) * 1.5)
    with pytest.raises(CodecUnavailable, match=f"codec {kind.value} fails its self-test"):
        codec.self_test()


def test_process_that_flushes_denormals_is_refused() -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    try:
        with pytest.raises(CodecUnavailable):
            make_codec(Codec.INT8).self_test()
    finally:
        torch.set_flush_denormal(False)

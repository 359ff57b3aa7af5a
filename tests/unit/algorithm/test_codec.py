"""Every codec: exact sizes, the proven bound, refusals by name, the same bytes on any number of threads."""

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from diloco_api.sync_policy import Codec, Rounding
from diloco_trainer.algorithm import codec_base, codec_block
from diloco_trainer.algorithm.codec import CodecOverflowError, CodecUnavailable, NonFiniteError, make_codec
from reference import codecs as reference

BLOCK_CODECS = [Codec.INT8, Codec.INT4, Codec.E3M0]
LOSSY = [codec for codec in Codec if codec is not Codec.FP32]
FP32_MAX = float(torch.finfo(torch.float32).max)
SIZES = [0, 1, 2, 255, 256, 257, 511, 513, 1000]


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


@pytest.mark.parametrize("kind", list(Codec))
def test_nearest_gives_the_bytes_of_the_reference(kind: Codec) -> None:
    for x in (gaussian(700), heavy_tailed(513), VECTORS["constant"], VECTORS["powers of two"], VECTORS["empty"]):
        assert bytes(make_codec(kind).encode(x).tolist()) == reference.encode(kind.value, x)


@pytest.mark.parametrize("kind", list(Codec))
def test_decoding_gives_the_values_of_the_reference(kind: Codec) -> None:
    x = gaussian(515)
    data = make_codec(kind).encode(x, Rounding.STOCHASTIC, generator())
    assert torch.equal(make_codec(kind).decode(data, 515), reference.decode(kind.value, bytes(data.tolist()), 515))


@pytest.mark.parametrize("kind", BLOCK_CODECS)
def test_scales_come_first_then_codes_low_nibble_first(kind: Codec) -> None:
    x = torch.zeros(259)
    x[0], x[1], x[256], x[258] = 1.0, -1.0, 2.0, -2.0
    x *= {Codec.INT8: 127, Codec.INT4: 7, Codec.E3M0: 1}[kind]
    data = make_codec(kind).encode(x).tolist()
    scale = torch.tensor(data[:4], dtype=torch.uint8).view(torch.bfloat16).tolist()
    assert scale == [1.0, 2.0]
    if kind is Codec.INT8:
        assert data[4:6] == [127, 129]
        assert data[4 + 256 :] == [127, 0, 129]
    else:
        first = {Codec.INT4: 0x97, Codec.E3M0: 0xF7}[kind]
        assert data[4] == first
        assert data[4 + 128 :] == [0x07, first >> 4]


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        (Codec.FP32, [0, 4, 8, 1020, 1024, 1028, 2044, 2052, 4000]),
        (Codec.BF16, [0, 2, 4, 510, 512, 514, 1022, 1026, 2000]),
        (Codec.FP16, [0, 2, 4, 510, 512, 514, 1022, 1026, 2000]),
        (Codec.INT8, [0, 3, 4, 257, 258, 261, 515, 519, 1008]),
        (Codec.INT4, [0, 3, 3, 130, 130, 133, 260, 263, 508]),
        (Codec.E3M0, [0, 3, 3, 130, 130, 133, 260, 263, 508]),
    ],
)
def test_size_is_known_beforehand(kind: Codec, sizes: list[int]) -> None:
    codec = make_codec(kind)
    for numel, size in zip(SIZES, sizes, strict=True):
        assert codec.encoded_bytes(numel) == size
        assert codec.encode(torch.ones(numel)).numel() == size


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


@pytest.mark.parametrize("kind", [Codec.FP32, Codec.BF16, Codec.FP16])
def test_receiver_sees_a_non_finite_float(kind: Codec) -> None:
    codec = make_codec(kind)
    dtype = {Codec.FP32: torch.float32, Codec.BF16: torch.bfloat16, Codec.FP16: torch.float16}[kind]
    for bad in (math.nan, math.inf, -math.inf):
        x = torch.ones(300, dtype=dtype)
        x[123] = bad
        assert not codec.is_finite(x.view(torch.uint8), 300)
    assert codec.is_finite(torch.ones(300, dtype=dtype).view(torch.uint8), 300)


@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf, -1.0])
@pytest.mark.parametrize("kind", BLOCK_CODECS)
def test_receiver_sees_a_scale_that_cannot_be(kind: Codec, scale: float) -> None:
    codec = make_codec(kind)
    data = codec.encode(gaussian(600))
    data[2:4] = torch.tensor([scale], dtype=torch.bfloat16).view(torch.uint8)
    assert not codec.is_finite(data, 600)


@pytest.mark.parametrize("kind", BLOCK_CODECS)
def test_receiver_sees_every_scale_and_code_that_decode_to_infinity(kind: Codec) -> None:
    codec = make_codec(kind)
    body = torch.arange(256, dtype=torch.uint8)  # every code
    numel = 256 if kind is Codec.INT8 else 512
    for bits in [*range(0x7A00, 0x7F80), 0x0001, 0x0000]:
        blocks = 1 if kind is Codec.INT8 else 2
        scales = torch.full((blocks,), bits, dtype=torch.int16).view(torch.uint8)
        data = torch.cat([scales, body])
        assert codec.is_finite(data, numel) == bool(torch.isfinite(codec.decode(data, numel)).all())


@pytest.mark.parametrize(
    ("kind", "code", "value"), [(Codec.INT8, 0x80, -128.0), (Codec.INT4, 0x08, -8.0), (Codec.E3M0, 0x08, 0.0)]
)
def test_code_that_is_never_encoded_decodes_as_it_reads(kind: Codec, code: int, value: float) -> None:
    one = torch.tensor([0x80, 0x3F], dtype=torch.uint8)  # bf16 1.0, little-endian
    data = torch.cat([one, torch.tensor([code], dtype=torch.uint8)])
    assert make_codec(kind).decode(data, 1).tolist() == [value]


@pytest.mark.parametrize("rounding", list(Rounding))
def test_never_encoded_codes_are_never_encoded(rounding: Rounding) -> None:
    x = torch.cat(
        [gaussian(2000), -torch.full((256,), 1e-9), torch.tensor([-1.0, 1.0]), torch.full((8192,), -FP32_MAX)]
    )
    codes = make_codec(Codec.INT8).encode(x, rounding, generator())[2 * 41 :].view(torch.int8)
    assert int(codes.min()) == -127
    for kind in (Codec.INT4, Codec.E3M0):
        packed = make_codec(kind).encode(x, rounding, generator())[2 * 41 :]
        assert 8 not in (packed & 15).tolist()
        assert 8 not in (packed >> 4).tolist()


@pytest.mark.parametrize("rounding", list(Rounding))
@pytest.mark.parametrize("kind", list(Codec))
def test_bytes_do_not_depend_on_threads_or_chunks(
    kind: Codec, rounding: Rounding, monkeypatch: pytest.MonkeyPatch, threads: None
) -> None:
    x = gaussian(300_007)
    codec = make_codec(kind)
    results = []
    for count, chunk in ((1, 1 << 18), (2, 1 << 18), (2, 1 << 12), (1, 1 << 10)):
        torch.set_num_threads(count)
        for module, name in ((codec_base, "CHUNK"), (codec_block, "CHUNK")):
            monkeypatch.setattr(module, name, chunk)
        monkeypatch.setattr("diloco_trainer.algorithm.codec_float.CHUNK", chunk)
        monkeypatch.setattr(codec_block, "_BLOCKS_PER_CHUNK", chunk // 256)
        monkeypatch.setattr(codec_block, "_SCALED_TOGETHER", 4 * chunk)
        data = codec.encode(x, rounding, generator())
        results.append((data, codec.decode(data, x.numel())))
    for data, decoded in results[1:]:
        assert torch.equal(data, results[0][0])
        assert torch.equal(decoded, results[0][1])


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", list(Codec))
def test_accumulating_equals_decoding_and_adding(kind: Codec) -> None:
    x, target = gaussian(codec_base.CHUNK + 77), gaussian(codec_base.CHUNK + 77, seed=1)
    codec = make_codec(kind)
    data = codec.encode(x)
    expected = target + codec.decode(data, x.numel())
    assert codec.accumulate(data, x.numel(), target) is target
    assert torch.equal(target, expected)


@pytest.mark.parametrize("kind", list(Codec))
def test_decoding_takes_unaligned_bytes_and_a_given_output(kind: Codec) -> None:
    codec = make_codec(kind)
    data = codec.encode(gaussian(301))
    shifted = torch.cat([torch.zeros(1, dtype=torch.uint8), data])[1:]
    out = torch.empty(301)
    assert codec.decode(shifted, 301, out) is out
    assert torch.equal(out, codec.decode(data, 301))
    assert codec.is_finite(shifted, 301)


@pytest.mark.parametrize("kind", list(Codec))
def test_wrong_size_or_type_is_refused(kind: Codec) -> None:
    codec = make_codec(kind)
    data = codec.encode(gaussian(300))
    for wrong in (data[:-1], torch.cat([data, data[:1]]), data.view(torch.int8)):
        with pytest.raises(ValueError, match="300 values are"):
            codec.decode(wrong, 300)
        with pytest.raises(ValueError, match="300 values are"):
            codec.is_finite(wrong, 300)
    with pytest.raises(ValueError, match="float32 vectors"):
        codec.encode(gaussian(300).double())
    with pytest.raises(ValueError, match="float32 vector of 300"):
        codec.decode(data, 300, torch.empty(299))


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

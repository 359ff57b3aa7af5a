"""The bytes of every codec: layout, exact sizes, equal to the reference, the same on any number of threads; hostile."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from diloco_api.sync_policy import Codec, Rounding
from diloco_trainer.algorithm import codec_base, codec_block
from diloco_trainer.algorithm.codec import make_codec
from reference import codecs as reference

BLOCK_CODECS = [Codec.INT8, Codec.INT4, Codec.E3M0]
FP32_MAX = float(torch.finfo(torch.float32).max)
SIZES = [0, 1, 2, 255, 256, 257, 511, 513, 1000]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gaussian(numel: int, seed: int = 0) -> Tensor:
    return torch.randn(numel, generator=generator(seed))


def vectors() -> list[Tensor]:
    """Gaussian, heavy-tailed, constant, powers of two, a mixture of magnitudes, empty."""
    tails = torch.randn(4, 513, generator=generator(1))
    powers = torch.arange(-14, 2).float().exp2().repeat(40)
    mixture = gaussian(1000, 3) * (gaussian(1000, 4) * 20).exp2()
    heavy = tails[0] / (tails[1:] ** 2).mean(dim=0).sqrt()
    return [gaussian(700), heavy, torch.full((700,), -3.0e-4), powers, mixture, torch.zeros(0)]


@pytest.mark.parametrize("kind", list(Codec))
def test_nearest_gives_the_bytes_of_the_reference(kind: Codec) -> None:
    for x in vectors() if kind is not Codec.FP16 else vectors()[:4]:
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

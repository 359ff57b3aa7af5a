"""How fragments travel: the codecs by name.

Each codec knows its exact size in bytes beforehand, proves a bound on its error per element, refuses what is not
finite, and is tested at process start. Error feedback is not here (`residual`), nor is any framing of the bytes.
"""

from diloco_api.sync_policy import Codec
from diloco_trainer.algorithm.codec_base import CodecOverflowError, CodecUnavailable, NonFiniteError, TensorCodec
from diloco_trainer.algorithm.codec_e3m0 import E3M0Codec
from diloco_trainer.algorithm.codec_float import FloatCodec
from diloco_trainer.algorithm.codec_int import IntCodec

__all__ = ["CodecOverflowError", "CodecUnavailable", "NonFiniteError", "TensorCodec", "make_codec"]


def make_codec(kind: Codec) -> TensorCodec:
    """The codec of that name. Call its `self_test` once at process start."""
    match kind:
        case Codec.FP32 | Codec.BF16 | Codec.FP16:
            return FloatCodec(kind)
        case Codec.INT8 | Codec.INT4:
            return IntCodec(kind)
        case Codec.E3M0:
            return E3M0Codec()

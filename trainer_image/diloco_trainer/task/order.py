"""The order in which a pass visits the training sequences.

A permutation of 0..n-1 computed one position at a time, without a table: a Feistel network over the next even number
of bits whose out-of-range values are walked on along their cycle. Only integer arithmetic, so the order depends on
nothing but (seed, pass, n): no library version, machine or thread count changes it.
"""

_MASK = (1 << 64) - 1
_ROUNDS = 6


def _mix(value: int) -> int:
    """SplitMix64's finaliser: 64 bits in, 64 well-mixed bits out."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class PassOrder:
    """Sequence numbers of one pass in the order they are trained on."""

    def __init__(self, seed: int, pass_index: int, num_sequences: int) -> None:
        if num_sequences < 1:
            raise ValueError(f"num_sequences must be positive, not {num_sequences}")
        self._num = num_sequences
        self._half_bits = max(1, ((num_sequences - 1).bit_length() + 1) // 2)
        self._half_mask = (1 << self._half_bits) - 1
        key = _mix(_mix(seed & _MASK) ^ _mix(pass_index ^ 0x5851F42D4C957F2D))
        self._keys = [_mix(key + number) for number in range(_ROUNDS)]

    def sequence_at(self, position: int) -> int:
        """The sequence visited at `position` of this pass."""
        if not 0 <= position < self._num:
            raise ValueError(f"position {position} is outside a pass of {self._num} sequences")
        value = self._permute(position)
        while value >= self._num:
            value = self._permute(value)
        return value

    def _permute(self, value: int) -> int:
        left, right = value >> self._half_bits, value & self._half_mask
        for key in self._keys:
            left, right = right, left ^ (_mix(right ^ key) & self._half_mask)
        return (left << self._half_bits) | right

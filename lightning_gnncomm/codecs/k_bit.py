"""Two, four or eight bits a value: each becomes one of equally spaced levels of its row, without bias."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from lightning_gnncomm import kernels
from lightning_gnncomm.codecs.base import CODECS, Codec, RoundingKey

__all__ = ["KBitCodec"]

_BITS = (2, 4, 8)


class KBitCodec(Codec):
    """Sends ``b`` bits a value and two bf16 ends a row, ``4 + ceil(F b / 8)`` bytes (Sylvie's low-bit module).

    The ends, rounded outwards, part the row's span into ``2 ** b - 1`` equal steps; a value goes to one of the two levels around it
    with the chances that keep its mean. The error of a value is below one step, and its variance at most a quarter of the step's
    square. Rows that are not finite, or whose rounded ends are not, decode to NaN. One bit is
    :class:`~lightning_gnncomm.codecs.OneBitCodec`.

    Args:
        bits: Bits of a value: 2, 4 or 8.

    Raises:
        ValueError: If ``bits`` is another number.

    Example:
        >>> codec = KBitCodec(2)
        >>> payload = codec.encode(torch.tensor([[0.0, 1.0, 2.0, 3.0]]), RoundingKey(7, torch.tensor([0])))
        >>> payload.shape, codec.decode(payload, 4, torch.float32)
        (torch.Size([1, 5]), tensor([[0., 1., 2., 3.]]))
    """

    def __init__(self, bits: int) -> None:
        if bits not in _BITS:
            raise ValueError(f"Expected bits to be one of {_BITS} (one bit is OneBitCodec), got {bits!r}.")
        self.bits = bits

    def row_nbytes(self, num_features: int, dtype: torch.dtype) -> int:
        """Return ``4 + ceil(F b / 8)``, whatever the type."""
        return kernels.k_bit_row_nbytes(num_features, self.bits)

    def encode(self, rows: Tensor, key: RoundingKey) -> Tensor:
        """Encode floating-point rows, see :func:`lightning_gnncomm.kernels.k_bit_encode`."""
        return kernels.k_bit_encode(rows.detach(), self.bits, key.row, key.stream)

    def decode(self, payload: Tensor, num_features: int, dtype: torch.dtype) -> Tensor:
        """Decode to rows of shape ``[R, F]``, see :func:`lightning_gnncomm.kernels.k_bit_decode`."""
        return kernels.k_bit_decode(payload, self.bits, num_features, dtype)

    def __repr__(self) -> str:
        return f"KBitCodec(bits={self.bits})"


CODECS.update({f"{bits}bit": partial(KBitCodec, bits) for bits in _BITS})

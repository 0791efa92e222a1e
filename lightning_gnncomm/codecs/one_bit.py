"""One bit a value: each becomes the lower or the upper end of its row, without bias."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_gnncomm import kernels
from lightning_gnncomm.codecs.base import CODECS, Codec, RoundingKey

__all__ = ["OneBitCodec"]


class OneBitCodec(Codec):
    """Sends one bit a value and two bf16 ends a row, ``4 + ceil(F / 8)`` bytes (Sylvie's low-bit module with b = 1).

    A value ``h`` in a row with ends ``lo <= h <= hi`` becomes ``hi`` with probability ``(h - lo) / (hi - lo)``, otherwise
    ``lo``: unbiased, with variance ``(h - lo) (hi - h)``. The ends are bf16 rounded outwards, so that this holds for them as
    sent. Rows that are not finite, or whose rounded ends are not, decode to NaN.

    Example:
        >>> codec = OneBitCodec()
        >>> payload = codec.encode(torch.tensor([[-1.0, 2.0, 2.0]]), RoundingKey(7, torch.tensor([0])))
        >>> payload.shape, codec.decode(payload, 3, torch.float32)
        (torch.Size([1, 5]), tensor([[-1.,  2.,  2.]]))
    """

    def row_nbytes(self, num_features: int, dtype: torch.dtype) -> int:
        """Return ``4 + ceil(F / 8)``, whatever the type."""
        return kernels.k_bit_row_nbytes(num_features, 1)

    def encode(self, rows: Tensor, key: RoundingKey) -> Tensor:
        """Encode floating-point rows, see :func:`lightning_gnncomm.kernels.one_bit_encode`."""
        return kernels.one_bit_encode(rows.detach(), key.row, key.stream)

    def decode(self, payload: Tensor, num_features: int, dtype: torch.dtype) -> Tensor:
        """Decode to rows of shape ``[R, F]``, see :func:`lightning_gnncomm.kernels.one_bit_decode`."""
        return kernels.one_bit_decode(payload, num_features, dtype)

    def __repr__(self) -> str:
        return "OneBitCodec()"


CODECS["one_bit"] = OneBitCodec

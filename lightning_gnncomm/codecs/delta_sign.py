"""One bit a value for differences to rows that the receivers hold: signs, and a scale for each group of columns."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_gnncomm import kernels
from lightning_gnncomm.codecs.base import CODECS, Codec, RoundingKey

__all__ = ["DeltaSignCodec"]


class DeltaSignCodec(Codec):
    """Sends the signs of a difference and the mean of its absolute values, ``ceil(F / 8) + 2 ceil(F / group_size)`` bytes a row.

    What is coded is the difference ``d`` of a row to what its receivers hold, which the decoded ``C(d)`` then brings up to date on
    both ends. ``C`` is biased but contractive, ``||d - C(d)|| <= sqrt(1 - 1 / g) ||d||`` for each group of ``g`` values, so an
    error is sent again with the next difference until it is gone. Codecs without bias do not allow that: theirs may be larger
    than ``d``. A group with a value that is not finite, or with a mean beyond the largest bf16, decodes to NaN.

    Args:
        group_size: Number of consecutive columns that share a bf16 scale; the last group may be shorter.

    Raises:
        ValueError: If ``group_size`` is not positive.

    Example:
        >>> codec, key = DeltaSignCodec(), RoundingKey(0, torch.tensor([0]))
        >>> row, held = torch.tensor([[1.0, -1.0, 3.0, 3.0]]), torch.zeros(1, 4)
        >>> for _ in range(2):
        ...     held += codec.decode(codec.encode(row - held, key), 4, torch.float32)
        ...     print(held)
        tensor([[ 2., -2.,  2.,  2.]])
        tensor([[ 1., -1.,  3.,  3.]])
    """

    is_delta = True

    def __init__(self, group_size: int = 128) -> None:
        if group_size < 1:
            raise ValueError(f"Expected a positive group_size, got {group_size!r}.")
        self.group_size = group_size

    def row_nbytes(self, num_features: int, dtype: torch.dtype) -> int:
        """Return ``ceil(F / 8) + 2 ceil(F / group_size)``, whatever the type."""
        return kernels.sign_row_nbytes(num_features, self.group_size)

    def encode(self, rows: Tensor, key: RoundingKey) -> Tensor:
        """Encode floating-point differences, see :func:`lightning_gnncomm.kernels.sign_encode`; ``key`` does not enter."""
        return kernels.sign_encode(rows.detach(), self.group_size)

    def decode(self, payload: Tensor, num_features: int, dtype: torch.dtype) -> Tensor:
        """Decode to differences of shape ``[R, F]``, see :func:`lightning_gnncomm.kernels.sign_decode`."""
        return kernels.sign_decode(payload, num_features, self.group_size, dtype)

    def __repr__(self) -> str:
        return f"DeltaSignCodec(group_size={self.group_size})"


CODECS["delta_sign"] = DeltaSignCodec

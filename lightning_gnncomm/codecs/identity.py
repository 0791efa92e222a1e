"""The codec that loses nothing: the bytes of the rows themselves."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_gnncomm.codecs.base import CODECS, Codec, RoundingKey

__all__ = ["IdentityCodec"]


class IdentityCodec(Codec):
    """Sends rows as they are, of any type, ``F * itemsize`` bytes each.

    Nothing is copied where that can be avoided: a payload shares the memory of contiguous rows, and decoded rows that of
    their payload.

    Example:
        >>> codec = IdentityCodec()
        >>> payload = codec.encode(torch.tensor([[1, 2], [3, 4]]), RoundingKey(0, torch.arange(2)))
        >>> payload.shape, codec.decode(payload, 2, torch.int64).tolist()
        (torch.Size([2, 16]), [[1, 2], [3, 4]])
    """

    def row_nbytes(self, num_features: int, dtype: torch.dtype) -> int:
        """Return ``F * itemsize``."""
        return num_features * dtype.itemsize

    def encode(self, rows: Tensor, key: RoundingKey) -> Tensor:
        """View ``rows`` of shape ``[R, F]`` as bytes of shape ``[R, F * itemsize]``."""
        num_rows, num_features = rows.shape
        # Flat first: a view of a matrix in another type is refused where it is empty.
        return rows.reshape(-1).view(torch.uint8).view(num_rows, self.row_nbytes(num_features, rows.dtype))

    def decode(self, payload: Tensor, num_features: int, dtype: torch.dtype) -> Tensor:
        """View a payload of shape ``[R, F * itemsize]`` as rows of shape ``[R, F]``."""
        flat = payload.reshape(-1)
        if flat.storage_offset() % dtype.itemsize:
            flat = flat.clone()  # part of a longer message that does not begin where this type may
        return flat.view(dtype).view(payload.size(0), num_features)

    def __repr__(self) -> str:
        return "IdentityCodec()"


CODECS["identity"] = IdentityCodec

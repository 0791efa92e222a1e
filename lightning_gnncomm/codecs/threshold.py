"""The largest values only: those at or above a threshold that is found anew from time to time (DCT)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lightning_gnncomm.codecs.base import Codec, RoundingKey
from lightning_gnncomm.codecs.identity import IdentityCodec
from lightning_gnncomm.slots import Slot

__all__ = ["ThresholdCodec"]


class ThresholdCodec(Codec):
    """Sends the values whose size reaches a threshold, the others are zero to the receiver (DCT-MP, arXiv 2010.08899).

    Every ``refresh``-th step the threshold becomes the size of the value that ``density`` of all values reach; between, how many
    are sent drifts with what the values are. Zeros are never sent, so after a ReLU fewer may be. What is not sent is lost: there is
    no memory of it. Gradients of the rows travel by the mask of the rows, values alone, and are zero where that is.

    A message takes the bytes of :func:`~lightning_gnncomm.codecs.sparse.sparse_nbytes`, for the rows of each receiver, and 4 bytes
    that tell the number of values; gradients take those of the values. So no row has a size of its own, and it is the channel that
    packs a message, not :meth:`encode`. Values that are not finite are always sent.

    Args:
        density: Share of the values to send, above 0 and up to 1, which is exact.
        refresh: Steps from one threshold to the next.
        scope: ``"tensor"`` has one threshold for all rows that a rank sends in a message, ``"row"`` one for each of them.

    Raises:
        ValueError: If ``density`` or ``refresh`` is out of range, or ``scope`` is another.

    Example:
        >>> codec, rows = ThresholdCodec(density=0.5), torch.tensor([[4.0, -3.0], [1.0, 0.0]])
        >>> codec.keep(rows, codec.thresholds(rows)).tolist()
        [[4.0, -3.0], [0.0, 0.0]]
    """

    is_sparse = True

    def __init__(self, density: float = 0.05, refresh: int = 20, scope: Literal["tensor", "row"] = "tensor") -> None:
        if not 0 < density <= 1:
            raise ValueError(f"Expected density to be above 0 and at most 1, got {density!r}.")
        if refresh < 1:
            raise ValueError(f"Expected refresh to be a positive number of steps, got {refresh!r}.")
        if scope not in ("tensor", "row"):
            raise ValueError(f"Expected scope to be 'tensor' or 'row', got {scope!r}.")
        self.density = density
        self.refresh = refresh
        self.scope = scope

    def for_slot(self, slot: Slot) -> Codec:
        """Return this codec, or the identity if everything is sent: zeros have gradients too then."""
        return IdentityCodec() if self.density == 1 else self

    def thresholds(self, rows: Tensor) -> Tensor:
        """Return the size of the value that ``density`` of the values reach, shape ``[1, 1]``, or ``[R, 1]`` for each row.

        It is 0, which every value reaches, if all are to be sent.
        """
        sizes = rows.detach().abs().nan_to_num(nan=0.0, posinf=0.0)
        sizes = sizes if self.scope == "row" else sizes.reshape(1, -1)
        count = sizes.size(1)
        if self.density == 1 or not sizes.numel():
            return sizes.new_zeros(sizes.size(0), 1)
        kept = max(1, round(self.density * count))
        return sizes.kthvalue(count - kept + 1, dim=1, keepdim=True).values

    def keep(self, rows: Tensor, thresholds: Tensor) -> Tensor:
        """Return rows ``[R, F]`` with zeros in the place of values below the thresholds."""
        rows = rows.detach()
        return rows.where((rows.abs() >= thresholds) | ~rows.isfinite(), 0.0)

    def row_nbytes(self, num_features: int, dtype: torch.dtype) -> None:
        """Return ``None``: rows have no size of their own."""

    def encode(self, rows: Tensor, key: RoundingKey) -> Tensor:
        """Raise ``TypeError``, as :meth:`decode` does."""
        raise self._asked_for_rows()

    def decode(self, payload: Tensor, num_features: int, dtype: torch.dtype) -> Tensor:
        """Raise ``TypeError``."""
        raise self._asked_for_rows()

    @staticmethod
    def _asked_for_rows() -> TypeError:
        return TypeError("Expected a codec of rows, got ThresholdCodec, whose messages the channel packs as a whole.")

    def __repr__(self) -> str:
        return f"ThresholdCodec(density={self.density}, refresh={self.refresh}, scope={self.scope!r})"

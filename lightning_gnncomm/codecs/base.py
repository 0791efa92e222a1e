"""What a codec is, and the names under which codecs are found."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from lightning_gnncomm.slots import Slot

__all__ = ["CODECS", "ChoosingCodec", "Codec", "RoundingKey", "SlotStatistics", "resolve_codec"]


class RoundingKey(NamedTuple):
    """Counters that the randomness of one message is computed from; nothing else enters it.

    Args:
        stream: One 63-bit number per message, mixed from seed, step and slot.
        row: One key per row, shape ``[R]``, int64.
    """

    stream: int
    row: Tensor


class Codec(ABC):
    """Turns rows into bytes and back. Codecs see matrices only and keep nothing of a message.

    A fixed-width codec gives every row the same number of bytes, known to both ends, so no size has to travel.
    """

    is_delta: ClassVar[bool] = False
    """Whether rows are coded as differences to the rows the receivers hold; the channel keeps these."""

    is_sparse: ClassVar[bool] = False
    """Whether values are left out of a message, by a :class:`~lightning_gnncomm.codecs.ThresholdCodec`; the channel packs the rest."""

    def for_slot(self, slot: Slot) -> Codec:
        """Return the codec of one message: this one, unless it chooses among others (:class:`ChoosingCodec`)."""
        return self

    @abstractmethod
    def row_nbytes(self, num_features: int, dtype: torch.dtype) -> int | None:
        """Return the encoded bytes of one row of ``num_features`` values, or ``None`` if they vary by content."""

    @abstractmethod
    def encode(self, rows: Tensor, key: RoundingKey) -> Tensor:
        """Encode ``rows`` of shape ``[R, F]`` to a uint8 payload of shape ``[R, B]``."""

    @abstractmethod
    def decode(self, payload: Tensor, num_features: int, dtype: torch.dtype) -> Tensor:
        """Decode a payload of shape ``[R, B]`` to rows of shape ``[R, num_features]`` and type ``dtype``."""


class SlotStatistics(NamedTuple):
    """What is known of the rows that were sent in one slot, summed over ranks (and over steps, if over several).

    Args:
        num_values: Number of values.
        squared_range: Sum over the rows of ``F * (max - min) ** 2``: the squared range of its row, for each value.
    """

    num_values: float
    squared_range: float


class ChoosingCodec(Codec):
    """A codec that encodes nothing itself but names a codec for each message.

    The choice must be the same on all ranks. It may depend on what was sent: then :attr:`every` is not ``None``, and all ranks call
    :meth:`observe` with the same numbers, which they get by adding up :meth:`statistics_of` over all ranks.
    """

    every: int | None = None
    """Steps from one call of :meth:`observe` to the next; ``None`` if the choice does not depend on what is sent."""

    @abstractmethod
    def for_slot(self, slot: Slot) -> Codec:
        """Return the codec of the messages of ``slot``, which does encode."""

    @staticmethod
    def statistics_of(rows: Tensor) -> Tensor:
        """Return the fields of :class:`SlotStatistics` for rows of shape ``[R, F]``, shape ``[2]``, float64.

        Rows that are not finite are left out of the squared ranges: they decode to NaN in whatever width.

        Example:
            >>> ChoosingCodec.statistics_of(torch.tensor([[0.0, 1.0, 3.0], [2.0, 2.0, 2.0]])).tolist()
            [6.0, 27.0]
        """
        num_rows, num_features = rows.shape
        squared_range = torch.zeros((), dtype=torch.float64, device=rows.device)
        if num_rows and num_features:
            lo, hi = rows.detach().aminmax(dim=1)
            squares = (hi.double() - lo.double()).square_()
            squared_range = num_features * squares.where(squares.isfinite(), 0.0).sum()
        return torch.stack((squared_range.new_tensor(float(rows.numel())), squared_range))

    def observe(self, statistics: Mapping[Slot, SlotStatistics]) -> None:
        """Choose anew from what was sent lately. Nothing is chosen here unless a subclass does."""

    def state_dict(self) -> dict[str, Any]:
        """Return the choices in force as plain data, for checkpoints."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the choices that :meth:`state_dict` returned."""

    def row_nbytes(self, num_features: int, dtype: torch.dtype) -> int | None:
        """Raise ``TypeError``, as the other two do: the codec of a slot knows."""
        raise self._asked_without_slot()

    def encode(self, rows: Tensor, key: RoundingKey) -> Tensor:
        """Raise ``TypeError``."""
        raise self._asked_without_slot()

    def decode(self, payload: Tensor, num_features: int, dtype: torch.dtype) -> Tensor:
        """Raise ``TypeError``."""
        raise self._asked_without_slot()

    def _asked_without_slot(self) -> TypeError:
        return TypeError(
            f"Expected a codec that encodes, got {type(self).__name__}, which chooses one for each message: use for_slot(slot)."
        )


CODECS: dict[str, Callable[[], Codec]] = {}
"""What makes a codec, by the codec's name; a codec enters itself at import."""


def resolve_codec(codec: str | Codec | Mapping[str, str | Codec]) -> Codec:
    """Return a codec from its name, from names by role, or pass an instance through.

    Args:
        codec: A name, an instance, or ``{"feature": ..., "gradient": ...}`` with either for each, which gives a
            :class:`~lightning_gnncomm.codecs.PerRoleCodec`.

    Raises:
        ValueError: If no codec has that name (the message lists those that exist), or a mapping has other keys.

    Example:
        >>> import lightning_gnncomm.codecs
        >>> resolve_codec("one_bit").row_nbytes(256, torch.float32)
        36
        >>> resolve_codec({"feature": "one_bit", "gradient": "4bit"})
        PerRoleCodec(feature=OneBitCodec(), gradient=KBitCodec(bits=4))
    """
    if isinstance(codec, Codec):
        return codec
    if isinstance(codec, Mapping):
        from lightning_gnncomm.codecs.per_role import PerRoleCodec  # which builds on this module

        if set(codec) != {"feature", "gradient"}:
            raise ValueError(f"Expected codecs for 'feature' and 'gradient' and nothing else, got {sorted(codec)}.")
        return PerRoleCodec(codec["feature"], codec["gradient"])
    if codec not in CODECS:
        raise ValueError(f"Expected a codec instance or one of {sorted(CODECS)}, got {codec!r}.")
    return CODECS[codec]()

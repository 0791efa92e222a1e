"""What a codec is, and the names under which codecs are found."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_gnncomm.slots import Slot

__all__ = ["CODECS", "Codec", "RoundingKey", "resolve_codec"]


class RoundingKey(NamedTuple):
    """Counters that the randomness of one message is computed from; nothing else enters it.

    Args:
        stream: One 63-bit number per message, mixed from seed, step and slot.
        row: One key per row, shape ``[R]``, int64.
    """

    stream: int
    row: Tensor


class Codec(ABC):
    """Turns rows into bytes and back. Codecs see matrices only and keep no state between messages.

    A fixed-width codec gives every row the same number of bytes, known to both ends, so no size has to travel.
    """

    is_delta = False
    """Whether rows are coded as differences to the rows the receivers hold; the channel keeps these."""

    def for_slot(self, slot: Slot) -> Codec:
        """Return the codec of a slot's rows: this one, unless it chooses by slot."""
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


CODECS: dict[str, type[Codec]] = {}
"""Codecs by name; a codec enters itself at import."""


def resolve_codec(codec: str | Codec) -> Codec:
    """Return a codec from its name or pass an instance through.

    Raises:
        ValueError: If no codec has that name; the message lists those that exist.

    Example:
        >>> import lightning_gnncomm.codecs
        >>> resolve_codec("one_bit").row_nbytes(256, torch.float32)
        36
    """
    if isinstance(codec, Codec):
        return codec
    if codec not in CODECS:
        raise ValueError(f"Expected a codec instance or one of {sorted(CODECS)}, got {codec!r}.")
    return CODECS[codec]()

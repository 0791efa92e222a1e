"""Bits where they matter: a width for each message, chosen from the ranges of the rows that were sent (after AdaQP)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from lightning_gnncomm.codecs.base import CODECS, ChoosingCodec, Codec, SlotStatistics
from lightning_gnncomm.codecs.k_bit import KBitCodec
from lightning_gnncomm.codecs.one_bit import OneBitCodec
from lightning_gnncomm.slots import Role, Slot

__all__ = ["AdaptiveWidthCodec", "choose_widths", "rounding_variance"]

_ROLES = (Role.FEATURE, Role.GRADIENT)


class AdaptiveWidthCodec(ChoosingCodec):
    """Gives each slot one, two, four or eight bits a value, so that the variance of rounding is least for the bytes (after AdaQP).

    Until the first observation all slots have the largest width within the budget, and so have slots that no observation named.
    Every :attr:`every` steps :meth:`observe` then solves for the widths. Feature and gradient rows keep the budget each by itself
    and hence together: their errors have no common unit, and the one with the smaller numbers would get nothing.

    Args:
        bits_per_value: Budget: bits a value on average over all values sent in a role. The 4 bytes of each row's ends, which are the
            same in any width, come on top.
        widths: Widths to choose from, out of 1, 2, 4 and 8.
        every: Steps from one observation to the next.

    Raises:
        ValueError: If a width is another number, the budget lies below the smallest width, or ``every`` is not positive.

    Example:
        >>> codec = AdaptiveWidthCodec(bits_per_value=2.5, widths=(1, 4))
        >>> wide, narrow = Slot("convs.0", "x"), Slot("convs.1", "x")
        >>> codec.for_slot(wide)
        OneBitCodec()
        >>> codec.observe({wide: SlotStatistics(100, 900.0), narrow: SlotStatistics(100, 1.0)})
        >>> codec.for_slot(wide), codec.for_slot(narrow)
        (KBitCodec(bits=4), OneBitCodec())
    """

    def __init__(self, bits_per_value: float = 2.0, widths: Iterable[int] = (1, 2, 4, 8), every: int = 50) -> None:
        self.bits_per_value = bits_per_value
        self.widths = tuple(sorted(set(widths)))
        self.every: int = every
        self._codecs = {width: _codec_of_width(width) for width in self.widths}
        if not self.widths or not self.widths[0] <= bits_per_value:
            raise ValueError(
                f"Expected bits_per_value to be at least the smallest of the widths {self.widths}, got {bits_per_value!r}."
            )
        if every < 1:
            raise ValueError(f"Expected every to be a positive number of steps, got {every!r}.")
        self._chosen: dict[Slot, int] = {}

    def for_slot(self, slot: Slot) -> Codec:
        """Return the codec of the width that is in force for ``slot``."""
        return self._codecs[self._chosen.get(slot, self._default_width)]

    def observe(self, statistics: Mapping[Slot, SlotStatistics]) -> None:
        """Choose the widths anew from the numbers of each slot, which must be the same on all ranks.

        Slots that sent no values, or are not named, keep what they have.
        """
        for role in _ROLES:
            of_role = {slot: numbers for slot, numbers in statistics.items() if slot.role is role}
            self._chosen |= choose_widths(of_role, self.bits_per_value, self.widths)

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"widths": [(the slot as plain data, bits), ...]}``."""
        return {"widths": [(slot.as_plain(), width) for slot, width in self._chosen.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the widths that :meth:`state_dict` returned.

        Raises:
            ValueError: If one of them is not among the widths to choose from.
        """
        chosen = {}
        for plain, width in state.get("widths", []):
            slot = Slot.from_plain(plain)
            if width not in self._codecs:
                raise ValueError(
                    f"Expected the widths of the checkpoint to be among {self.widths}, got {width} for {slot}. "
                    "Continue with the widths it was written with."
                )
            chosen[slot] = width
        self._chosen = chosen

    @property
    def _default_width(self) -> int:
        return max(width for width in self.widths if width <= self.bits_per_value)

    def __repr__(self) -> str:
        return f"AdaptiveWidthCodec(bits_per_value={self.bits_per_value}, widths={self.widths}, every={self.every})"


def rounding_variance(statistics: SlotStatistics, width: int) -> float:
    """Return the summed variance of rounding a slot's values to ``width`` bits.

    A step is the range over ``2 ** width - 1``, and a value anywhere in a step has on average a sixth of its square.

    Example:
        >>> rounding_variance(SlotStatistics(num_values=4, squared_range=54.0), 2)
        1.0
    """
    return statistics.squared_range / (6 * ((1 << width) - 1) ** 2)


def choose_widths(
    statistics: Mapping[Slot, SlotStatistics], bits_per_value: float, widths: Sequence[int]
) -> dict[Slot, int]:
    """Return a width for each slot with values, such that the sum of :func:`rounding_variance` is least within a budget.

    Args:
        statistics: What is known of each slot.
        bits_per_value: Bits a value on average over all values of these slots (kept to a millionth).
        widths: Widths to choose from, in bits.

    Returns:
        The widths, the same on all ranks that ask with the same numbers, in whatever order.

    Raises:
        ValueError: If the budget lies below the smallest width.

    Example:
        >>> a, b = Slot("convs.0", "x"), Slot("convs.1", "x")
        >>> choose_widths({a: SlotStatistics(100, 1.0), b: SlotStatistics(100, 100.0)}, 5.0, (1, 2, 4, 8))[b]
        8
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    slots = sorted((slot for slot, numbers in statistics.items() if numbers.num_values > 0), key=lambda slot: slot.key)
    if not slots:
        return {}
    # One variable for each slot and width, which is 1 where the slot has the width.
    share = np.array([statistics[slot].num_values for slot in slots])
    share = share / share.sum()
    variance = np.array([[rounding_variance(statistics[slot], width) for width in widths] for slot in slots])
    one_width_each = np.kron(np.eye(len(slots)), np.ones(len(widths)))
    bits = np.outer(share, widths).ravel()
    # Scaled, since the solver's tolerances are absolute.
    result = milp(
        variance.ravel() * (1e6 / (variance.max() or 1.0)),
        integrality=np.ones(bits.size),
        bounds=Bounds(0, 1),
        constraints=[LinearConstraint(one_width_each, 1, 1), LinearConstraint(bits, -np.inf, bits_per_value)],
        options={"mip_rel_gap": 1e-9},
    )
    if result.x is None:
        raise ValueError(
            f"Expected a budget that the widths {tuple(widths)} can keep, got {bits_per_value} bits a value."
        )
    best = result.x.reshape(len(slots), len(widths)).argmax(axis=1)
    return {slot: widths[index] for slot, index in zip(slots, best, strict=True)}


def _codec_of_width(width: int) -> Codec:
    return OneBitCodec() if width == 1 else KBitCodec(width)


CODECS["adaptive"] = AdaptiveWidthCodec

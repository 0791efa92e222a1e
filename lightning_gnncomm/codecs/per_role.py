"""One codec for rows that travel forward and another for their gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_gnncomm.codecs.base import ChoosingCodec, Codec, SlotStatistics, resolve_codec
from lightning_gnncomm.codecs.identity import IdentityCodec
from lightning_gnncomm.slots import Role, Slot

__all__ = ["PerRoleCodec"]


class PerRoleCodec(ChoosingCodec):
    """Encodes feature rows with one codec and gradient rows with another.

    Either may choose in turn, as an :class:`~lightning_gnncomm.codecs.AdaptiveWidthCodec` does; it then sees the slots of its own
    role, as often as the more frequent of the two asks for. Rows in an exact role get the identity.

    Args:
        feature: Codec of feature rows, a name or an instance.
        gradient: Codec of gradient rows, a name or an instance.

    Raises:
        ValueError: If no codec has that name.

    Example:
        >>> codec = PerRoleCodec("one_bit", "4bit")
        >>> codec.for_slot(Slot("conv", "x", role=Role.GRADIENT))
        KBitCodec(bits=4)
    """

    def __init__(self, feature: str | Codec, gradient: str | Codec) -> None:
        self.feature = resolve_codec(feature)
        self.gradient = resolve_codec(gradient)
        self._by_role = {Role.FEATURE: self.feature, Role.GRADIENT: self.gradient}
        self._choosing = {role: codec for role, codec in self._by_role.items() if isinstance(codec, ChoosingCodec)}
        self.every = min((codec.every for codec in self._choosing.values() if codec.every is not None), default=None)

    def for_slot(self, slot: Slot) -> Codec:
        """Return what the codec of the slot's role returns for it."""
        codec = self._by_role.get(slot.role)
        return IdentityCodec() if codec is None else codec.for_slot(slot)

    def observe(self, statistics: Mapping[Slot, SlotStatistics]) -> None:
        """Hand on to each of the two codecs what was sent in its role."""
        for role, codec in self._choosing.items():
            codec.observe({slot: numbers for slot, numbers in statistics.items() if slot.role is role})

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each codec that chooses, under the name of its role."""
        return {role.value: codec.state_dict() for role, codec in self._choosing.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the states of the codecs that choose."""
        for role, codec in self._choosing.items():
            codec.load_state_dict(state.get(role.value, {}))

    def __repr__(self) -> str:
        return f"PerRoleCodec(feature={self.feature!r}, gradient={self.gradient!r})"

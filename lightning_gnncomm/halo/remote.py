"""Halo rows fetched from the ranks that own them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lightning_gnncomm.comm.channel import Channel
from lightning_gnncomm.graph.plan import HaloPlan
from lightning_gnncomm.halo.exchange import Message, exchange_rows
from lightning_gnncomm.halo.source import HaloSource
from lightning_gnncomm.slots import Slot

__all__ = ["RemoteSource"]


class RemoteSource(HaloSource):
    """Fetches halo rows over a :class:`~lightning_gnncomm.comm.channel.Channel`, one collective a call and direction."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    @property
    def overlaps(self) -> bool:
        """See :attr:`HaloSource.overlaps`; a subclass that has rows of its own must be asked for them."""
        return type(self).rows is RemoteSource.rows

    def rows(
        self, blocks: Sequence[Tensor], plan: HaloPlan, slots: Sequence[Slot], step: int, exact: bool
    ) -> list[Tensor]:
        """See :meth:`HaloSource.rows`."""
        return exchange_rows(blocks, Message(self.channel, plan, tuple(slots), step, exact))

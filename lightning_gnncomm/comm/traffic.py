"""Counting what is handed to the wire, by slot and direction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from typing_extensions import Self

from lightning_gnncomm.slots import Slot

__all__ = ["Traffic", "TrafficRecord"]


@dataclass
class TrafficRecord:
    """What one slot has sent and received on this rank since the last reset.

    Args:
        exchanges: Number of messages.
        rows: Rows sent.
        sent_bytes: Bytes handed to torch.distributed for other ranks.
        received_bytes: Bytes received from other ranks.
        dense_bytes: Bytes the sent rows would have had without a codec.
        wait_seconds: Time this rank stood still for messages of this slot: the exposed part of their transfers.
        hidden_seconds: Time their transfers took while this rank computed.
    """

    exchanges: int = 0
    rows: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    dense_bytes: int = 0
    wait_seconds: float = 0.0
    hidden_seconds: float = 0.0

    def __iadd__(self, other: TrafficRecord) -> Self:
        for name in vars(other):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self


@dataclass
class Traffic:
    """Traffic of this rank, by :class:`~lightning_gnncomm.slots.Slot` (whose role tells the direction).

    Args:
        records: What was counted.
        listener: Called with the slot and the record of each message when it has been sent, and again, with the seconds only, when
            the rows due in its place have been waited for.

    Example:
        >>> traffic = Traffic()
        >>> traffic.add(Slot("conv", "x"), TrafficRecord(exchanges=1, rows=4, sent_bytes=32, dense_bytes=128))
        >>> traffic.total().sent_bytes
        32
    """

    records: dict[Slot, TrafficRecord] = field(default_factory=dict)
    listener: Callable[[Slot, TrafficRecord], None] | None = None

    def add(self, slot: Slot, record: TrafficRecord) -> None:
        """Add one message to the record of its slot."""
        self.records.setdefault(slot, TrafficRecord()).__iadd__(record)
        if self.listener is not None:
            self.listener(slot, record)

    def total(self) -> TrafficRecord:
        """Return the sum over all slots."""
        total = TrafficRecord()
        for record in self.records.values():
            total += record
        return total

    def reset(self) -> None:
        """Forget everything counted so far."""
        self.records.clear()

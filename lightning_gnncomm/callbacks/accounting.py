"""Bookkeeping of traffic over time and over ranks, without touching the counters themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from statistics import median

import torch
from torch import Tensor

from lightning_gnncomm.comm.traffic import TrafficRecord
from lightning_gnncomm.slots import Role, Slot

__all__ = ["CommunicationSummary", "EpochTraffic", "TrafficMeter", "compression", "from_matrix", "to_matrix"]

_FIELDS = tuple(f.name for f in fields(TrafficRecord))
# Ranks wait at the same time and exchange the same messages, so these do not add up over ranks.
_LARGEST = torch.tensor([name in ("exchanges", "wait_seconds") for name in _FIELDS])


def compression(record: TrafficRecord) -> float:
    """Return how many times smaller the sent bytes are than the rows without a codec (1 if nothing was sent).

    Example:
        >>> compression(TrafficRecord(sent_bytes=36, dense_bytes=1024))
        28.444444444444443
    """
    return record.dense_bytes / record.sent_bytes if record.sent_bytes else 1.0


def to_matrix(records: Sequence[TrafficRecord]) -> Tensor:
    """Return records as numbers, shape ``[len(records), 6]``, float64, which holds bytes up to 2^53 exactly."""
    rows = [[float(getattr(record, name)) for name in _FIELDS] for record in records]
    return torch.tensor(rows, dtype=torch.float64).reshape(len(rows), len(_FIELDS))


def from_matrix(summed: Tensor, largest: Tensor) -> list[TrafficRecord]:
    """Return the records of all ranks together from the sum and the maximum of their matrices, both ``[records, 6]``.

    Rows and bytes are summed over ranks; exchanges and waiting time are those of the rank with most.
    """
    together = torch.where(_LARGEST.to(summed.device), largest, summed)
    records = []
    for row in together.tolist():
        values = {name: int(value) for name, value in zip(_FIELDS, row, strict=True)}
        records.append(TrafficRecord(**{**values, "wait_seconds": row[_FIELDS.index("wait_seconds")]}))
    return records


class TrafficMeter:
    """Reads what a counter gained since it was last read.

    Example:
        >>> slot, meter = Slot("conv", "x"), TrafficMeter()
        >>> counter = {slot: TrafficRecord(exchanges=3)}
        >>> meter.read(counter)[slot].exchanges
        3
        >>> meter.read(counter)
        {}
    """

    def __init__(self) -> None:
        self._before: dict[Slot, TrafficRecord] = {}

    def read(self, records: Mapping[Slot, TrafficRecord]) -> dict[Slot, TrafficRecord]:
        """Return the gain of every slot that changed."""
        gained = {}
        for slot, now in records.items():
            before = self._before.get(slot, TrafficRecord())
            if now != before:
                gained[slot] = TrafficRecord(**{name: getattr(now, name) - getattr(before, name) for name in _FIELDS})
        self._before = {slot: replace(record) for slot, record in records.items()}
        return gained


@dataclass
class EpochTraffic:
    """What all ranks together sent in the training part of one epoch.

    Args:
        epoch: Number of the epoch.
        roles: Halo rows, by role.
        parameters: Gradients of parameters.
    """

    epoch: int
    roles: dict[Role, TrafficRecord]
    parameters: TrafficRecord

    @property
    def halo(self) -> TrafficRecord:
        """Halo rows in all roles."""
        return _sum(self.roles.values())


@dataclass
class CommunicationSummary:
    """What all ranks together sent during a fit.

    Args:
        epochs: One entry per training epoch.
        slots: Halo rows of all training epochs, by slot; filled at the end of training.
        evaluation: Halo rows of validation, which are always exact; filled at the end of training.
    """

    epochs: list[EpochTraffic] = field(default_factory=list)
    slots: dict[Slot, TrafficRecord] = field(default_factory=dict)
    evaluation: TrafficRecord = field(default_factory=TrafficRecord)

    @property
    def halo(self) -> TrafficRecord:
        """Halo rows of all training epochs."""
        return _sum(epoch.halo for epoch in self.epochs)

    @property
    def parameters(self) -> TrafficRecord:
        """Gradients of parameters of all training epochs."""
        return _sum(epoch.parameters for epoch in self.epochs)

    @property
    def bytes_per_epoch(self) -> float:
        """Bytes of halo rows in a typical epoch: the median, so what travels once per run does not blur it."""
        return float(median(epoch.halo.sent_bytes for epoch in self.epochs)) if self.epochs else 0.0

    @property
    def compression(self) -> float:
        """Bytes the rows of a whole fit would have had, over bytes sent."""
        return compression(self.halo)


def _sum(records: Iterable[TrafficRecord]) -> TrafficRecord:
    total = TrafficRecord()
    for record in records:
        total += record
    return total

"""Bookkeeping of traffic and staleness over time and over ranks, without touching the counters themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from statistics import median
from typing import Any, Generic, TypeVar

import lightning as L
import torch
from torch import Tensor

from lightning_gnncomm.comm.probe import StalenessRecord
from lightning_gnncomm.comm.schedule import Decision
from lightning_gnncomm.comm.traffic import TrafficRecord
from lightning_gnncomm.slots import Role, Slot

__all__ = [
    "PARAMETERS",
    "CommunicationSummary",
    "EpochTraffic",
    "Meter",
    "StalenessReading",
    "StalenessSummary",
    "add_gains",
    "close_probes",
    "compression",
    "counted_traffic",
    "from_matrix",
    "gather",
    "sum_records",
    "to_matrix",
]

PARAMETERS = Slot("parameters", "gradient", role=Role.GRADIENT)
"""Parameter gradients are counted in one record; to a meter they are one more slot."""

R = TypeVar("R", TrafficRecord, StalenessRecord)

# Ranks wait at the same time and exchange the same messages, so these do not add up over ranks.
_LARGEST = ("exchanges", "wait_seconds", "hidden_seconds", "oldest")
# A maximum over all steps so far, of which nothing can be taken away.
_RUNNING = ("oldest",)
# Steps whose errors are averaged before they are read, where the schedule does not ask for them itself.
_PROBED_STEPS = 10


def compression(record: TrafficRecord) -> float:
    """Return how many times smaller the sent bytes are than the rows without a codec (1 if nothing was sent).

    Example:
        >>> compression(TrafficRecord(sent_bytes=36, dense_bytes=1024))
        28.444444444444443
    """
    return record.dense_bytes / record.sent_bytes if record.sent_bytes else 1.0


def to_matrix(records: Sequence[R], kind: type[R]) -> Tensor:
    """Return records as numbers, shape ``[len(records), F]``, float64, which holds bytes up to 2^53 exactly.

    Args:
        records: The records.
        kind: Their class, whose fields are the columns.
    """
    rows = [[float(value) for value in vars(record).values()] for record in records]
    return torch.tensor(rows, dtype=torch.float64).reshape(len(rows), len(fields(kind)))


def from_matrix(ranks: Tensor, kind: type[R]) -> list[R]:
    """Return the records of all ranks together from the matrices of each, shape ``[P, records, F]``.

    They are summed over ranks; exchanges, waiting time and ages are those of the rank with most.

    Example:
        >>> ranks = [TrafficRecord(sent_bytes=8, wait_seconds=0.5), TrafficRecord(sent_bytes=4, wait_seconds=1.5)]
        >>> (both,) = from_matrix(torch.stack([to_matrix([rank], TrafficRecord) for rank in ranks]), TrafficRecord)
        >>> both.sent_bytes, both.wait_seconds
        (12, 1.5)
    """
    names = [f.name for f in fields(kind)]
    is_largest = torch.tensor([name in _LARGEST for name in names], device=ranks.device)
    together = torch.where(is_largest, ranks.amax(0), ranks.sum(0))
    whole = [isinstance(value, int) for value in vars(kind()).values()]
    records = []
    for row in together.tolist():
        values = [int(value) if is_whole else value for value, is_whole in zip(row, whole, strict=True)]
        records.append(kind(**dict(zip(names, values, strict=True))))
    return records


def gather(trainer: L.Trainer, numbers: Tensor) -> Tensor:
    """Return the numbers of all ranks, shape ``[P, *numbers.shape]``, on every rank; each calls with the same shape."""
    gathered = trainer.strategy.all_gather(numbers.to(trainer.strategy.root_device))
    return gathered.reshape(trainer.world_size, *numbers.shape).cpu()


class Meter(Generic[R]):
    """Reads what a counter gained since it was last read.

    Example:
        >>> slot, meter = Slot("conv", "x"), Meter()
        >>> counter = {slot: TrafficRecord(exchanges=3)}
        >>> meter.read(counter)[slot].exchanges
        3
        >>> meter.read(counter)
        {}
    """

    def __init__(self) -> None:
        self._before: dict[Slot, R] = {}

    def read(self, records: Mapping[Slot, R]) -> dict[Slot, R]:
        """Return the gain of every slot that changed; the largest age is that so far."""
        gained = {}
        for slot, now in records.items():
            before = self._before.get(slot, type(now)())
            if now != before:
                gained[slot] = replace(
                    now,
                    **{
                        name: value - getattr(before, name) for name, value in vars(now).items() if name not in _RUNNING
                    },
                )
        self._before = {slot: replace(record) for slot, record in records.items()}
        return gained


def add_gains(target: dict[Slot, R], gained: Mapping[Slot, R]) -> None:
    """Add what slots gained to what they had."""
    for slot, record in gained.items():
        target.setdefault(slot, type(record)()).__iadd__(record)


def sum_records(records: Iterable[R], kind: type[R]) -> R:
    """Return the sum of records, an empty one if there are none."""
    total = kind()
    for record in records:
        total += record
    return total


def counted_traffic(trainer: L.Trainer) -> dict[Slot, TrafficRecord] | None:
    """Return what this rank has sent so far, parameter gradients among it, or ``None`` under another strategy."""
    strategy: Any = trainer.strategy
    traffic = getattr(strategy, "traffic", None)
    return None if traffic is None else {**traffic.records, PARAMETERS: strategy.gradient_traffic}


def close_probes(trainer: L.Trainer, now: bool = False) -> None:
    """At every tenth training step, add the probed errors to the channel's records; called after each step.

    A schedule that watches errors does so itself, over a window of its own, in which nobody else may read. Callbacks that watch
    at the same time close at the same step, the second time nothing.

    Args:
        trainer: The trainer.
        now: Close at this step, whichever it is.
    """
    channel = getattr(trainer.strategy, "channel", None)
    if channel is None or channel.schedule.window is not None:
        return
    if now or (trainer.fit_loop.total_batch_idx + 1) % _PROBED_STEPS == 0:
        channel.close_window()


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
        return sum_records(self.roles.values(), TrafficRecord)


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
        return sum_records((epoch.halo for epoch in self.epochs), TrafficRecord)

    @property
    def parameters(self) -> TrafficRecord:
        """Gradients of parameters of all training epochs."""
        return sum_records((epoch.parameters for epoch in self.epochs), TrafficRecord)

    @property
    def bytes_per_epoch(self) -> float:
        """Bytes of halo rows in a typical epoch: the median, so what travels once per run does not blur it."""
        return float(median(epoch.halo.sent_bytes for epoch in self.epochs)) if self.epochs else 0.0

    @property
    def compression(self) -> float:
        """Bytes the rows of a whole fit would have had, over bytes sent."""
        return compression(self.halo)


@dataclass
class StalenessReading:
    """Ages and errors of the messages of all ranks since the reading before.

    Args:
        epoch: Number of the epoch.
        step: Training steps run, those before a resume included.
        slots: What became of the messages, by slot; the largest age is that so far.
        decisions: Step and content of what the schedule changed.
    """

    epoch: int
    step: int
    slots: dict[Slot, StalenessRecord]
    decisions: list[tuple[int, Decision]] = field(default_factory=list)

    @property
    def total(self) -> StalenessRecord:
        """All slots together."""
        return sum_records(self.slots.values(), StalenessRecord)


@dataclass
class StalenessSummary:
    """Ages and errors of the messages of all ranks during a fit.

    Args:
        readings: One entry per epoch, or for every ``every_n_steps`` steps.
        synchronous: Slots that the schedule's guard made wait for good.
    """

    readings: list[StalenessReading] = field(default_factory=list)
    synchronous: set[Slot] = field(default_factory=set)

    @property
    def slots(self) -> dict[Slot, StalenessRecord]:
        """All readings together, by slot."""
        slots: dict[Slot, StalenessRecord] = {}
        for reading in self.readings:
            add_gains(slots, reading.slots)
        return slots

    @property
    def total(self) -> StalenessRecord:
        """All readings and slots together."""
        return sum_records(self.slots.values(), StalenessRecord)

    @property
    def decisions(self) -> list[tuple[int, Decision]]:
        """Step and content of everything that the schedule changed."""
        return [entry for reading in self.readings for entry in reading.decisions]

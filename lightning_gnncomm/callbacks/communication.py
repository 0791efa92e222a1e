"""A callback that shows what training sends."""

from __future__ import annotations

import lightning as L
from lightning_utilities.core.rank_zero import rank_zero_info

from lightning_gnncomm.callbacks.accounting import (
    PARAMETERS,
    CommunicationSummary,
    EpochTraffic,
    Meter,
    add_gains,
    compression,
    counted_traffic,
    from_matrix,
    gather,
    sum_records,
    to_matrix,
)
from lightning_gnncomm.callbacks.table import build_table, print_table
from lightning_gnncomm.comm.traffic import TrafficRecord
from lightning_gnncomm.slots import Role, Slot

__all__ = ["CommunicationMonitor"]


class CommunicationMonitor(L.Callback):
    """Logs what all ranks send in each training epoch, and prints a table at the end of ``fit``.

    It logs, with every logger of the trainer: ``comm/bytes`` of halo rows sent by all ranks, ``comm/compression``
    (bytes the rows would have without a codec, over bytes sent), ``comm/wait_seconds`` of the rank that waited
    longest (the exposed part of transfers), ``comm/hidden_seconds`` of transfers under which ranks computed, likewise,
    ``comm/feature_bytes``, ``comm/gradient_bytes``, ``comm/constant_bytes`` and ``comm/norm_bytes`` by role,
    and ``comm/parameter_bytes`` of parameter gradients. Validation is not in these numbers; the table gives it a row.

    Under a strategy that exchanges no halos it says so once and does nothing.

    Args:
        per_slot: Also log ``comm/SLOT/ROLE_bytes`` for every message.
        table: Print the table.

    Example:
        >>> monitor = CommunicationMonitor()
        >>> trainer = L.Trainer(callbacks=[monitor], logger=False, enable_checkpointing=False, accelerator="cpu")
        >>> monitor.summary.bytes_per_epoch
        0.0

    After ``fit`` the numbers are in :attr:`summary`, the same on every rank. Where Lightning trains in forked or spawned
    processes (``strategy="halo_spawn"``), the summary stays in those; the logs and the table do not.
    """

    def __init__(self, per_slot: bool = False, table: bool = True) -> None:
        self.per_slot = per_slot
        self.table = table
        self.summary = CommunicationSummary()
        self._meter = Meter[TrafficRecord]()
        self._epoch: dict[Slot, TrafficRecord] = {}
        self._training: dict[Slot, TrafficRecord] = {}
        self._evaluation: dict[Slot, TrafficRecord] = {}
        self._said = False

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start counting; what was counted before belongs to someone else."""
        if not self._is_active(trainer) and not self._said:
            self._said = True
            rank_zero_info(
                f"CommunicationMonitor has nothing to show: {type(trainer.strategy).__name__} exchanges no halos. "
                'Use Trainer(strategy="halo") or "sylvie_sync".'
            )
        self.summary = CommunicationSummary()
        self._epoch, self._training, self._evaluation = {}, {}, {}
        self._read_into(trainer, {})

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Close what training sent before a validation that lies inside an epoch; the strategy has just waited for the last of it."""
        self._read_into(trainer, self._epoch)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Keep what validation sent apart."""
        self._read_into(trainer, self._evaluation)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log the epoch."""
        if not self._is_active(trainer):
            return
        self._read_into(trainer, self._epoch)
        epoch = self._reduce_epoch(trainer)
        self.summary.epochs.append(epoch)
        values = _values(epoch)
        if self.per_slot:
            slots = self._reduce_slots(trainer, self._epoch)
            values |= {f"comm/{slot}/{slot.role.value}_bytes": float(r.sent_bytes) for slot, r in slots.items()}
        for logger in trainer.loggers:
            logger.log_metrics(values, step=trainer.fit_loop.epoch_loop._batches_that_stepped)
        add_gains(self._training, self._epoch)
        self._epoch = {}

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Sum over ranks while they can still talk."""
        if not self._is_active(trainer):
            return
        self.summary.slots = self._reduce_slots(trainer, self._training)
        self.summary.evaluation = self._gather(trainer, [_total(self._evaluation)])[0]

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Print the table, after progress bars are gone."""
        if self.table and self.summary.slots and trainer.is_global_zero:
            print_table(build_table(self.summary, trainer.world_size))

    def _is_active(self, trainer: L.Trainer) -> bool:
        return counted_traffic(trainer) is not None

    def _read_into(self, trainer: L.Trainer, target: dict[Slot, TrafficRecord]) -> None:
        counted = counted_traffic(trainer)
        if counted is not None:
            add_gains(target, self._meter.read(counted))

    def _gather(self, trainer: L.Trainer, records: list[TrafficRecord]) -> list[TrafficRecord]:
        """Return the records of all ranks together; every rank calls this with as many records."""
        return from_matrix(gather(trainer, to_matrix(records, TrafficRecord)), TrafficRecord)

    def _reduce_epoch(self, trainer: L.Trainer) -> EpochTraffic:
        local = [_total({s: r for s, r in self._epoch.items() if s.role is role}) for role in Role]
        together = self._gather(trainer, [*local, self._epoch.get(PARAMETERS, TrafficRecord())])
        return EpochTraffic(trainer.current_epoch, dict(zip(Role, together, strict=False)), together[-1])

    def _reduce_slots(self, trainer: L.Trainer, records: dict[Slot, TrafficRecord]) -> dict[Slot, TrafficRecord]:
        # All ranks exchange the same slots; the list of rank 0 makes sure that they also add them up in the same order.
        slots = trainer.strategy.broadcast([slot for slot in records if slot != PARAMETERS])
        together = self._gather(trainer, [records.get(slot, TrafficRecord()) for slot in slots])
        return dict(zip(slots, together, strict=True))


def _values(epoch: EpochTraffic) -> dict[str, float]:
    """Return what is logged for an epoch."""
    values = {
        "comm/bytes": float(epoch.halo.sent_bytes),
        "comm/compression": compression(epoch.halo),
        "comm/wait_seconds": epoch.halo.wait_seconds,
        "comm/hidden_seconds": epoch.halo.hidden_seconds,
        "comm/parameter_bytes": float(epoch.parameters.sent_bytes),
    }
    return values | {f"comm/{role.value}_bytes": float(record.sent_bytes) for role, record in epoch.roles.items()}


def _total(records: dict[Slot, TrafficRecord]) -> TrafficRecord:
    return sum_records((record for slot, record in records.items() if slot != PARAMETERS), TrafficRecord)

"""A callback that shows how late the rows in use are, and how wrong."""

from __future__ import annotations

from typing import Any

import lightning as L
from lightning_utilities.core.rank_zero import rank_zero_info

from lightning_gnncomm.callbacks.accounting import (
    Meter,
    StalenessReading,
    StalenessSummary,
    close_probes,
    from_matrix,
    gather,
    to_matrix,
)
from lightning_gnncomm.callbacks.table import LiveTable, build_staleness_table, print_table
from lightning_gnncomm.comm.probe import StalenessRecord
from lightning_gnncomm.slots import Slot

__all__ = ["StalenessMonitor", "StalenessReader"]


class StalenessReader:
    """Reads ages, errors and decisions since the reading before, summed over ranks."""

    def __init__(self) -> None:
        self._meter = Meter[StalenessRecord]()
        self._num_decisions = 0

    def start(self, trainer: L.Trainer) -> bool:
        """Forget what was before, and say whether the strategy has rows that can be late."""
        self._num_decisions = len(getattr(trainer.strategy, "decisions", ()))
        self._meter = Meter()
        return getattr(trainer.strategy, "channel", None) is not None

    def read(self, trainer: L.Trainer) -> StalenessReading:
        """Return what all ranks saw: one small all-gather, so every rank must call."""
        strategy: Any = trainer.strategy
        gained = self._meter.read(strategy.channel.staleness)
        # All ranks exchange the same messages, at the same steps.
        slots = sorted(gained, key=Slot.as_plain)
        together = from_matrix(
            gather(trainer, to_matrix([gained[slot] for slot in slots], StalenessRecord)), StalenessRecord
        )
        decisions = strategy.decisions[self._num_decisions :]
        self._num_decisions = len(strategy.decisions)
        step = trainer.fit_loop.total_batch_idx + 1
        return StalenessReading(trainer.current_epoch, step, dict(zip(slots, together, strict=True)), decisions)


class StalenessMonitor(L.Callback):
    """Logs how old the rows in use are and how far from the true ones, and shows it in a table.

    It logs, with every logger of the trainer, for all messages of all ranks together:

    * ``staleness/age`` and ``staleness/max_age``: mean age of the rows used, and the largest so far, in steps;
    * ``staleness/refreshes``: how many uses waited for the rows of their own step;
    * ``staleness/error``: error of single steps relative to the rows (rounding, dropout and staleness together);
    * ``staleness/drift``: error that does not average out over a window of steps, likewise;
    * ``staleness/decisions``: what the schedule changed, as a number, and ``staleness/interval``: its steps from one
      synchronous step to the next, if it has them;

    and, for each message, ``staleness/SLOT/ROLE_age`` and so on. Errors are measured on a few rows over ten steps, or over the
    schedule's own ``window``, and logged when these are over.

    Under a strategy that exchanges no halos it says so once and does nothing.

    Args:
        every_n_steps: Log after so many training steps; after each training epoch if ``None``.
        per_slot: Also log every message.
        live: Show the table while training, if standard output is a terminal: in its place without a progress bar, else above the
            bar every ten seconds.
        table: Print the table at the end of ``fit``.

    Raises:
        ValueError: If ``every_n_steps`` is below 1.

    Example:
        >>> monitor = StalenessMonitor()
        >>> trainer = L.Trainer(callbacks=[monitor], logger=False, enable_checkpointing=False, accelerator="cpu")
        >>> monitor.summary.total.oldest
        0

    After ``fit`` the numbers are in :attr:`summary`, the same on every rank. Where Lightning trains in forked or spawned
    processes (``strategy="sylvie_async_spawn"``), the summary stays in those; the logs and the table do not.
    """

    def __init__(
        self, every_n_steps: int | None = None, per_slot: bool = True, live: bool = True, table: bool = True
    ) -> None:
        if every_n_steps is not None and every_n_steps < 1:
            raise ValueError(f"Expected every_n_steps to be at least 1 or None, got {every_n_steps}.")
        self.every_n_steps = every_n_steps
        self.per_slot = per_slot
        self.live = live
        self.table = table
        self.summary = StalenessSummary()
        self._reader = StalenessReader()
        self._is_active = False
        self._live_table: LiveTable | None = None
        self._said = False

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start reading; what was before belongs to someone else."""
        self.summary = StalenessSummary()
        self._is_active = self._reader.start(trainer)
        if self._is_active and self.live and trainer.is_global_zero:
            self._live_table = LiveTable()
        if not self._is_active and not self._said:
            self._said = True
            rank_zero_info(
                f"StalenessMonitor has nothing to show: {type(trainer.strategy).__name__} exchanges no halos between "
                f'{trainer.world_size} processes. Use Trainer(strategy="sylvie_async", devices=2) or more.'
            )

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        """Read the errors when their window ends, and log where steps are counted."""
        close_probes(trainer)
        if self.every_n_steps is not None and (trainer.fit_loop.total_batch_idx + 1) % self.every_n_steps == 0:
            self._read(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log where epochs are counted."""
        if self.every_n_steps is None:
            self._read(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log what is left while ranks can still talk."""
        close_probes(trainer, now=True)
        self._read(trainer)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Print the table, after progress bars are gone."""
        self._stop()
        if self.table and self.summary.readings and trainer.is_global_zero:
            print_table(build_staleness_table(self.summary, trainer.world_size))

    def on_exception(self, *_: Any) -> None:
        """Give the terminal back."""
        self._stop()

    def _stop(self) -> None:
        if self._live_table is not None:
            self._live_table.stop()
            self._live_table = None

    def _read(self, trainer: L.Trainer) -> None:
        if not self._is_active:
            return
        reading = self._reader.read(trainer)
        if not reading.slots and not reading.decisions:
            return
        schedule = trainer.strategy.channel.schedule  # type: ignore[attr-defined]
        self.summary.readings.append(reading)
        self.summary.synchronous = set(getattr(schedule, "synchronous", ()))
        values = _values(reading, self.per_slot)
        interval = getattr(schedule, "interval", None)
        if interval is not None:
            values["staleness/interval"] = float(interval)
        for logger in trainer.loggers:
            logger.log_metrics(values, step=trainer.fit_loop.epoch_loop._batches_that_stepped)
        if self._live_table is not None:
            self._live_table.show(
                build_staleness_table(self.summary, trainer.world_size), trainer.progress_bar_callback
            )


def _values(reading: StalenessReading, per_slot: bool) -> dict[str, float]:
    """Return what is logged for a reading; errors that were not measured are left out."""
    values = _numbers(reading.total, "staleness/")
    values["staleness/decisions"] = float(len(reading.decisions))
    if per_slot:
        for slot, record in reading.slots.items():
            values |= _numbers(record, f"staleness/{slot}/{slot.role.value}_")
    return values


def _numbers(record: StalenessRecord, prefix: str) -> dict[str, float]:
    numbers: dict[str, float] = {}
    if record.uses:
        numbers |= {
            "age": record.age / record.uses,
            "max_age": float(record.oldest),
            "refreshes": float(record.refreshes),
        }
    if record.norm:
        numbers["error"] = record.relative_error
    if record.drift_norm:
        numbers["drift"] = record.relative_drift
    return {prefix + name: number for name, number in numbers.items()}

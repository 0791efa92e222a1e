"""A callback that writes down what a run does, for ``gnncomm report``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor

from lightning_gnncomm.callbacks.accounting import (
    PARAMETERS,
    Meter,
    add_gains,
    close_probes,
    counted_traffic,
    from_matrix,
    gather,
    sum_records,
    to_matrix,
)
from lightning_gnncomm.callbacks.events import EVENTS, Epoch, Message, append_event, mend_events
from lightning_gnncomm.callbacks.staleness import StalenessReader
from lightning_gnncomm.comm.traffic import TrafficRecord
from lightning_gnncomm.slots import Slot

__all__ = ["RunRecorder"]

_MAX_MESSAGES = 256  # of an epoch, by rank: some steps of a deep network


class RunRecorder(L.Callback):
    """Writes what a run does into a file of its folder, one line an epoch, for ``gnncomm report``.

    Each line holds the values that the module logged, bytes by message, seconds of training, waiting and hidden transfers by rank,
    ages, errors and decisions. The first and the last epoch are written message by message as well. A run that is stopped keeps the
    lines it has; one that goes on in the same folder adds to them.

    It works under any strategy: without halo rows what is left are the logged values and durations.

    Args:
        dirpath: Folder of the run; by default that of the trainer's first logger, else its ``default_root_dir``. The file is
            ``gnncomm/events.jsonl`` in it.

    Raises:
        OSError: At the start of ``fit`` on every rank, if rank 0 cannot write there.

    Example:
        >>> trainer = L.Trainer(callbacks=[RunRecorder("runs/one")], logger=False, accelerator="cpu", max_epochs=10)

    Afterwards ``gnncomm report runs/one`` writes a page with plots.
    """

    def __init__(self, dirpath: str | Path | None = None) -> None:
        self.dirpath = dirpath
        self._path: Path | None = None
        self._meter = Meter[TrafficRecord]()
        self._reader = StalenessReader()
        self._has_staleness = False
        self._reset()

    def _reset(self) -> None:
        self._clock = _Clock()
        self._is_first, self._num_steps = True, 0
        self._epoch: dict[Slot, TrafficRecord] = {}
        self._has_validated = False
        self._validation_keys: set[str] = set()
        self._keys_before: set[str] = set()

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Find the file and note what is run."""
        # Lightning broadcasts the folder, so every rank asks for it.
        folder = trainer.log_dir or trainer.default_root_dir
        self._path = None if trainer.fast_dev_run else Path(self.dirpath or folder) / EVENTS  # type: ignore[attr-defined]
        self._reset()
        self._has_staleness = self._reader.start(trainer)
        self._take_traffic(trainer, {})
        if self._path is not None:
            self._open(trainer, self._path)

    def _open(self, trainer: L.Trainer, path: Path) -> None:
        """Begin a part of the file, or raise on every rank if rank 0 cannot."""
        trouble = ""
        if trainer.is_global_zero:
            try:
                mend_events(path)
                append_event(path, "start", _settings(trainer))
            except OSError as error:
                trouble = f"{type(error).__name__}: {error}"
        trouble = trainer.strategy.broadcast(trouble)
        if trouble:
            raise OSError(
                f"RunRecorder cannot write {path} ({trouble}). Give it another folder: RunRecorder(dirpath=...)."
            )

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock: a run resumed inside an epoch does not begin one."""
        self._clock.start()
        self._listen(trainer)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock."""
        self._clock.start()
        self._listen(trainer)

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Leave validation out; the strategy has just waited for the last rows of training."""
        if self._path is None:
            return
        self._listen(trainer, stop=True)
        self._clock.pause()
        self._take_traffic(trainer, self._epoch)
        self._keys_before = set(trainer.callback_metrics)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Go on with training."""
        if self._path is None:
            return
        self._validation_keys |= trainer.callback_metrics.keys() - self._keys_before
        self._has_validated = not trainer.sanity_checking
        self._take_traffic(trainer, {})
        self._clock.resume()
        if self._clock.is_running:
            self._listen(trainer)

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        """Read the errors when their window ends."""
        close_probes(trainer)
        self._num_steps += 1

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the epoch."""
        # One that was trained before the checkpoint it is resumed from ends once more, with nothing in it.
        if self._path is None or self._num_steps == 0:
            return
        self._num_steps = 0
        self._listen(trainer, stop=True)
        self._take_traffic(trainer, self._epoch)
        epoch = self._gather_epoch(trainer)
        if self._is_first:
            epoch.messages = self._gather_messages(trainer)
        self._is_first, self._has_validated, self._epoch = False, False, {}
        self._write(trainer, "epoch", epoch.to_plain())

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the messages of the last epoch, and that there is no more to come."""
        if self._path is not None:
            messages = self._gather_messages(trainer)
            self._write(trainer, "end", {"messages": [message.to_plain() for message in messages]})

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Let go of the file."""
        self._path = None

    def on_exception(self, trainer: L.Trainer, *_: Any) -> None:
        """Let go of the file."""
        self._listen(trainer, stop=True)
        self._path = None

    def _listen(self, trainer: L.Trainer, stop: bool = False) -> None:
        traffic = getattr(trainer.strategy, "traffic", None)
        if traffic is not None and self._path is not None:
            traffic.listener = None if stop else self._clock.note

    def _take_traffic(self, trainer: L.Trainer, target: dict[Slot, TrafficRecord]) -> None:
        counted = counted_traffic(trainer)
        if counted is not None:
            add_gains(target, self._meter.read(counted))

    def _write(self, trainer: L.Trainer, event: str, values: dict[str, Any]) -> None:
        if not trainer.is_global_zero or self._path is None:
            return
        try:
            append_event(self._path, event, values)
        except OSError as error:
            # A full disk is no reason to stop on one rank while the others go on.
            rank_zero_warn(f"RunRecorder could not write to {self._path}: {error}. A line is missing there.")

    def _metrics(self, trainer: L.Trainer) -> dict[str, float]:
        """Return what was logged in this epoch; Lightning also keeps what an earlier validation logged."""
        # Every rank asks: metrics synchronise themselves when they are first read.
        metrics = trainer.callback_metrics
        old = set() if self._has_validated else self._validation_keys
        return {name: float(value) for name, value in metrics.items() if name not in old}

    def _gather_epoch(self, trainer: L.Trainer) -> Epoch:
        """Return the epoch of all ranks; every rank must call."""
        # All ranks exchange the same messages, at the same steps.
        slots = sorted(self._epoch, key=Slot.as_plain)
        own = sum_records((self._epoch[slot] for slot in slots if slot != PARAMETERS), TrafficRecord)
        records = to_matrix([*(self._epoch[slot] for slot in slots), own], TrafficRecord)
        seconds = torch.tensor(self._clock.seconds(), dtype=torch.float64)
        width = records.numel()
        ranks = gather(trainer, torch.cat([records.reshape(-1), seconds]))
        traffic = ranks[:, :width].reshape(trainer.world_size, *records.shape)
        by_rank = [from_matrix(rank[None, -1:], TrafficRecord)[0] for rank in traffic]
        reading = self._reader.read(trainer) if self._has_staleness else None
        return Epoch(
            epoch=trainer.current_epoch,
            step=trainer.fit_loop.total_batch_idx + 1,
            seconds=ranks[:, width].tolist(),
            validation_seconds=ranks[:, width + 1].tolist(),
            wait_seconds=[record.wait_seconds for record in by_rank],
            hidden_seconds=[record.hidden_seconds for record in by_rank],
            sent_bytes=[record.sent_bytes for record in by_rank],
            metrics=self._metrics(trainer),
            traffic=dict(zip(slots, from_matrix(traffic[:, :-1], TrafficRecord), strict=True)),
            staleness={} if reading is None else reading.slots,
            decisions=[] if reading is None else reading.decisions,
        )

    def _gather_messages(self, trainer: L.Trainer) -> list[Message]:
        """Return the messages of the epoch of all ranks; every rank must call."""
        slots = sorted({slot for slot, *_ in self._clock.messages}, key=Slot.as_plain)
        rows = gather(trainer, _pad([(slots.index(slot), *rest) for slot, *rest in self._clock.messages]))
        return [
            Message(rank, slots[int(slot)], bool(is_wait), start, seconds)
            for rank, messages in enumerate(rows.tolist())
            for slot, is_wait, start, seconds in messages
            if slot >= 0
        ]


class _Clock:
    """Durations of an epoch on this rank, and its messages."""

    def __init__(self) -> None:
        self.messages: list[tuple[Slot, bool, float, float]] = []
        self._start: float | None = None
        self._paused_at: float | None = None
        self._pauses = 0.0

    @property
    def is_running(self) -> bool:
        return self._start is not None

    def start(self) -> None:
        self.messages = []
        self._start, self._pauses = time.perf_counter(), 0.0

    def pause(self) -> None:
        self._paused_at = time.perf_counter()

    def resume(self) -> None:
        if self._paused_at is not None:
            self._pauses += time.perf_counter() - self._paused_at

    def seconds(self) -> list[float]:
        """Return the seconds of training and of validation since the start."""
        assert self._start is not None
        return [time.perf_counter() - self._start - self._pauses, self._pauses]

    def note(self, slot: Slot, record: TrafficRecord) -> None:
        """Take a message that was just sent, or waited for."""
        if self._start is None or len(self.messages) == _MAX_MESSAGES:
            return
        waited = record.wait_seconds
        start = time.perf_counter() - self._start - self._pauses - waited
        self.messages.append((slot, not record.exchanges, start, waited))


def _pad(rows: list[tuple[float, ...]]) -> Tensor:
    """Return messages as a matrix of one size for all ranks."""
    matrix = torch.full((_MAX_MESSAGES, 4), -1.0, dtype=torch.float64)
    if rows:
        matrix[: len(rows)] = torch.tensor(rows, dtype=torch.float64)
    return matrix


def _settings(trainer: L.Trainer) -> dict[str, Any]:
    """Return what tells this run from another one."""
    strategy: Any = trainer.strategy
    return {
        "ranks": trainer.world_size,
        "strategy": type(strategy).__name__,
        "codec": repr(getattr(strategy, "codec", None)),
        "schedule": repr(getattr(strategy, "schedule", None)),
    }

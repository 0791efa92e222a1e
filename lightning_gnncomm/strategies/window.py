"""Once a window, schedules and codecs are shown what all ranks saw, and decide alike."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from lightning_gnncomm.comm.channel import Channel
from lightning_gnncomm.comm.probe import StalenessRecord
from lightning_gnncomm.comm.schedule import Decision, Observation
from lightning_gnncomm.slots import Slot

__all__ = ["Window"]

# Ages add up over ranks and steps; the oldest does not.
_SUMMED = [field.name for field in fields(StalenessRecord) if field.name != "oldest"]


class Window:
    """Gathers losses, durations and errors of a window of training steps.

    Args:
        channel: What carries the rows, and the schedule that wants to know.
        device: Where the wire takes tensors from.
    """

    def __init__(self, channel: Channel, device: torch.device) -> None:
        self.channel, self._device = channel, device
        self._before: dict[Slot, StalenessRecord] = {}
        self._codec_steps = 0
        self._running: tuple[int, float] | None = None
        self._clear()

    def _clear(self) -> None:
        self._steps = 0
        self._loss = torch.zeros(2, dtype=torch.float64)
        self._seconds = {True: [0.0, 0], False: [0.0, 0]}

    def begin(self, step: int) -> list[Decision]:
        """Note the start of a step; where a window ends before it, let the schedule decide. Every rank must call.

        Returns:
            What was decided.
        """
        now = time.perf_counter()
        if self._running is not None:
            before, start = self._running
            total = self._seconds[self.channel.schedule.is_refresh(before)]
            total[0] += now - start
            total[1] += 1
        decisions: list[Decision] = []
        length = self.channel.schedule.window
        if length is not None and self._steps >= length:
            decisions = self.channel.schedule.observe(step, self._observe())
            self._clear()
        every = self.channel.observes_every
        if every is not None and self._codec_steps >= every:
            self.channel.observe(self._device)
            self._codec_steps = 0
        self._steps += 1
        self._codec_steps += 1
        self._running = step, time.perf_counter()
        return decisions

    def pause(self) -> None:
        """Stop the clock: what comes next is no training step."""
        self._running = None

    def add_loss(self, loss: Tensor, num_rows: int) -> None:
        """Note the loss of a step, a mean over this rank's ``num_rows``."""
        if num_rows and self.channel.schedule.window is not None:
            self._loss += torch.stack([loss.detach().double().cpu() * num_rows, torch.tensor(float(num_rows))])

    def state_dict(self) -> dict[str, Any]:
        """Return how far this window has come, as plain data; durations are not carried over."""
        return {"steps": self._steps, "codec_steps": self._codec_steps, "loss": self._loss}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state_dict`."""
        self._steps, self._codec_steps = state["steps"], state["codec_steps"]
        self._loss = state["loss"].clone()

    def _observe(self) -> Observation:
        """Sum over ranks: one small all-reduce a window."""
        channel = self.channel
        channel.close_window()
        slots = sorted(channel.staleness, key=Slot.as_plain)
        gained = [value for slot in slots for value in self._gained(slot)]
        local = [*self._loss.tolist(), *self._seconds[True], *self._seconds[False], *gained]
        loss, rows, refresh, num_refresh, stale, num_stale, *rest = channel.wire.all_reduce(
            torch.tensor(local, dtype=torch.float64, device=self._device)
        ).tolist()
        width = len(_SUMMED)
        records = [
            StalenessRecord(**dict(zip(_SUMMED, rest[k * width : (k + 1) * width], strict=True)))
            for k in range(len(slots))
        ]
        return Observation(
            loss=_ratio(loss, rows),
            refresh_seconds=_ratio(refresh, num_refresh),
            stale_seconds=_ratio(stale, num_stale),
            slots=dict(zip(slots, records, strict=True)),
        )

    def _gained(self, slot: Slot) -> list[float]:
        now, before = self.channel.staleness[slot], self._before.get(slot, StalenessRecord())
        self._before[slot] = StalenessRecord(**vars(now))
        return [float(getattr(now, name) - getattr(before, name)) for name in _SUMMED]


def _ratio(total: float, count: float) -> float:
    return total / count if count else float("nan")

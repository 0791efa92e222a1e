"""What layers received in the forward pass, for those that run again in the backward pass (activation checkpointing)."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_gnncomm.slots import Slot

__all__ = ["Received", "Replay", "in_backward"]


def in_backward() -> bool:
    """Return whether the code runs inside a backward pass."""
    return torch._C._current_graph_task_id() != -1


def _may_run_again() -> bool:
    """Whether the forward in progress may be repeated: checkpointing watches what is saved, or runs without gradients."""
    watched = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return watched is not None or not torch.is_grad_enabled()


class Received(NamedTuple):
    """Rows or sums of other ranks, and the name of the message that brought them."""

    slot: Slot
    values: Tensor


class Replay:
    """Keeps what a step's layers received, if they may run again, and hands it out in the same order.

    A repeated layer must see what it saw the first time, whatever codec and schedule the rows came by, and no rank may wait for a
    message that the others sent long ago. So rows are not exchanged again; those received are kept instead, until the next step,
    which costs ``H`` rows for each exchange of a checkpointed layer.

    Example:
        >>> replay, rows = Replay(), torch.ones(2, 3)
        >>> with torch.no_grad():
        ...     replay.begin("conv")
        ...     replay.keep(Received(Slot("conv", "x"), rows))
        >>> replay.rewind("conv")
        >>> replay.next("conv", "x").values.tolist() == rows.tolist()
        True
    """

    def __init__(self) -> None:
        self._received: dict[tuple[str, str], list[Received]] = {}
        self._place: Counter[tuple[str, str]] = Counter()
        self._calls: Counter[str] = Counter()

    def forget(self) -> None:
        """Drop everything; a new step begins."""
        self._received.clear()
        self._place.clear()
        self._calls.clear()

    def begin(self, layer: str) -> None:
        """Count a call of a layer in the forward pass."""
        if _may_run_again():
            self._calls[layer] += 1

    def keep(self, received: Received) -> None:
        """Keep what a call received, if the call may be repeated."""
        if _may_run_again():
            slot = received.slot
            self._received.setdefault((slot.layer, slot.argument), []).append(
                received._replace(values=received.values.detach())
            )

    def rewind(self, layer: str) -> None:
        """Start again with what a layer received first.

        Raises:
            RuntimeError: If that was not kept, or came in several calls, of which any could be the one that is repeated.
        """
        calls = self._calls[layer]
        if calls != 1:
            reason = (
                f"it was called {calls} times in the step, and it cannot be told which call is repeated. Give each call a layer of "
                f"its own"
                if calls
                else "what it received in the forward pass was not kept. Use torch.utils.checkpoint inside the training step"
            )
            raise RuntimeError(
                f"Layer '{layer}' ran again inside the backward pass, as activation checkpointing lets it, but {reason}, or switch "
                f"checkpointing off for it."
            )
        for key in self._received:
            if key[0] == layer:
                self._place[key] = 0

    def next(self, layer: str, argument: str) -> Received | None:
        """Return what a repeated call receives next for an argument.

        It is ``None`` if the first call received nothing there, since what it needed was kept from an earlier step.
        """
        key = layer, argument
        place = self._place[key]
        self._place[key] += 1
        kept = self._received.get(key, [])
        return kept[place] if place < len(kept) else None

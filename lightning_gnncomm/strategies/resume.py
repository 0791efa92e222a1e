"""What a checkpoint must hold besides the model for training to go on with the same bits."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor, nn

from lightning_gnncomm.comm.channel import Channel
from lightning_gnncomm.comm.gather import gather_states, unpack_state
from lightning_gnncomm.comm.threshold import ThresholdState
from lightning_gnncomm.graph.fingerprint import add_tensor
from lightning_gnncomm.graph.plan import HaloPlan
from lightning_gnncomm.strategies.window import Window

__all__ = ["Memory"]

_KEY = "lightning_gnncomm"


class Memory:
    """What the wire remembers, in checkpoints: rows pending and held, gradients held back, decisions, counters, random states.

    Args:
        channel: What carries the rows.
        window: What schedules are told.
        device: Where the wire takes tensors from.
        threshold: What is held back of the gradients of parameters, if anything is.
        module: Whose parameters these are.
    """

    def __init__(
        self,
        channel: Channel,
        window: Window,
        device: torch.device,
        threshold: ThresholdState | None,
        module: nn.Module,
    ) -> None:
        self._channel, self._window, self._device = channel, window, device
        self._threshold, self._module = threshold, module
        self._plan = ""
        self._restored: dict[str, Any] | None = None

    def save(self, checkpoint: dict[str, Any], step: int) -> None:
        """Add the memory of all ranks to rank 0's checkpoint; every rank must call."""
        state = {
            "channel": self._channel.state_dict(),
            "window": self._window.state_dict(),
            "random": random_state(),
            "plan": self._plan,
            "step": step,
        }
        if self._threshold is not None:
            state["threshold"] = self._threshold.state_dict(self._module.named_parameters())
        packed = gather_states(self._channel.wire, state, self._device)
        if packed is not None:
            checkpoint[_KEY] = {"ranks": packed}

    def load(self, checkpoint: Mapping[str, Any]) -> int | None:
        """Take this rank's memory from a checkpoint, and draw the random numbers the interrupted run would have drawn.

        Returns:
            The number of training steps run before, ``None`` if the checkpoint tells of none that fit.
        """
        self._restored = None
        packed = checkpoint.get(_KEY, {}).get("ranks", [])
        wire = self._channel.wire
        if len(packed) != wire.world_size:
            written = f"by {len(packed)} ranks" if packed else "without what the wire remembers"
            rank_zero_warn(
                f"The checkpoint was written {written} and {wire.world_size} ranks run now: training goes on with a synchronous step "
                f"and fresh random numbers, so not with the bits it would have had."
            )
            return None
        self._restored = unpack_state(packed[wire.rank])
        set_random_state(self._restored["random"])
        if self._threshold is not None:
            self._threshold.load_state_dict(self._restored.get("threshold", {}), self._module.named_parameters())
        step: int = self._restored["step"]
        return step

    def enter(self, halo: HaloPlan | Mapping[str, HaloPlan]) -> None:
        """Start the first training step on a part: a memory of other parts is dropped, on all ranks. Every rank must call."""
        if self._plan:
            return
        self._plan = plan_digest(halo)
        restored, self._restored = self._restored, None
        if restored is None:
            return
        fits = torch.tensor(int(restored["plan"] == self._plan), device=self._device)
        if int(self._channel.wire.all_reduce(fits, "min")):
            self._channel.load_state_dict(restored["channel"], self._device)
            self._window.load_state_dict(restored["window"])
        else:
            rank_zero_warn(
                "The checkpoint was written on other parts of the graph: training goes on with a synchronous step, so not with the "
                "bits it would have had."
            )


def random_state() -> dict[str, Any]:
    """Return the states of this process's random number generators as plain data."""
    name, keys, *rest = np.random.get_state()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": [str(name), torch.from_numpy(np.asarray(keys, dtype=np.int64)), *rest],
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """Put the random number generators where :func:`random_state` saw them."""
    torch.set_rng_state(state["torch"])
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def plan_digest(halo: HaloPlan | Mapping[str, HaloPlan]) -> str:
    """Return a hash of which rows this rank exchanges with whom: what the wire remembers fits no other part."""
    digest = hashlib.blake2b(digest_size=16)
    plans = {"": halo} if isinstance(halo, HaloPlan) else halo
    for name, plan in plans.items():
        digest.update(f"{name}\0{plan.num_local}\0{plan.send_counts}\0{plan.recv_counts}".encode())
        for key in ("send_index", "send_key", "recv_key"):
            tensor: Tensor = getattr(plan, key)
            add_tensor(digest, key, tensor)
    return digest.hexdigest()
